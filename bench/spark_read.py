"""PF9, reading: a topic as a DataFrame, batch and stream, to the noop sink and to Parquet."""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

from bench.broker_cells import QUICK
from bench.measure import Row
from bench.spark_cells import Answer, Bench, Job, compare, rows_of, sized, steady_row, verify
from bench.spark_data import Data, Topic, fill, make_data
from bench.spark_drivers import Driver

ROWS = {100: 6_000_000, 1_000: 1_500_000}
BATCHES = 3
"""Micro-batches of a stream: the first includes the start, the others are steady."""
PARTITIONS = 4
CODECS = ("none", "lz4")
SINKS = ("noop", "parquet")
READ_AT_LEAST = 2.0
STREAM_AT_LEAST = {100: 2.0, 1_000: 1.5}


class Shape(NamedTuple):
    """What is in a topic."""

    value_bytes: int
    codec: str
    partitions: int = PARTITIONS

    @property
    def name(self) -> str:
        return f"{self.value_bytes} B {self.codec}"


class Topics:
    """Topics that are filled once, and read by every cell of the same shape."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, Shape], Topic] = {}
        self._data: dict[int, Data] = {}

    def data(self, value_bytes: int) -> Data:
        if value_bytes not in self._data:
            self._data[value_bytes] = make_data(value_bytes)
        return self._data[value_bytes]

    def at(self, address: str, shape: Shape) -> Topic:
        key = (address, shape)
        if key not in self._topics:
            rows = sized(ROWS[shape.value_bytes])
            data = self.data(shape.value_bytes)
            self._topics[key] = fill(
                address, data, rows=rows, partitions=shape.partitions, codec=shape.codec
            )
        return self._topics[key]


def measure_batch(bench: Bench, topics: Topics) -> list[Row]:
    rows: list[Row] = []
    for value_bytes, codec, sink in _cells():
        rows += batch_cell(bench, topics, Shape(value_bytes, codec), sink)
    return rows


def measure_stream(bench: Bench, topics: Topics) -> list[Row]:
    rows: list[Row] = []
    for value_bytes, codec, sink in _cells():
        rows += stream_cell(bench, topics, Shape(value_bytes, codec), sink)
    return rows


def measure_at(bench: Bench, topics: Topics, label: str) -> list[Row]:
    """The uncompressed cells again, with another broker for both connectors."""
    rows: list[Row] = []
    for value_bytes in ROWS:
        rows += batch_cell(bench, topics, Shape(value_bytes, "none"), "noop", label)
        rows += stream_cell(bench, topics, Shape(value_bytes, "none"), "noop", label)
    return rows


def _cells() -> list[tuple[int, str, str]]:
    found = list(product(ROWS, CODECS, SINKS))
    return [one for one in found if one[1] == "none" or one[2] == "noop"] if QUICK else found


def batch_cell(bench: Bench, topics: Topics, shape: Shape, sink: str, label: str = "") -> list[Row]:
    what = f"PF9 read {shape.name} to {sink}{label}"
    topic = topics.at(bench.broker.address, shape)
    job = reading("read", bench, topic, sink)
    check = topics.data(shape.value_bytes).check(topic.rows)
    verify(what, reading("check_read", bench, topic, sink), check, bench.drivers)
    found = compare(what, Job(lambda driver, _: job(driver), topic.rows), bench)
    identity = f"spark.read.{shape.value_bytes}.{shape.codec}.{sink}{label}"
    return rows_of(identity, what, found, at_least=READ_AT_LEAST)


def stream_cell(
    bench: Bench, topics: Topics, shape: Shape, sink: str, label: str = ""
) -> list[Row]:
    what = f"PF9 stream {shape.name} to {sink}{label}"
    topic = topics.at(bench.broker.address, shape)
    limit = {"maxOffsetsPerTrigger": str(-(-topic.rows // BATCHES))}
    job = reading("stream", bench, topic, sink, limit)
    check = topics.data(shape.value_bytes).check(topic.rows)
    verify(what, reading("check_stream", bench, topic, sink, limit), check, bench.drivers)
    found = compare(what, Job(lambda driver, _: job(driver), topic.rows), bench)
    identity = f"spark.stream.{shape.value_bytes}.{shape.codec}.{sink}{label}"
    goal = STREAM_AT_LEAST[shape.value_bytes]
    return [
        *rows_of(identity, what, found, at_least=goal),
        steady_row(identity, what, found, at_least=goal),
    ]


def reading(
    job: str, bench: Bench, topic: Topic, sink: str, more: dict[str, str] | None = None
) -> Callable[[Driver], Answer]:
    """A job that reads the whole topic."""
    address = bench.broker.address

    def run_job(driver: Driver) -> Answer:
        options = {**driver.options(address, topic), **(more or {})}
        return driver.run_job(job, source=driver.source, options=options, sink=sink)

    return run_job
