"""One query's topics, files and checkpoint, and everything that must be true of them."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millstream.client.admin import NewTopic, or_raise
from millstream.client.blocking import BlockingClient
from millstream.client.settings import ClientSettings
from millstream.testing.chaos.broker.client import ANSWER_MAX_S
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.spark.checkpoint import Checkpoint, Manifest
from millstream.testing.chaos.spark.checks import (
    Row,
    check_copies,
    check_nothing_missing,
    check_once,
    check_plans,
    check_reads,
)
from millstream.testing.chaos.spark.control import ControlServer
from millstream.testing.chaos.spark.query import QuerySpec
from millstream.testing.chaos.spark.steps import Sink

PARTITIONS: Final = 3
_PARTITION_END: Final = -191
"""librdkafka's code for the end of a partition."""


@dataclass(slots=True)
class Pipeline:
    """A query from its creation to its last check; `spec` is what Spark gets."""

    spec: QuerySpec
    control: ControlServer
    starts: dict[int, int] = field(default_factory=dict)
    """Where the query begins: it must not read what was written before it was started."""
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    """The ends of the source's topic."""
    compared: Counter[str] = field(default_factory=Counter)
    """What the last check compared."""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(Path(self.spec.checkpoint))

    @property
    def manifest(self) -> Manifest:
        return Manifest(Path(self.spec.target))

    @property
    def name(self) -> str:
        return self.spec.name

    # -- input

    def create_topics(self) -> None:
        """Create the source's topic, with records that the query must not read, and the sink's."""
        names = [self.spec.source]
        names += [self.spec.target] if self.spec.sink is Sink.TOPIC else []
        with _client(self.spec.servers) as client:
            wanted = [NewTopic(name=name, partitions=PARTITIONS) for name in names]
            for made in client.create_topics(wanted).values():
                or_raise(made)
        self.feed({0: 5, 2: 1})
        self.starts = dict(self.ends)

    def feed(self, counts: dict[int, int]) -> int:
        """Write this many records per partition; each value is its own partition and offset."""
        import pyarrow as pa

        rows = [
            (partition, self.ends[partition] + number)
            for partition, count in counts.items()
            for number in range(count)
        ]
        batch = pa.record_batch(
            {
                "key": pa.array([b"%d" % partition for partition, _ in rows]),
                "value": pa.array([b"%d %d" % row for row in rows]),
                "partition": pa.array([partition for partition, _ in rows], pa.int32()),
            }
        )
        with (
            _client(self.spec.servers) as client,
            client.column_writer(topic=self.spec.source) as writer,
        ):
            writer.write(batch)
            delivered = writer.flush()
        for at, written in delivered.items():
            self.ends[at.partition] += written.records
            if written.last_offset + 1 != self.ends[at.partition]:
                raise ChaosFailed(f"{at} ends at {written.last_offset + 1}: foreign records")
        return len(rows)

    # -- progress

    @property
    def is_caught_up(self) -> bool:
        """Everything that was written is in a committed batch."""
        batch = self.checkpoint.committed
        return batch >= 0 and self.checkpoint.positions(batch, self.spec.source) == self.ends

    @property
    def pending(self) -> int | None:
        """The batch that is logged and not committed, if any."""
        logged = self.checkpoint.logged
        return logged if self.checkpoint.committed < logged else None

    # -- what must be true

    def check(self) -> Counter[str]:
        """Raise ChaosFailed on a difference; return what was compared."""
        from millstream.testing.chaos.spark.hooks import PLAN, TASK_READ, TASK_WRITES

        found = self._found()
        check_nothing_missing(self._expected(), found)
        reads = self.control.reports(self.name, TASK_READ)
        counts = Counter(
            {
                "rows": len(found),
                "batches": self.checkpoint.committed + 1,
                "task reads compared": check_reads(reads),
                "plans compared": check_plans(
                    self.control.reports(self.name, PLAN), self.checkpoint.ends()
                ),
            }
        )
        if self.spec.sink is Sink.FILES:
            check_once(found)
        else:
            writes = self.control.reports(self.name, TASK_WRITES)
            counts["rows written again"] = check_copies(found, reads, writes)
        self.compared = counts
        return counts

    def _expected(self) -> list[Row]:
        return [
            (partition, offset)
            for partition, end in self.ends.items()
            for offset in range(self.starts.get(partition, 0), end)
        ]

    def _found(self) -> Counter[Row]:
        if self.spec.sink is Sink.TOPIC:
            values = _values(self.spec.servers, self.spec.target)
            return Counter(_row(value) for value in values)
        return self._rows_of_files()

    def _rows_of_files(self) -> Counter[Row]:
        import pyarrow.parquet as pq

        found: Counter[Row] = Counter()
        for path in self.manifest.files():
            table = pq.ParquetFile(path).read()
            for one in table.to_pylist():
                row = (one["partition"], one["offset"])
                if _row(one["value"]) != row:
                    raise ChaosFailed(f"I-02 {row} has the value {one['value']}")
                found[row] += 1
        return found


def _client(servers: str) -> BlockingClient:
    return BlockingClient(ClientSettings.from_configs({"bootstrap.servers": servers}))


def _row(value: bytes) -> Row:
    partition, offset = value.split()
    return int(partition), int(offset)


def _values(servers: str, topic: str) -> list[bytes]:
    """The values of all records, read by a client that is not ours."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "chaos",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found: list[bytes] = []
    left = PARTITIONS
    try:
        parts = [TopicPartition(topic, one, OFFSET_BEGINNING) for one in range(PARTITIONS)]
        consumer.assign(parts)
        while left:
            message = consumer.poll(ANSWER_MAX_S)
            if message is None:
                raise ChaosFailed(f"{topic} could not be read to its end")
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            elif error.code() == _PARTITION_END:
                left -= 1
            else:
                raise ChaosFailed(f"{topic} cannot be read: {error}")
    finally:
        consumer.close()
    return found
