"""Keys of the offsets topic: two bytes for the type of the record, then the fields.

What Kafka once called the version of the key is the type of the record; only offsets have two
types, the first (0) with the same fields and meaning as today's (1). For types that are unknown
here (share groups, streams groups, later ones) `decode_key` returns None.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception
from typing import Final, NamedTuple, TypeVar

from millstream.model.ids import GroupId, MemberId
from millstream.wire.primitives import INT16, MalformedFrame, read_string, write_string

INT32: Final = Struct(">i")

LEGACY_OFFSET_KIND: Final = 0
OFFSET_KIND: Final = 1


T = TypeVar("T", bound=tuple[object, ...])


def _distinct(made: type[T]) -> type[T]:
    """Tuples of different classes can be equal, but groups of the two protocols must differ."""

    def is_same(self: T, other: object) -> bool:
        return type(other) is type(self) and tuple.__eq__(self, other)

    def is_other(self: T, other: object) -> bool:
        return not is_same(self, other)

    made.__eq__ = is_same  # type: ignore[assignment]
    made.__ne__ = is_other  # type: ignore[assignment]
    return made


class OffsetKey(NamedTuple):
    """The committed offset of a group in one partition."""

    group_id: GroupId
    topic: str
    partition: int


@_distinct
class ClassicGroupKey(NamedTuple):
    """A group of the classic protocol, with its members."""

    group_id: GroupId


@_distinct
class ConsumerGroupKey(NamedTuple):
    """The epoch of a group of the consumer protocol."""

    group_id: GroupId


@_distinct
class ConsumerPartitionMetadataKey(NamedTuple):
    """Topic metadata of such a group. Kafka has written none since 4.1, only tombstones."""

    group_id: GroupId


@_distinct
class ConsumerMemberKey(NamedTuple):
    """A member of such a group, and its subscription."""

    group_id: GroupId
    member_id: MemberId


@_distinct
class TargetAssignmentKey(NamedTuple):
    """The group epoch that the target assignment was computed for."""

    group_id: GroupId


@_distinct
class TargetMemberKey(NamedTuple):
    """The target assignment of a member."""

    group_id: GroupId
    member_id: MemberId


@_distinct
class CurrentAssignmentKey(NamedTuple):
    """The partitions that a member owns, and those it has yet to revoke."""

    group_id: GroupId
    member_id: MemberId


@_distinct
class RegularExpressionKey(NamedTuple):
    """The topics that a pattern of the group matches."""

    group_id: GroupId
    expression: str


GroupOnlyKey = (
    ClassicGroupKey | ConsumerGroupKey | ConsumerPartitionMetadataKey | TargetAssignmentKey
)
MemberKey = ConsumerMemberKey | TargetMemberKey | CurrentAssignmentKey
Key = OffsetKey | GroupOnlyKey | MemberKey | RegularExpressionKey

KINDS: Final[dict[type[Key], int]] = {
    OffsetKey: OFFSET_KIND,
    ClassicGroupKey: 2,
    ConsumerGroupKey: 3,
    ConsumerPartitionMetadataKey: 4,
    ConsumerMemberKey: 5,
    TargetAssignmentKey: 6,
    TargetMemberKey: 7,
    CurrentAssignmentKey: 8,
    RegularExpressionKey: 16,
}
"""The type number of each."""

K = TypeVar("K", bound=Key)
_Read = Callable[[memoryview, int], tuple[Key, int]]


def encode_key(key: Key) -> bytes:
    """The bytes that compaction compares. ValueError for a string too long for Kafka's format."""
    if not isinstance(key, OffsetKey):
        return _prefix(KINDS[type(key)], *key)
    try:
        return _prefix(OFFSET_KIND, key.group_id, key.topic) + INT32.pack(key.partition)
    except StructError:
        raise ValueError(f"{key.partition} is not a partition number") from None


@lru_cache(maxsize=4096)
def _prefix(kind: int, *texts: str) -> bytes:
    """Cached, because the same groups commit in the same topics all the time."""
    out = bytearray(INT16.pack(kind))
    for text in texts:
        write_string(out, text)
    return bytes(out)


def decode_key(raw: bytes | bytearray | memoryview) -> Key | None:
    """The key, or None for an unknown type. Raises MalformedFrame."""
    view = memoryview(raw)
    if len(view) < INT16.size:
        raise MalformedFrame(f"a key of {len(view)} bytes")
    (kind,) = INT16.unpack_from(view)
    read = _READERS.get(kind)
    return None if read is None else _decode_whole(view, read)


def decode_offset_key(raw: bytes) -> OffsetKey:
    """The key of an offset; the caller has checked the type."""
    return _decode_whole(memoryview(raw), _offset)


def _decode_whole(view: memoryview, read: Callable[[memoryview, int], tuple[K, int]]) -> K:
    try:
        key, at = read(view, INT16.size)
    except StructError:
        raise MalformedFrame("a key that is cut off") from None
    if at != len(view):
        raise MalformedFrame(f"a key with {len(view) - at} bytes left", at=at)
    return key


def _offset(view: memoryview, at: int) -> tuple[OffsetKey, int]:
    group_id, at = read_string(view, at)
    topic, at = read_string(view, at)
    (partition,) = INT32.unpack_from(view, at)
    return OffsetKey(GroupId(group_id), topic, partition), at + INT32.size


def _strings(made: Callable[..., Key], count: int) -> _Read:
    """Keys of all types but offsets have only strings."""

    def read(view: memoryview, at: int) -> tuple[Key, int]:
        texts = []
        for _ in range(count):
            text, at = read_string(view, at)
            texts.append(text)
        return made(*texts), at

    return read


def _readers() -> dict[int, _Read]:
    readers: dict[int, _Read] = {
        kind: _strings(made, len(made._fields)) for made, kind in KINDS.items()
    }
    return readers | {LEGACY_OFFSET_KIND: _offset, OFFSET_KIND: _offset}


_READERS: Final = _readers()
