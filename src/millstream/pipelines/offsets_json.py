"""The JSON of Spark's Kafka connector for offsets, timestamps and partitions.

Offsets: `{"topicA":{"0":23,"1":-1}}`, in options and in checkpoints. Partitions:
`{"topicA":[0,1]}`. The connector reads what is written here, and the other way round. Parsing is
stricter where the connector guesses: it takes the last of two equal keys, truncates 23.5 to 23,
reads null as 0, lets numbers above 64 bits wrap, and ignores text after the document. Each of those
is a typing mistake that would start a query at the wrong offset, so each is an error here.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn, TypeVar

from millstream.model.ids import Offset, TimestampMs, TopicPartition
from millstream.model.limits import OFFSET_MAX
from millstream.pipelines.errors import OffsetsInvalid

Document = dict[str, dict[str, int]]
"""Offsets as Spark's Python API passes them."""

PARTITION_MAX: Final = 2**31 - 1
"""Partition numbers are signed 32-bit on the wire."""

EARLIEST_OFFSET: Final = Offset(-2)
LATEST_OFFSET: Final = Offset(-1)

OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":1700000000000,"1":1700000000000}}'
PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[2]}'

_Result = TypeVar("_Result")

# "01" and "+1" name partition 1 a second time.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


class _Refused(Exception):
    """What is wrong with a part; the caller adds the whole text."""


def offsets_from_text(text: str) -> dict[TopicPartition, Offset]:
    """Offsets of an option; -1 is latest and -2 earliest."""
    return _read(text, OFFSETS_EXAMPLE, lambda found: _offsets(found, lowest=EARLIEST_OFFSET))


def timestamps_from_text(text: str) -> dict[TopicPartition, TimestampMs]:
    """Timestamps of an option. On the wire, negative ones would mean latest and earliest."""
    found = _read(text, TIMESTAMPS_EXAMPLE, lambda found: _offsets(found, lowest=0))
    return {partition: TimestampMs(value) for partition, value in found.items()}


def partitions_from_text(text: str) -> frozenset[TopicPartition]:
    """Partitions of the option `assign`."""
    return _read(text, PARTITIONS_EXAMPLE, _partitions)


def offsets_from_document(document: Mapping[str, object]) -> dict[TopicPartition, Offset]:
    """Offsets as they come back from a checkpoint: resolved, so none is negative."""
    try:
        return _offsets(document, lowest=0)
    except _Refused as refused:
        text = json.dumps(document, default=str)
        raise OffsetsInvalid(str(refused), text, OFFSETS_EXAMPLE) from None


def document_from_offsets(offsets: Mapping[TopicPartition, int]) -> Document:
    """Sorted, so that equal offsets are equal text: Spark compares the text."""
    document: Document = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def text_from_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """As the connector writes them: without blanks."""
    return _compact(document_from_offsets(offsets))


def text_from_partitions(partitions: Iterable[TopicPartition]) -> str:
    """As the option `assign` takes them."""
    document: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        document.setdefault(topic, []).append(partition)
    return _compact(document)


def _compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))


def _read(text: str, example: str, convert: Callable[[object], _Result]) -> _Result:
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
        return convert(found)
    except _Refused as refused:
        raise OffsetsInvalid(str(refused), text, example) from None
    except ValueError as error:
        raise OffsetsInvalid(f"not JSON ({error})", text, example) from None
    except RecursionError:
        raise OffsetsInvalid("nested too deeply", text, example) from None


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _Refused(f'"{key}" occurs twice')
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not a valid number")


def _mapping(found: object, what: str) -> Mapping[str, object]:
    if not isinstance(found, Mapping):
        raise _Refused(f"{what} is not a JSON object")
    return found


def _offsets(found: object, *, lowest: int) -> dict[TopicPartition, Offset]:
    offsets = {}
    for topic, by_partition in _mapping(found, "the whole").items():
        for key, value in _mapping(by_partition, f'"{topic}"').items():
            if not _PARTITION.fullmatch(key) or int(key) > PARTITION_MAX:
                raise _Refused(f'"{key}" of "{topic}" is not a partition number')
            whole = _whole(value, f'partition {key} of "{topic}"')
            if not lowest <= whole <= OFFSET_MAX:
                raise _Refused(f'{whole} of partition {key} of "{topic}" is out of bounds')
            offsets[TopicPartition(topic, int(key))] = Offset(whole)
    return offsets


def _partitions(found: object) -> frozenset[TopicPartition]:
    partitions = set()
    for topic, numbers in _mapping(found, "the whole").items():
        if not isinstance(numbers, list):
            raise _Refused(f'"{topic}" is not a list')
        for number in numbers:
            partition = TopicPartition(topic, _whole(number, f'a partition of "{topic}"'))
            if not 0 <= partition.partition <= PARTITION_MAX:
                raise _Refused(f'{number} of "{topic}" is not a partition number')
            if partition in partitions:
                raise _Refused(f'{number} of "{topic}" occurs twice')
            partitions.add(partition)
    return frozenset(partitions)


def _whole(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Refused(f"{what} is not an integer")
    return value
