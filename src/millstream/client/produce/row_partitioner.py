"""Assigns rows to partitions, and encodes the rows of each partition as record batches.

A row without a key goes to the partition of the last one until that got a full batch (KIP-480,
KIP-794), then to one chosen at random among those with a leader: batches are full, and brokers get
equal shares over time.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millstream.client.errors import RecordTooLarge, TopicUnknown
from millstream.client.metadata import TopicInfo
from millstream.client.produce.batches import Batch, Origin, Source
from millstream.client.produce.errors import ColumnInvalid, PartitionInvalid
from millstream.client.produce.rows import Rows
from millstream.kernels.columns import BatchOptions, RecordColumns, encode_many
from millstream.kernels.partitioner import assign, group, stick
from millstream.model.ids import TopicPartition
from millstream.runtime.randomness import Randomness
from millstream.wire.errors import ErrorCode

_LIMIT_MIN: Final = 1024
"""Batches are not made smaller than this, even if a topic refuses larger ones."""


class SpreadRules(NamedTuple):
    """Sizes and encoding of batches."""

    batch_bytes: int
    """Before compression."""
    record_bytes_max: int
    """A larger record is refused."""
    options: BatchOptions


class _Sticky:
    """The current partition for rows of a topic without a key."""

    __slots__ = ("bytes_left", "partition")

    def __init__(self) -> None:
        self.partition = -1
        self.bytes_left = 0


class Spreader:
    """Keeps the sticky partitions from batch to batch; one thread at a time."""

    def __init__(self, rules: SpreadRules, randomness: Randomness) -> None:
        self._rules = rules
        self._randomness = randomness
        self._sticky: dict[str, _Sticky] = {}
        self._limits: dict[str, int] = {}

    def too_large(self, topic: str, size: int) -> None:
        """A batch of that size was refused: later ones of the topic are smaller."""
        self._limits[topic] = min(self._batch_bytes(topic), max(_LIMIT_MIN, size // 2))

    def _batch_bytes(self, topic: str) -> int:
        return self._limits.get(topic, self._rules.batch_bytes)

    def check(self, rows: Rows, topics: Mapping[str, TopicInfo]) -> None:
        """Raise the errors that `spread` would raise about partitions."""
        if rows.partitions is not None:
            self._assign(rows, _infos(rows, topics))

    def spread(self, rows: Rows, topics: Mapping[str, TopicInfo], source: Source) -> list[Batch]:
        """The batches of all rows; nothing is kept of them when it raises."""
        infos = _infos(rows, topics)
        try:
            if rows.columns.keys is None and rows.partitions is None and len(infos) == 1:
                return self._without_keys(rows.columns, infos[0], source)
            return self._grouped(rows, infos, source)
        except ValueError as error:
            raise ColumnInvalid("value", f"the rows cannot be encoded: {error}") from None

    def _without_keys(self, columns: RecordColumns, info: TopicInfo, source: Source) -> list[Batch]:
        """Encode runs of rows for one partition each, without work per row."""
        batches, start = [], 0
        size_max = self._batch_bytes(info.name)
        made = encode_many(columns, 0, columns.rows, self._rules.options, size_max=size_max)
        for data, count in made:
            partition = self._stuck(info).partition
            to = TopicPartition(info.name, partition)
            batches.append(
                self._batch(to, data, count, Origin(source, range(start, start + count)))
            )
            start += count
            is_full = start < columns.rows
            self._use(info, size_max if is_full else len(data))
        return batches

    def _grouped(self, rows: Rows, infos: Sequence[TopicInfo], source: Source) -> list[Batch]:
        columns = rows.columns
        places, without = self._assign(rows, infos)
        if without:
            self._stick(places, rows, infos)
        place_count = sum(info.partition_count for info in infos)
        selection, bounds = group(places, columns.rows, place_count)
        numbers = memoryview(selection).cast("q")
        batches, place = [], 0
        for info in infos:
            size_max = self._batch_bytes(info.name)
            for partition in range(info.partition_count):
                start, stop = bounds[place], bounds[place + 1]
                place += 1
                if start == stop:
                    continue
                made = encode_many(
                    columns,
                    start,
                    stop,
                    self._rules.options,
                    size_max=size_max,
                    selection=selection,
                )
                to = TopicPartition(info.name, partition)
                for data, count in made:
                    origin = Origin(source, numbers[start : start + count])
                    batches.append(self._batch(to, data, count, origin))
                    start += count
        return batches

    def _assign(self, rows: Rows, infos: Sequence[TopicInfo]) -> tuple[bytearray, int]:
        counts = array("i", [info.partition_count for info in infos])
        places, without, wrong = assign(
            rows.columns.rows,
            counts,
            topics=rows.topics.indices,
            explicit=rows.partitions,
            keys=rows.columns.keys,
        )
        if wrong >= 0:
            raise _wrong_partition(rows, infos, wrong)
        return places, without

    # -- rows without a key

    def _stick(self, places: bytearray, rows: Rows, infos: Sequence[TopicInfo]) -> None:
        base = 0
        for topic, info in enumerate(infos):
            start = 0
            while start < rows.columns.rows:
                stuck = self._stuck(info)
                start, used = stick(
                    places,
                    rows.columns,
                    topic=topic,
                    target=base + stuck.partition,
                    start=start,
                    bytes_max=stuck.bytes_left,
                )
                self._use(info, used)
            base += info.partition_count

    def _stuck(self, info: TopicInfo) -> _Sticky:
        """Where the next rows go, with at least a byte left."""
        stuck = self._sticky.setdefault(info.name, _Sticky())
        is_there = stuck.partition < info.partition_count
        if stuck.bytes_left <= 0 or not is_there or not _has_leader(info, stuck.partition):
            every = range(info.partition_count)
            led = [one for one in every if _has_leader(info, one)]
            stuck.partition = self._randomness.choice(led or every)
            stuck.bytes_left = self._batch_bytes(info.name)
        return stuck

    def _use(self, info: TopicInfo, used: int) -> None:
        self._sticky[info.name].bytes_left -= used

    # -- batches

    def _batch(self, to: TopicPartition, data: bytearray, count: int, origin: Origin) -> Batch:
        limit = self._rules.record_bytes_max
        if len(data) > limit and count == 1:
            raise RecordTooLarge(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{to}, {origin}",
                f"the record makes a batch of {len(data)} bytes, and max.request.size is {limit}",
                write_and_row=origin.write_and_row,
            )
        return Batch(to, data, count, origin)


def _has_leader(info: TopicInfo, partition: int) -> bool:
    return partition >= 0 and info.partitions[partition].leader is not None


def _infos(rows: Rows, topics: Mapping[str, TopicInfo]) -> list[TopicInfo]:
    infos = [topics[name] for name in rows.topics.names]
    for info in infos:
        if not info.partition_count:
            raise TopicUnknown(info.name)
    return infos


def _wrong_partition(rows: Rows, infos: Sequence[TopicInfo], row: int) -> PartitionInvalid:
    indices, column = rows.topics.indices, rows.partitions
    topic = 0 if indices is None else memoryview(indices).cast("B").cast("i")[row]
    wanted = -1
    if column is not None:
        wanted = memoryview(column.values).cast("B")[: 4 * (column.first + row + 1)].cast("i")[-1]
    info = infos[topic]
    return PartitionInvalid(
        row, topic=info.name, partition=wanted, partition_count=info.partition_count
    )
