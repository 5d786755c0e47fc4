"""ZooKeeper's four-letter words: commands of operators' tools, without a session."""

from typing import Final, NamedTuple

import millstream
from millstream.coordination.keeper.machine import Machine
from millstream.model.ids import Zxid

WORDS: Final = frozenset((b"ruok", b"srvr", b"mntr", b"isro", b"envi"))
"""Those that are answered, to anybody: none names a node, a client or a file."""

_REFUSED: Final = "conf cons crst dirs dump gtmk hash lsnp orst srst stat stmk wchc wchp wchs"
KNOWN_WORDS: Final = WORDS | frozenset(word.encode() for word in _REFUSED.split())
_COMPATIBLE: Final = "3.9.5"
"""The version of ZooKeeper whose protocol this server speaks: clients check it."""


class Figures(NamedTuple):
    """What the shell counts."""

    connections: int
    durable_zxid: Zxid
    received: int
    sent: int
    outstanding: int
    latency_min_ms: int
    latency_avg_ms: float
    latency_max_ms: int


def answer(word: str, machine: Machine, figures: Figures) -> str:
    """The text to send before the connection is closed."""
    match word:
        case "ruok":
            return "imok"
        case "isro":
            return "rw"
        case "srvr":
            return _version_line() + _server(machine, figures)
        case "mntr":
            return _monitored(machine, figures)
        case "envi":
            return f"Environment:\nzookeeper.version={_version()}\n"
        case _:
            return f"{word} is not executed because it is not in the whitelist.\n"


def _version() -> str:
    return f"{_COMPATIBLE}-millstream-{millstream.__version__}"


def _version_line() -> str:
    return f"Zookeeper version: {_version()}, built on Python\n"


def _server(machine: Machine, figures: Figures) -> str:
    low, mean, high = figures.latency_min_ms, figures.latency_avg_ms, figures.latency_max_ms
    return (
        f"Latency min/avg/max: {low}/{mean:.1f}/{high}\n"
        f"Received: {figures.received}\n"
        f"Sent: {figures.sent}\n"
        f"Connections: {figures.connections}\n"
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
        "num_alive_connections": figures.connections,
        "outstanding_requests": figures.outstanding,
        "znode_count": len(machine.state.nodes),
        "watch_count": machine.watches.total,
        "ephemerals_count": sum(map(len, machine.state.ephemerals.values())),
        "approximate_data_size": machine.state.size_bytes,
        "global_sessions": len(machine.state.sessions),
    }
    return "".join(f"zk_{name}\t{value}\n" for name, value in values.items())
