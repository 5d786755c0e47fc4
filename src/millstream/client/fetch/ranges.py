"""Checks the ranges that users pass, before any request.

Invalid ranges are refused at the call: after the first request they would be errors of the
protocol, or bugs of ours, which do not say which number was wrong.
"""

from collections.abc import Iterable
from typing import Any, Final

from millstream.client.errors import RangeInvalid
from millstream.client.fetch.chunks import ReadRange
from millstream.model.ids import Offset, TopicPartition

OFFSET_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1


def checked_ranges(ranges: Iterable[ReadRange]) -> list[ReadRange]:
    """The ranges with TopicPartitions; raises RangeInvalid or TypeError."""
    wanted = [_checked(one) for one in ranges]
    seen: set[TopicPartition] = set()
    for one in wanted:
        if one.partition in seen:
            raise RangeInvalid(
                f"{one.partition} is given twice: a read has one range for each partition"
            )
        seen.add(one.partition)
        _check_offset(one, "start", one.start)
        if one.end is not None:
            _check_offset(one, "end", one.end)
    return wanted


def _checked(given: Any) -> ReadRange:
    if not isinstance(given, ReadRange):
        raise TypeError(f"a range must be ReadRange(partition, start, end), not {given!r}")
    return given._replace(partition=partition_of(given.partition))


def partition_of(given: Any) -> TopicPartition:
    """From a topic's name and a number, also as a tuple; raises TypeError or RangeInvalid."""
    match given:
        case (str() as topic, int() as index) if not isinstance(index, bool):
            if not 0 <= index <= _PARTITION_MAX:
                raise RangeInvalid(f"{topic!r} has no partition {index}: they are numbered from 0")
            return TopicPartition(topic, index)
    raise TypeError(f"a partition must be TopicPartition(topic, number), not {given!r}")


def _check_offset(one: ReadRange, name: str, offset: Offset) -> None:
    if not isinstance(offset, int):
        raise TypeError(f"the {name} offset of {one.partition} must be an int, not {offset!r}")
    if not 0 <= offset <= OFFSET_MAX:
        raise RangeInvalid(
            f"{one.partition}: invalid {name} offset {offset}; offsets are 0 to {OFFSET_MAX} (use"
            " list_offsets for the earliest and latest)"
        )
