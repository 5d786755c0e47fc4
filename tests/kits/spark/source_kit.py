"""Topics to read with the Spark source, and the source's readers without a Spark session.

Spark calls readers in processes of its own; here they are called directly, so that a story takes
milliseconds. What only Spark does is in `tests/spark/test_source_*.py`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from kits.client.our_writer import client_of, topic_of
from kits.process.waiting_for import until
from millstream.client.admin import NewPartitions, or_raise
from millstream.client.blocking import BlockingClient
from millstream.client.errors import TopicUnknown
from millstream.model.ids import Offset, TopicPartition
from millstream.pipelines.spark.batch_reader import BatchReader
from millstream.pipelines.spark.columns import source_schema
from millstream.pipelines.spark.stream_reader import StreamReader

Row = tuple[str, int, int, bytes]
"""Topic, partition, offset and value."""
Document = dict[str, Any]


class World:
    """A cluster and what a test does with it."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers = servers
        self.prefix = prefix
        """Of the names of topics: tests share a cluster."""
        self.client: BlockingClient = client_of(servers)

    def topic(self, name: str = "t", partitions: int = 1, **configs: str) -> str:
        full = f"{self.prefix}-{name}"
        topic_of(self.client, full, partitions, **configs)
        return full

    def write(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        rows = list(values)
        numbers = pa.array([partition] * len(rows), pa.int32())
        with self.client.column_writer(topic=topic) as writer:
            writer.write(pa.record_batch({"value": pa.array(rows), "partition": numbers}))
            writer.flush()

    def delete_before(self, topic: str, offset: int, partition: int = 0) -> None:
        at = TopicPartition(topic, partition)
        or_raise(self.client.delete_records({at: Offset(offset)})[at])

    def add_partitions(self, topic: str, total: int) -> None:
        or_raise(self.client.create_partitions({topic: NewPartitions(total)})[topic])
        until(
            lambda: self.client.topics([topic])[topic].partition_count == total, "partitions came"
        )

    def delete(self, topic: str) -> None:
        or_raise(self.client.delete_topics([topic])[topic])
        until(lambda: self.is_gone(topic), "the topic is gone")

    def is_gone(self, topic: str) -> bool:
        return isinstance(self.client.describe_topics([topic])[topic], TopicUnknown)

    def recreate(self, topic: str, partitions: int = 1) -> None:
        self.delete(topic)
        topic_of(self.client, topic, partitions)

    def options(self, **options: object) -> dict[str, str]:
        """Dots are written as `__`."""
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        quick = {"fetchOffset.retryIntervalMs": "50"}
        return {"kafka.bootstrap.servers": self.servers, **quick, **named}

    def stream(self, **options: object) -> "Triggers":
        return Triggers(self.options(**options))

    def batch(self, **options: object) -> list[Row]:
        given = self.options(**options)
        reader = BatchReader(given, source_schema(given))
        return rows_of(reader, reader.partitions())


def rows_of(reader: BatchReader | StreamReader, partitions: Iterable[Any]) -> list[Row]:
    rows: list[Row] = []
    for partition in partitions:
        for batch in reader.read(partition):
            columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset")]
            rows += zip(*columns, batch.column("value").to_pylist(), strict=True)
    return sorted(rows)


class Triggers:
    """A streaming query as Spark drives one, offsets going through JSON between the calls."""

    def __init__(self, options: Mapping[str, str], at: Document | None = None) -> None:
        self.options = dict(options)
        self.reader = StreamReader(self.options, source_schema(self.options))
        self.at = at
        """Where the query stands, as in its checkpoint; None: it is new."""
        self.batches: list[tuple[Document, Document]] = []

    def start(self) -> Document:
        if self.at is None:
            self.at = _through_json(self.reader.initialOffset())
        return self.at

    def next_batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """One trigger; None when there was nothing to do."""
        start = self.start()
        limit = limit or self.reader.getDefaultReadLimit()
        end = _through_json(self.reader.latestOffset(start, limit))
        if json.dumps(end) == json.dumps(start):
            return None
        self.batches.append((start, end))
        rows = self.replay(-1)
        self.reader.commit(end)
        self.at = end
        return rows

    def replay(self, index: int) -> list[Row]:
        """The rows of a batch that was planned, as a restarted query reads them."""
        start, end = self.batches[index]
        return rows_of(self.reader, self.reader.partitions(start, end))

    def all_batches(self) -> list[list[Row]]:
        """Until there is nothing left."""
        found = []
        while (rows := self.next_batch()) is not None:
            found.append(rows)
        return found

    def restarted(self, **options: object) -> "Triggers":
        """Another process goes on from the checkpoint."""
        given = {name.replace("__", "."): str(value) for name, value in options.items()}
        again = Triggers({**self.options, **given}, self.at)
        again.batches = self.batches
        return again


def _through_json(document: Mapping[str, Any]) -> Document:
    found: Document = json.loads(json.dumps(document))
    return found


def values(rows: Iterable[Row] | None) -> list[bytes]:
    return [row[3] for row in rows or ()]


def numbered(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]
