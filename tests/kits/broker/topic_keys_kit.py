"""A running broker whose settings are changed over the wire, and what can be seen of the effect.

A key is turned through a `Lever`: as the topic's own setting, or as the default of all brokers for
topics without one. The same effect must follow from both.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch
from millstream.kernels import batches
from millstream.kernels.compression import Codec
from millstream.kernels.errors import Reason
from millstream.model.config.resources import ResourceType
from millstream.model.config.topic_keys import TOPIC_KEYS
from millstream.model.limits import BATCH_BYTES_MAX
from millstream.testing.broker_thread import BrokerThread
from millstream.testing.record_batches import BatchSpec, Pair, PlainRecord, read_records
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.messages.produce import PartitionProduceResponse

SET, DELETE = 0, 1
EARLIEST: Final = -2
APPEND_TIME_BIT: Final = 0b1000

QUICK: Final = {
    "log.retention.check.interval.ms": "30",
    "log.cleaner.backoff.ms": "30",
    "log.flush.offset.checkpoint.interval.ms": "30",
    "log.cleaner.dedupe.buffer.size": "1048576",
    "log.level": "ERROR",
}
"""What a broker does by the clock, it does at once."""

CLEANED_AT_ONCE: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "400",
    "flush.messages": "1",  # only what is durable is cleaned
}
"""A compacted topic whose batches, of about three hundred bytes, have a segment each."""

Test = TypeVar("Test", bound=Callable[..., None])


def effect_of(*keys: str) -> Callable[[Test], Test]:
    """Marks the test that sees these keys have their effect; `keys_with_a_test` reads the marks."""
    del keys
    return lambda test: test


def keys_with_a_test(directory: Path, pattern: str) -> list[str]:
    """The keys that tests in these files are marked with, from their source."""
    found: list[str] = []
    for path in sorted(directory.glob(pattern)):
        for marks in re.findall(r"^@effect_of\((.*?)\)", path.read_text(), re.MULTILINE | re.S):
            found += re.findall(r'"([^"]+)"', marks)
    return found


class StoredBatch(NamedTuple):
    """A batch as it lies in a segment file."""

    codec: Codec
    is_append_time: bool
    base_offset: int
    size_bytes: int
    max_timestamp_ms: int


class Bench:
    """One broker with a client; every topic has a name of its own."""

    def __init__(self, broker: BrokerThread) -> None:
        self.broker = broker
        self.client = WireClient(broker.bootstrap_servers)
        self._numbers = count()

    def topic(self, configs: dict[str, str] | None = None, *, partitions: int = 1) -> str:
        name = f"topic{next(self._numbers)}"
        given = {key.replace(".", "_"): value for key, value in (configs or {}).items()}
        self.client.create_topic(name, partitions, **given)
        return name

    # -- settings --------------------------------------------------------------------------

    def alter(self, kind: ResourceType, name: str, key: str, value: str | None) -> None:
        """Set a key, or remove it; the broker must agree."""
        code, text = self.try_alter(kind, name, key, value)
        assert code is ErrorCode.NONE, text

    def try_alter(
        self, kind: ResourceType, name: str, key: str, value: str | None
    ) -> tuple[ErrorCode, str | None]:
        operation = DELETE if value is None else SET
        config = AlterableConfig(name=key, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        answer = self.client.send(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        (one,) = answer.responses
        return ErrorCode(one.error_code), one.error_message

    def alter_topic(self, topic: str, **values: str | None) -> None:
        """Several keys of a topic, with underscores for dots."""
        for key, value in values.items():
            self.alter(ResourceType.TOPIC, topic, key.replace("_", "."), value)

    # -- records ---------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        pairs: Sequence[Pair] = ((b"key", b"value"),),
        *,
        timestamp_ms: int | None = None,
        partition: int = 0,
        codec: Codec = Codec.NONE,
    ) -> PartitionProduceResponse:
        """One batch, from now unless told otherwise; whatever the answer is."""
        stamp_ms = wall_ms() if timestamp_ms is None else timestamp_ms
        batch = build_batch(pairs, BatchSpec(timestamp_ms=stamp_ms, codec=codec))
        answer = self.client.produce(topic, bytes(batch), partition=partition)
        one: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return one

    def put(
        self,
        topic: str,
        pairs: Sequence[Pair] = ((b"key", b"value"),),
        *,
        timestamp_ms: int | None = None,
        partition: int = 0,
    ) -> int:
        """One batch that must be taken; its offset."""
        answer = self.produce(topic, pairs, timestamp_ms=timestamp_ms, partition=partition)
        assert answer.error_code == 0, answer
        return answer.base_offset

    def code(self, topic: str, pairs: Sequence[Pair], timestamp_ms: int | None = None) -> ErrorCode:
        return ErrorCode(self.produce(topic, pairs, timestamp_ms=timestamp_ms).error_code)

    def records(self, topic: str, *, partition: int = 0) -> list[PlainRecord]:
        """All that a consumer sees from the log's start; a fetch brings one segment."""
        at = self.log_start(topic, partition=partition)
        read: list[PlainRecord] = []
        while True:
            found = self.client.fetch(topic, at, partition=partition).responses[0].partitions[0]
            if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:  # retention was faster
                return self.records(topic, partition=partition)
            assert found.error_code == 0
            data = bytes(found.records or b"")
            if not data:
                return read
            read += [record for record in read_records(data) if record.offset >= at]
            at = _rows(data)[-1][batches.LAST_OFFSET] + 1  # compaction leaves empty batches

    def log_start(self, topic: str, *, partition: int = 0) -> int:
        part = ListOffsetsPartition(partition_index=partition, timestamp=EARLIEST)
        asked = ListOffsetsTopic(name=topic, partitions=[part])
        answer = self.client.send(ListOffsetsRequest(replica_id=-1, topics=[asked]), 6)
        return int(answer.topics[0].partitions[0].offset)

    def delete_records(self, topic: str, before: int) -> None:
        parts = [DeleteRecordsPartition(partition_index=0, offset=before)]
        asked = DeleteRecordsTopic(name=topic, partitions=parts)
        answer = self.client.send(DeleteRecordsRequest(topics=[asked], timeout_ms=5000), 2)
        assert answer.topics[0].partitions[0].error_code == 0

    # -- files -----------------------------------------------------------------------------

    def files(self, topic: str, suffix: str = ".log", *, partition: int = 0) -> list[Path]:
        directory = self.broker.data_directory / f"{topic}-{partition}"
        return sorted(path for path in directory.iterdir() if path.name.endswith(suffix))

    def segments(self, topic: str, *, partition: int = 0) -> int:
        return len(self.files(topic, partition=partition))

    def stored(self, topic: str) -> list[StoredBatch]:
        """The batches as they lie on disk, CRC checked."""
        found: list[StoredBatch] = []
        for path in self.files(topic):
            for row in _rows(path.read_bytes()):
                attributes = row[batches.ATTRIBUTES]
                found.append(
                    StoredBatch(
                        Codec(attributes & 0b111),
                        bool(attributes & APPEND_TIME_BIT),
                        row[batches.BASE_OFFSET],
                        row[batches.SIZE],
                        row[batches.MAX_TIMESTAMP],
                    )
                )
        return found

    # -- compaction ------------------------------------------------------------------------

    def put_versions(self, topic: str, key: bytes, versions: int = 3, *, age_ms: int = 0) -> None:
        """Several values of a key and one of another; in closed segments when the topic is small.

        Values are large enough that no two batches of them share a segment of 400 bytes.
        """
        for number in range(versions):
            value = b"%d" % number * 200
            self.put(topic, [(key, value)], timestamp_ms=wall_ms() - age_ms)
        self.put(topic, [(b"rest", b"r" * 200)], timestamp_ms=wall_ms() - age_ms)

    def values_of(self, topic: str, key: bytes) -> list[bytes | None]:
        return [record.value for record in self.records(topic) if record.key == key]

    def until_compacted(self, topic: str, key: bytes) -> None:
        until(lambda: len(self.values_of(topic, key)) == 1, f"{topic} is compacted")

    def let_the_cleaner_pass(self) -> None:
        """Another log is cleaned from its beginning: whatever else was due has had its turn.

        The cleaner takes the dirtiest first, so one that is cleaned after something was written
        shows that the cleaner looked at everything since.
        """
        for _ in range(2):
            witness = self.topic({**CLEANED_AT_ONCE, "min.compaction.lag.ms": "0"})
            self.put_versions(witness, b"w")
            self.until_compacted(witness, b"w")


