"""Which task reads what: offset ranges split by `minPartitions`, `maxRecordsPerPartition`.

The arithmetic is exactly the connector's, so that a query keeps its tasks when it changes the
connector, and a pure function of its arguments, so that a replayed batch has the same tasks: the
exactly-once sink identifies the rows that a task wrote by the task's number.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from millstream.model.ids import Offset, TopicPartition
from millstream.pipelines.errors import RangeInvalid

RANGES_MAX: Final = 100_000
"""Tasks of one batch. `maxRecordsPerPartition` of 1 on a full topic would need millions."""


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition, read by one task."""

    topic: str
    partition: int
    start: Offset
    end: Offset
    starts_at_earliest: bool = False
    """The query starts at `earliest`: a start that expires meanwhile is not lost data."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Offsets, which may be more than records: compaction and markers leave gaps."""
        return self.end - self.start


def split_ranges(
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Ranges for tasks, in the order of `ranges`. Empty and negative ranges are left out."""
    parts = [one for one in ranges if one.size > 0]
    if max_records_per_partition is not None:
        parts = _split_by_size(parts, max_records_per_partition)
    if min_partitions is not None and min_partitions > len(parts):
        parts = _split_by_count(parts, min_partitions)
    return parts


def _split_by_size(ranges: Sequence[OffsetRange], records_max: int) -> list[OffsetRange]:
    counts = [math.ceil(one.size / records_max) for one in ranges]
    return _divided(ranges, counts, f"maxRecordsPerPartition of {records_max}")


def _split_by_count(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Ranges whose share is one task stay whole and are left out; the others are divided."""
    total = sum(one.size for one in ranges)
    whole = [one for one in ranges if _part_count(one.size, total, min_partitions) == 1]
    # By partition, not by range: a partition that was split by size stays as it is when one of its
    # parts is small. The connector does the same.
    whole_partitions = {one.topic_partition for one in whole}
    rest = total - sum(one.size for one in whole)
    parts_left = max(min_partitions - len(whole), 1)
    counts = [
        1 if one.topic_partition in whole_partitions else _part_count(one.size, rest, parts_left)
        for one in ranges
    ]
    return _divided(ranges, counts, f"minPartitions of {min_partitions}")


def _part_count(size: int, total: int, parts: int) -> int:
    # Half rounds up, as in Java; Python's round() would take the even neighbour.
    return max(math.floor(size / total * parts + 0.5), 1)


def _divided(
    ranges: Sequence[OffsetRange], counts: Sequence[int], option_text: str
) -> list[OffsetRange]:
    if sum(counts) > RANGES_MAX:
        raise RangeInvalid(
            f"{option_text} would need {sum(counts)} tasks in one batch, at most {RANGES_MAX} are "
            "allowed; change it, or limit the batch with maxOffsetsPerTrigger"
        )
    return [
        part
        for one, count in zip(ranges, counts, strict=True)
        for part in _split_range(one, count)
        if part.size > 0
    ]


def _split_range(whole: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """`count` parts in order; sizes differ by at most one, the larger ones come last."""
    start = whole.start
    for parts_left in range(count, 0, -1):
        end = Offset(start + (whole.end - start) // parts_left)
        is_first = start == whole.start
        yield whole._replace(
            start=start, end=end, starts_at_earliest=whole.starts_at_earliest and is_first
        )
        start = end
