"""The same query through Spark's own connector and through our source, as rows to compare."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession

CONNECTOR: Final = "kafka"
OURS: Final = "millstream"
QUERY_TIMEOUT_S: Final = 120


class TopicRow(NamedTuple):
    """One row of the source, in an order in which rows of a partition stay together."""

    topic: str
    partition: int
    offset: int
    timestamp: object
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None


def rows_of(frame: DataFrame) -> list[TopicRow]:
    """All rows, in the order of partitions and offsets: that of tasks means nothing."""
    return sorted(map(_topic_row, frame.collect()), key=lambda row: row[:3])


def _topic_row(row: Row) -> TopicRow:
    headers = None
    if "headers" in row and row["headers"] is not None:
        headers = tuple((one["key"], _bytes(one["value"])) for one in row["headers"])
    return TopicRow(
        row["topic"],
        row["partition"],
        row["offset"],
        row["timestamp"],
        row["timestampType"],
        _bytes(row["key"]),
        _bytes(row["value"]),
        headers,
    )


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def read(
    spark: SparkSession, source: str, servers: str, options: Mapping[str, str]
) -> list[TopicRow]:
    """A batch query."""
    reader = spark.read.format(source).option("kafka.bootstrap.servers", servers)
    return rows_of(reader.options(**options).load())


@dataclass
class Stream:
    """A streaming query that is run to the end of its topics again and again."""

    spark: SparkSession
    source: str
    servers: str
    options: Mapping[str, str]
    checkpoint: Path
    batches: dict[int, list[TopicRow]] = field(default_factory=dict)
    """By batch id."""

    def run(self) -> None:
        reader = self.spark.readStream.format(self.source)
        reader = reader.option("kafka.bootstrap.servers", self.servers).options(**self.options)
        writer = reader.load().writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), f"{self.source} did not end"
        finally:
            query.stop()

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = rows_of(frame)

    def filled(self) -> list[list[TopicRow]]:
        """What each batch read, without batches that read nothing."""
        return [rows for _, rows in sorted(self.batches.items()) if rows]


def first_difference(ours: Iterable[Any], theirs: Iterable[Any]) -> str:
    """A short difference for a message: thousands of rows would not be readable."""
    left, right = list(ours), list(theirs)
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return (
                f"row {index} of {len(left)} and {len(right)}: {one!r:.300} is not {other!r:.300}"
            )
    return f"{len(left)} rows are not {len(right)} rows"


def assert_same(ours: list[TopicRow], theirs: list[TopicRow], about: Callable[[], str]) -> None:
    """Row by row."""
    assert ours == theirs, f"{about()}\n{first_difference(ours, theirs)}"
