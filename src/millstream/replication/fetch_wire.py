"""A follower's Fetch requests and responses as bytes, versions 15-18.

One `struct` per partition; records stay views of the response.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple, TypeVar

from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from millstream.replication.follower import FetchedPart, FetchPosition
from millstream.storage.epochs import EpochEnd
from millstream.wire.primitives import (
    MalformedFrame,
    read_unsigned_varint,
    write_compact_length,
)

VERSIONS: Final = range(15, 19)
"""From version 15 on a follower sends its broker epoch (KIP-903)."""

T = TypeVar("T")

FollowedKey = tuple[bytes, int]
"""A topic's id and a partition."""

_HEAD: Final = Struct(">iiibii")
_PARTITION: Final = Struct(">iiqiqiB")
_REPLICA: Final = Struct(">BBBiqB")
"""One tagged field (number 1) with its size, replica id and epoch, and no tags inside."""
_INT32: Final = Struct(">i")
_ANSWER: Final = Struct(">ihi")
_FACTS: Final = Struct(">ihqqq")
_DIVERGING: Final = Struct(">iq")

_ID_BYTES: Final = 16
_ABORTED_BYTES: Final = 17
_DIVERGING_TAG: Final = 0


class FetchLimits(NamedTuple):
    """How much to fetch, and how long the leader may wait for it."""

    wait_max_ms: int = 500
    bytes_min: int = 1
    bytes_max: int = 10 * 1024 * 1024
    """Of a whole response."""
    partition_bytes_max: int = 1024 * 1024


class FetchAnswer(NamedTuple):
    """The head of a response, and an iterator over its partitions that can be consumed once."""

    error: int
    session_id: int
    parts: Iterator[tuple[FollowedKey, FetchedPart]]


def encode(
    limits: FetchLimits,
    replica: tuple[BrokerId, BrokerEpoch],
    session: tuple[int, int],
    *,
    positions: Sequence[tuple[FollowedKey, FetchPosition]],
    forgotten: Sequence[FollowedKey],
) -> bytes:
    """Encode the request body. Partitions of one topic should be adjacent."""
    out = bytearray(_HEAD.pack(limits.wait_max_ms, limits.bytes_min, limits.bytes_max, 0, *session))
    groups = _by_topic((key[0], (key[1], one)) for key, one in positions)
    write_compact_length(out, len(groups))
    for topic, ones in groups:
        out += topic
        write_compact_length(out, len(ones))
        for index, one in ones:
            out += _PARTITION.pack(
                index,
                one.leader_epoch,
                one.offset,
                one.last_epoch,
                one.log_start,
                limits.partition_bytes_max,
                0,
            )
        out.append(0)
    left = _by_topic(forgotten)
    write_compact_length(out, len(left))
    for topic, indexes in left:
        out += topic
        write_compact_length(out, len(indexes))
        for index in indexes:
            out += _INT32.pack(index)
        out.append(0)
    write_compact_length(out, 0)  # no rack
    out += _REPLICA.pack(1, 1, _REPLICA.size - 3, *replica, 0)
    return bytes(out)


def _by_topic(pairs: Iterable[tuple[bytes, T]]) -> list[tuple[bytes, list[T]]]:
    groups: list[tuple[bytes, list[T]]] = []
    for topic, one in pairs:
        if not groups or groups[-1][0] != topic:
            groups.append((topic, []))
        groups[-1][1].append(one)
    return groups


def decode(body: memoryview) -> FetchAnswer:
    """Decode a response; raises MalformedFrame, as does iterating over the parts."""
    try:
        _, error, session_id = _ANSWER.unpack_from(body, 0)
    except struct_error as problem:
        raise MalformedFrame(f"a fetch response of {len(body)} bytes") from problem
    return FetchAnswer(error, session_id, _parts(body))


def _parts(body: memoryview) -> Iterator[tuple[FollowedKey, FetchedPart]]:
    cursor = _Cursor(body, _ANSWER.size)
    try:
        for _ in range(cursor.count()):
            topic = bytes(cursor.take(_ID_BYTES))
            for _ in range(cursor.count()):
                index, part = cursor.part()
                yield (topic, index), part
            cursor.tags()
        cursor.tags()
    except (struct_error, IndexError) as problem:
        raise MalformedFrame(f"a fetch response ends too early at byte {cursor.at}") from problem


class _Cursor:
    """A read position in a response."""

    __slots__ = ("at", "view")

    def __init__(self, view: memoryview, at: int) -> None:
        self.view = view
        self.at = at

    def varint(self) -> int:
        value, self.at = read_unsigned_varint(self.view, self.at)
        return value

    def count(self) -> int:
        """The length of an array; null is read as empty."""
        count = max(0, self.varint() - 1)
        if count > len(self.view) - self.at:
            raise MalformedFrame(f"an array of {count} items at byte {self.at}")
        return count

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self.view):
            raise MalformedFrame(f"{size} bytes needed at byte {self.at} of {len(self.view)}")
        found = self.view[self.at : end]
        self.at = end
        return found

    def part(self) -> tuple[int, FetchedPart]:
        index, error, high_watermark, _, log_start = _FACTS.unpack_from(self.view, self.at)
        self.at += _FACTS.size
        self.take(self.count() * _ABORTED_BYTES)  # a follower finds them in the records itself
        self.take(_INT32.size)  # no preferred replica for followers
        records = self.take(self.count())
        diverging = None
        for tag, value in self.tagged():
            if tag == _DIVERGING_TAG:
                epoch, end = _DIVERGING.unpack_from(value, 0)
                diverging = EpochEnd(LeaderEpoch(epoch), Offset(end))
        return index, FetchedPart(error, high_watermark, log_start, diverging, records)

    def tagged(self) -> Iterator[tuple[int, memoryview]]:
        for _ in range(self.varint()):
            tag = self.varint()
            yield tag, self.take(self.varint())

    def tags(self) -> None:
        for _ in self.tagged():
            pass