class Lever(NamedTuple):
    """Where a topic's key is turned."""

    bench: Bench
    is_default: bool
    """Through the broker's key, for topics without their own, not through the topic's."""

    def set(self, topic: str, key: str, value: str | None) -> None:
        if self.is_default:
            self.bench.alter(ResourceType.BROKER, "", TOPIC_KEYS[key].synonyms[0], value)
        else:
            self.bench.alter(ResourceType.TOPIC, topic, key, value)

    def remove(self, topic: str, key: str) -> None:
        self.set(topic, key, None)

    @contextmanager
    def turned(self, topic: str, key: str, value: str) -> Iterator[None]:
        """The setting holds inside the block and is gone after it."""
        self.set(topic, key, value)
        try:
            yield
        finally:
            self.remove(topic, key)


@contextmanager
def running_bench(settings: dict[str, str] | None = None) -> Iterator[Bench]:
    with BrokerThread({**QUICK, **(settings or {})}) as broker:
        bench = Bench(broker)
        try:
            yield bench
        finally:
            bench.client.socket.close()


def _rows(data: bytes) -> list[list[int]]:
    """One row for each batch of bytes that must be nothing else."""
    rows, end, reason = batches.walk(data, 0, len(data), check_crc=True, size_max=BATCH_BYTES_MAX)
    assert (end, Reason(reason)) == (len(data), Reason.NONE)
    width = batches.ROW_FIELDS
    return [list(rows[at : at + width]) for at in range(0, len(rows), width)]


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
