"""PF6: resident memory of a broker, idle after its start and after the matrix with connections."""

import contextlib
import tempfile
from pathlib import Path

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_systems import Systems, resident_bytes, running, wait_seconds
from bench.broker_wire import connect, create_topic, delete_topics, exchange, produce_frame
from bench.measure import Row

CONNECTIONS = 100
AT_MOST = 0.2
MIB = 1 << 20
IDLE_WAIT_S = 2.0 if QUICK else 5.0


def measure(systems: Systems) -> list[Row]:
    """Measured last, on the systems that ran everything else; idle figures are of fresh ones."""
    busy = _with_connections(systems)
    directory = Path(tempfile.mkdtemp(prefix="bench-idle-", dir="build"))
    with running(directory) as fresh:
        wait_seconds(IDLE_WAIT_S)
        idle = _resident(fresh)
    return [
        _row("idle", "idle", idle),
        _row("matrix", f"after the matrix, {CONNECTIONS} connections", busy),
    ]


def _row(identity: str, what: str, figures: tuple[float, float]) -> Row:
    ours, peer = ([one] for one in figures)
    name = f"PF6 resident memory, {what}, MiB"
    return lower_is_better(f"broker.memory.{identity}", name, ours, peer, at_most=AT_MOST)


def _with_connections(systems: Systems) -> tuple[float, float]:
    """Every connection has sent a record and stays open."""
    with contextlib.ExitStack() as opened:
        for system in systems:
            topic = create_topic(system.address, 1)
            opened.callback(delete_topics, system.address, [topic])
            for _ in range(CONNECTIONS):
                connection = opened.enter_context(connect(system.address))
                exchange(connection, produce_frame(topic))
        wait_seconds(IDLE_WAIT_S)
        return _resident(systems)


def _resident(systems: Systems) -> tuple[float, float]:
    ours, peer = (resident_bytes(system.process_ids) / MIB for system in systems)
    return ours, peer
