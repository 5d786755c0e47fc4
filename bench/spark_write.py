"""PF9, writing: a cached DataFrame, and a stream of files, into a topic with four partitions.

Every run has a topic of its own. Rows have keys, so both sinks spread them by murmur2. Rows of
1 KB are written with the limit that Spark has for Arrow batches, which lets them grow to 10 MB, and
with the one that our documentation advises; both sessions get it.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.measure import Row
from bench.spark_cells import (
    Answer,
    Bench,
    Job,
    WrongRows,
    compare,
    rows_of,
    sized,
    steady_row,
)
from bench.spark_data import (
    KEY_BYTES,
    Check,
    client_at,
    create_topic,
    stored_check,
    stored_rows,
    write_files,
)
from bench.spark_drivers import Driver
from bench.spark_read import Topics

ROWS = {100: 3_000_000, 1_000: 960_000}
FILES = 12
FILES_PER_BATCH = 4
TASKS = 4
PARTITIONS = 4
CODECS = ("none", "lz4")
WRITE_AT_LEAST = 1.5
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ADVISED_ARROW_BYTES = 2 * 1024 * 1024
ADVISED_LABEL = ", Arrow batches of 2 MiB"
ADVISED_FROM_BYTES = 1_000
"""Smaller values make smaller batches anyway: Spark ends them at 10,000 rows."""
Run = Callable[[Driver, str], Answer]


class Target(NamedTuple):
    """Where a sink writes to, and what must be there in the end."""

    address: str
    codec: str
    check: Check

    def options(self, topic: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.address,
            "topic": topic,
            "kafka.compression.type": self.codec,
        }


def measure(bench: Bench, topics: Topics, scratch: Path) -> list[Row]:
    rows: list[Row] = []
    for value_bytes in ROWS:
        with _frame(bench, topics, scratch, value_bytes) as (files, check):
            cells = partial(_cells, bench, value_bytes, files, check)
            rows += cells()
            if value_bytes >= ADVISED_FROM_BYTES:
                with _configured(bench, {ARROW_BYTES: str(ADVISED_ARROW_BYTES)}):
                    rows += cells(ADVISED_LABEL)
    return rows


def _cells(bench: Bench, value_bytes: int, files: Path, check: Check, label: str = "") -> list[Row]:
    rows: list[Row] = []
    for codec in CODECS:
        target = Target(bench.broker.address, codec, check)
        rows += _batch_cell(bench, target, value_bytes, label)
        rows += _stream_cell(bench, target, value_bytes, files, label)
    return rows


@contextlib.contextmanager
def _configured(bench: Bench, settings: dict[str, str]) -> Iterator[None]:
    for driver in bench.drivers:
        driver.run_job("configure", settings=settings)
    try:
        yield
    finally:
        for driver in bench.drivers:
            driver.run_job("configure", settings=dict.fromkeys(settings))


def measure_at(bench: Bench, topics: Topics, scratch: Path, label: str) -> list[Row]:
    """The uncompressed cells again, with another broker for both connectors."""
    rows: list[Row] = []
    for value_bytes in ROWS:
        with _frame(bench, topics, scratch, value_bytes) as (_, check):
            target = Target(bench.broker.address, "none", check)
            rows += _batch_cell(bench, target, value_bytes, label)
    return rows


@contextlib.contextmanager
def _frame(
    bench: Bench, topics: Topics, scratch: Path, value_bytes: int
) -> Iterator[tuple[Path, Check]]:
    """Files for the streams; both sessions hold their rows in memory for the batches."""
    count = sized(ROWS[value_bytes])
    data = topics.data(value_bytes)
    files = scratch / f"frame-{value_bytes}"
    if not files.exists():
        write_files(data, files, rows=count, files=FILES)
    expected = data.check(count)
    for driver in bench.drivers:
        found = driver.run_job("cache", name="frame", path=str(files.absolute()), partitions=TASKS)
        if Check(**found) != expected:
            raise WrongRows(f"cached for {driver.name}: {found} instead of {expected}")
    try:
        yield files, expected
    finally:
        for driver in bench.drivers:
            driver.run_job("uncache", name="frame")


def _batch_cell(bench: Bench, target: Target, value_bytes: int, label: str = "") -> list[Row]:
    what = f"PF9 write {value_bytes} B {target.codec}{label}"

    def run(driver: Driver, topic: str) -> Answer:
        return driver.run_job(
            "write", name="frame", sink=driver.source, options=target.options(topic)
        )

    found = compare(what, _job(what, target, run), bench)
    identity = f"spark.write.{value_bytes}.{target.codec}{label}"
    return rows_of(identity, what, found, at_least=WRITE_AT_LEAST)


def _stream_cell(
    bench: Bench, target: Target, value_bytes: int, files: Path, label: str = ""
) -> list[Row]:
    what = f"PF9 write stream {value_bytes} B {target.codec}{label}"

    def run(driver: Driver, topic: str) -> Answer:
        return driver.run_job(
            "write_stream",
            path=str(files.absolute()),
            files_per_batch=FILES_PER_BATCH,
            sink=driver.source,
            options=target.options(topic),
        )

    found = compare(what, _job(what, target, run), bench)
    identity = f"spark.write_stream.{value_bytes}.{target.codec}{label}"
    return [
        *rows_of(identity, what, found, at_least=WRITE_AT_LEAST),
        steady_row(identity, what, found, at_least=WRITE_AT_LEAST),
    ]


def _job(what: str, target: Target, run: Run) -> Job:
    """Counts rows by offsets after every run; the first of each driver is read back in full."""
    verified: set[str] = set()

    def prepare(_driver: Driver) -> str:
        with client_at(target.address) as client:
            return create_topic(client, PARTITIONS)

    def clean(driver: Driver, topic: str) -> int:
        with client_at(target.address) as client:
            count = stored_rows(client, topic, PARTITIONS)
            if driver.name not in verified and count == target.check.rows:
                found = stored_check(client, topic, PARTITIONS)
                if found != target.check:
                    raise WrongRows(f"{what}, {driver.name}: {found} instead of {target.check}")
                verified.add(driver.name)
            client.delete_topics([topic])
        return count

    size = target.check.value_bytes + target.check.rows * KEY_BYTES
    return Job(run, target.check.rows, prepare, clean, size)
