"""PF12: ours against itself: the cost of a record and a request when everything else grows tenfold.

`ours` is the broker with much, `peer` the same broker with a tenth of it. CPU, not time: the client
shares the machine.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.broker_cells import QUICK, Comparison, Load, compare, cost_row
from bench.broker_consume import consume
from bench.broker_produce import Shape, produce
from bench.broker_requests import send
from bench.broker_systems import System, Systems, only_ours
from bench.broker_wire import Topic, connect, create_topic, delete_topics, exchange, produce_frame
from bench.measure import Row

FLAT = 1.2
PARTITIONS = (1_000, 100)
CONNECTIONS = (1_000, 100)
LOG_BYTES = (300_000_000, 30_000_000) if QUICK else (1_000_000_000, 100_000_000)
SEGMENT_BYTES = 10 << 20
SECONDS = 1.5 if QUICK else 3.0
RECORDS = 1_000_000
SHAPE = Shape(100, "16 KB", 6)


class Named:
    """One broker under two names, one for each amount of other load."""

    def __init__(self, system: System, name: str) -> None:
        self._system = system
        self.name = name

    @property
    def address(self) -> str:
        return self._system.address

    @property
    def process_ids(self) -> tuple[int, ...]:
        return self._system.process_ids

    def start(self) -> None:
        self._system.start()

    def stop(self) -> None:
        self._system.stop()


def measure(_systems: Systems) -> list[Row]:
    return [*_partitions(), *_connections(), *_log_size()]


@contextlib.contextmanager
def two_brokers() -> Iterator[Systems]:
    """Both ours, with much and with little."""
    first, second = (Path(tempfile.mkdtemp(prefix="bench-scale-", dir="build")) for _ in range(2))
    with only_ours(first) as many, only_ours(second) as few:
        yield Systems(Named(many, "much"), Named(few, "little"))


def _row(identity: str, what: str, found: Comparison) -> Row:
    return cost_row(f"broker.scale.{identity}", f"PF12 {what}", found, at_most=FLAT)


def _partitions() -> list[Row]:
    """The load goes over all partitions: each has its files and its state."""
    with two_brokers() as systems:
        topics = {
            system.name: create_topic(system.address, count)
            for system, count in zip(systems, PARTITIONS, strict=True)
        }
        requests = compare(_requests_to(topics), systems)
        records = compare(_produce_beside(), systems)
    much = f"{PARTITIONS[0]} partitions (peer: {PARTITIONS[1]})"
    return [
        _row("partitions.request", f"CPU us/request over {much}", requests),
        _row("partitions.record", f"CPU s/GB produced beside {much}", records),
    ]


def _connections() -> list[Row]:
    """Other connections are open and idle; then all of them are busy."""
    with two_brokers() as systems, contextlib.ExitStack() as opened:
        topics = {system.name: create_topic(system.address, 1) for system in systems}
        for system, count in zip(systems, CONNECTIONS, strict=True):
            for _ in range(count):
                connection = opened.enter_context(connect(system.address))
                exchange(connection, produce_frame(topics[system.name]))
        requests = compare(_requests_to(topics), systems)
        records = compare(_produce_beside(), systems)
        opened.close()
        busy = compare(_requests_to(topics, connections={"much": 100, "little": 10}), systems)
    much = f"{CONNECTIONS[0]} idle connections (peer: {CONNECTIONS[1]})"
    return [
        _row("connections.request", f"CPU us/request beside {much}", requests),
        _row("connections.record", f"CPU s/GB produced beside {much}", records),
        _row("connections.busy", "CPU us/request from 100 connections (peer: 10)", busy),
    ]


def _log_size() -> list[Row]:
    """Long logs of many segments: appends at the end, reads from the beginning."""
    with two_brokers() as systems:
        topics: dict[str, Topic] = {}
        for system, size in zip(systems, LOG_BYTES, strict=True):
            configs = {"segment.bytes": str(SEGMENT_BYTES)}
            topics[system.name] = create_topic(system.address, 1, configs)
            produce(system, topics[system.name], SHAPE, size // SHAPE.record_bytes)
        reads = compare(_reads_of(topics, LOG_BYTES[1] // SHAPE.record_bytes), systems)
        requests = compare(_requests_to(topics), systems)
    much = f"{LOG_BYTES[0] // 10**6} MB in segments of 10 MB (peer: {LOG_BYTES[1] // 10**6} MB)"
    return [
        _row("log.request", f"CPU us/request at the end of {much}", requests),
        _row("log.record", f"CPU s/GB consumed from the start of {much}", reads),
    ]


def _requests_to(topics: dict[str, Topic], connections: dict[str, int] | None = None) -> Load:
    counts = connections or {}
    return Load(
        lambda system: topics[system.name],
        lambda system, topic: send(
            system,
            topic,
            connections=counts.get(system.name, 10),
            in_flight=1,
            seconds=SECONDS,
        ),
        lambda _system, _topic: None,
    )


def _produce_beside() -> Load:
    """Into a small topic of its own, so that batches are the same on both."""
    return Load(
        lambda system: create_topic(system.address, SHAPE.partitions),
        lambda system, topic: produce(system, topic, SHAPE, RECORDS),
        lambda system, topic: delete_topics(system.address, [topic]),
        written_bytes=RECORDS * SHAPE.record_bytes,
    )


def _reads_of(topics: dict[str, Topic], count: int) -> Load:
    return Load(
        lambda system: topics[system.name],
        lambda system, topic: consume(system, topic, count),
        lambda _system, _topic: None,
    )
