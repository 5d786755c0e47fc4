"""ZooKeeper's four-letter words: commands of operators' tools, without a session."""

from typing import Final, NamedTuple

import millstream
from millstream.coordination.keeper.machine import Machine
from millstream.model.ids import Zxid

WORDS: Final = frozenset(
    (b"ruok", b"stat", b"srvr", b"mntr", b"isro", b"envi", b"conf", b"wchs", b"dump")
)
_COMPATIBLE: Final = "3.9.5"
"""The version of ZooKeeper whose protocol this server speaks: clients check it."""


class Client(NamedTuple):
    """A connection, as `stat` shows it."""

    peer: str
    queued: int
    received: int
    sent: int


class Figures(NamedTuple):
    """What the shell counts."""

    clients: list[Client]
    durable_zxid: Zxid
    received: int
    sent: int
    outstanding: int
    latency_min_ms: int
    latency_avg_ms: float
    latency_max_ms: int
    settings: dict[str, object]


def answer(word: str, machine: Machine, figures: Figures) -> str:
    """The text to send before the connection is closed."""
    match word:
        case "ruok":
            return "imok"
        case "isro":
            return "rw"
        case "stat":
            return _version_line() + _clients(figures) + _server(machine, figures)
        case "srvr":
            return _version_line() + _server(machine, figures)
        case "mntr":
            return _monitored(machine, figures)
        case "envi":
            return f"Environment:\nzookeeper.version={_version()}\n"
        case "conf":
            return "".join(f"{name}={value}\n" for name, value in figures.settings.items())
        case "wchs":
            return _watch_summary(machine)
        case _:
            return _sessions(machine)


def _version() -> str:
    return f"{_COMPATIBLE}-millstream-{millstream.__version__}"


def _version_line() -> str:
    return f"Zookeeper version: {_version()}, built on Python\n"


def _clients(figures: Figures) -> str:
    lines = [
        f" /{one.peer}[1](queued={one.queued},recved={one.received},sent={one.sent})\n"
        for one in figures.clients
    ]
    return "Clients:\n" + "".join(lines) + "\n"


def _server(machine: Machine, figures: Figures) -> str:
    low, mean, high = figures.latency_min_ms, figures.latency_avg_ms, figures.latency_max_ms
    return (
        f"Latency min/avg/max: {low}/{mean:.1f}/{high}\n"
        f"Received: {figures.received}\n"
        f"Sent: {figures.sent}\n"
        f"Connections: {len(figures.clients)}\n"
        f"Outstanding: {figures.outstanding}\n"
        f"Zxid: {figures.durable_zxid:#x}\n"
        "Mode: standalone\n"
        f"Node count: {len(machine.state.nodes)}\n"
    )


def _monitored(machine: Machine, figures: Figures) -> str:
    values: dict[str, object] = {
        "version": f"{_version()}, built on Python",
        "server_state": "standalone",
        "avg_latency": f"{figures.latency_avg_ms:.4f}",
        "min_latency": figures.latency_min_ms,
        "max_latency": figures.latency_max_ms,
        "packets_received": figures.received,
        "packets_sent": figures.sent,
        "num_alive_connections": len(figures.clients),
        "outstanding_requests": figures.outstanding,
        "znode_count": len(machine.state.nodes),
        "watch_count": machine.watches.data.count() + machine.watches.children.count(),
        "ephemerals_count": sum(map(len, machine.state.ephemerals.values())),
        "approximate_data_size": machine.state.size_bytes,
        "global_sessions": len(machine.state.sessions),
    }
    return "".join(f"zk_{name}\t{value}\n" for name, value in values.items())


def _watch_summary(machine: Machine) -> str:
    tables = (machine.watches.data, machine.watches.children)
    connections = len({one for table in tables for one in table.by_connection})
    paths = len({path for table in tables for path in table.by_path})
    total = sum(table.count() for table in tables)
    return f"{connections} connections watching {paths} paths\nTotal watches:{total}\n"


def _sessions(machine: Machine) -> str:
    state = machine.state
    lines = [f"Sessions with Ephemerals ({len(state.ephemerals)}):\n"]
    for session_id, paths in sorted(state.ephemerals.items()):
        lines.append(f"{session_id:#x}:\n")
        lines += [f"\t{path}\n" for path in sorted(paths)]
    return "".join(lines)
