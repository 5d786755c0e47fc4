"""PF1: produce with a C client, acks=1, into topics that are new for every run.

An idempotent librdkafka producer insists on acks=all; on one broker that is the same wait.
"""

from itertools import product
from typing import NamedTuple

from bench.broker_cells import QUICK, Done, Load, compare, cost_row, speed_row
from bench.broker_generators import run
from bench.broker_systems import System, Systems
from bench.broker_wire import Topic, create_topic, delete_topics
from bench.measure import Row

BATCHES = {"16 KB": 16_384, "128 KB": 131_072, "1 MB": 1_000_000}
"""The last one is just below the default limit of both systems."""
RUN_BYTES = {100: 200_000_000, 1_000: 500_000_000}
RUN_BYTES_QUICK = {100: 100_000_000, 1_000: 300_000_000}
SPEED_AT_LEAST = {"16 KB": 1.8, "128 KB": 1.0, "1 MB": 1.0}
COST_AT_MOST = 0.5
PAGES_PER_BYTE = 1.5
"""Of a run: the log, framing, and the memory of the client and the sockets."""
LARGE_RECORD_BYTES = 1_000


class Shape(NamedTuple):
    """One cell."""

    record_bytes: int
    batch: str
    partitions: int
    is_idempotent: bool = False

    @property
    def name(self) -> str:
        record = "1 KB" if self.record_bytes == LARGE_RECORD_BYTES else f"{self.record_bytes} B"
        tail = ", idempotent" if self.is_idempotent else ""
        return f"{record}, {self.batch}, {self.partitions} part.{tail}"

    @property
    def identity(self) -> str:
        tail = ".idempotent" if self.is_idempotent else ""
        return f"{self.record_bytes}.{self.batch.replace(' ', '')}.{self.partitions}{tail}"


def shapes() -> list[Shape]:
    if QUICK:
        return [
            Shape(100, "16 KB", 1),
            Shape(100, "16 KB", 6, is_idempotent=True),
            Shape(1_000, "128 KB", 6),
            Shape(1_000, "1 MB", 1),
        ]
    every = product((False, True), RUN_BYTES, BATCHES, (1, 6))
    return [Shape(size, batch, count, idempotent) for idempotent, size, batch, count in every]


def measure(systems: Systems) -> list[Row]:
    rows: list[Row] = []
    for shape in shapes():
        found = compare(produce_load(shape), systems)
        identity, least = f"broker.produce.{shape.identity}", SPEED_AT_LEAST[shape.batch]
        what = f"PF1 produce {shape.name}, records/s"
        rows.append(speed_row(f"{identity}.speed", what, found, at_least=least))
        what = f"PF1 produce {shape.name}, CPU s/GB"
        rows.append(cost_row(f"{identity}.cpu", what, found, at_most=COST_AT_MOST))
    return rows


def produce_load(
    shape: Shape, *, run_bytes: int | None = None, copies: int = 1, acks: str = "1"
) -> Load:
    size = run_bytes or (RUN_BYTES_QUICK if QUICK else RUN_BYTES)[shape.record_bytes]
    count = size // shape.record_bytes
    return Load(
        lambda system: create_topic(system.address, shape.partitions),
        lambda system, topic: produce(system, topic, shape, count, acks=acks),
        lambda system, topic: delete_topics(system.address, [topic]),
        written_bytes=int(size * PAGES_PER_BYTE) * copies,
    )


def produce(system: System, topic: Topic, shape: Shape, count: int, *, acks: str = "1") -> Done:
    figures = run(
        "produce",
        system.address,
        topic.name,
        topic.partitions,
        count,
        shape.record_bytes,
        BATCHES[shape.batch],
        *(("enable.idempotence=true", "acks=all") if shape.is_idempotent else (f"acks={acks}",)),
    )
    return Done(figures["records"], figures["seconds"], figures["bytes"] / 1e9)
