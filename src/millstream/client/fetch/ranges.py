"""Ranges as users wrote them, looked at before anything is asked for.

What cannot be is refused where it was said: behind the first request it would be an error of the
protocol, or of our own, and nobody could tell from it which number was wrong.
"""

from collections.abc import Iterable
from typing import Any, Final

from millstream.client.errors import RangeInvalid
from millstream.client.fetch.chunks import ReadRange
from millstream.model.ids import Offset, TopicPartition

OFFSET_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1


def checked_ranges(ranges: Iterable[ReadRange]) -> list[ReadRange]:
    """The ranges with partitions as such; raises RangeInvalid or TypeError."""
    wanted = [_checked(one) for one in ranges]
    seen: set[TopicPartition] = set()
    for one in wanted:
        if one.partition in seen:
            raise RangeInvalid(
                f"{one.partition} is wanted twice: a read has one range of each partition"
            )
        seen.add(one.partition)
        _check_offset(one, "start", one.start)
        if one.end is not None:
            _check_offset(one, "end", one.end)
    return wanted


def _checked(given: Any) -> ReadRange:
    if not isinstance(given, ReadRange):
        raise TypeError(f"a range is ReadRange(partition, start, end), not {given!r}")
    return given._replace(partition=partition_of(given.partition))


def partition_of(given: Any) -> TopicPartition:
    """A topic's name and a number, also as a plain pair; raises TypeError or RangeInvalid."""
    match given:
        case (str() as topic, int() as index) if not isinstance(index, bool):
            if not 0 <= index <= _PARTITION_MAX:
                raise RangeInvalid(f"{topic!r} has no partition {index}: they count from 0")
            return TopicPartition(topic, index)
    raise TypeError(f"a partition is TopicPartition(topic, number), not {given!r}")


def _check_offset(one: ReadRange, name: str, offset: Offset) -> None:
    if not isinstance(offset, int):
        raise TypeError(f"the {name} offset of {one.partition} is a number, not {offset!r}")
    if not 0 <= offset <= OFFSET_MAX:
        raise RangeInvalid(
            f"{one.partition}: the {name} offset {offset} cannot be; offsets are 0 to {OFFSET_MAX}"
            " (ask list_offsets where the log begins and ends)"
        )
