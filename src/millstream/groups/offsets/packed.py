"""A committed offset as a few bytes.

A coordinator holds a million of them and reads a thousand: the size of each matters, and that the
garbage collector does not traverse it. So each is one `bytes`: a header, then only the fields it
has (a topic id; or an expiry of its own or metadata, with all fields before them).
"""

from struct import Struct
from typing import Final, NamedTuple, NewType
from uuid import UUID

from millstream.groups.records.values import FIXED_OFFSET, TOPIC_ID_TAG, OffsetCommitValue
from millstream.wire.fields import NO_UUID
from millstream.wire.values import uuid_of

Packed = NewType("Packed", bytes)

_HEAD: Final = Struct(">qqqi")  # record offset, committed offset, commit time, leader epoch
_OFFSET_AT: Final = 8
_TIMESTAMP_AT: Final = 16
_TOPIC_ID_AT: Final = _HEAD.size
_EXPIRY_AT: Final = _TOPIC_ID_AT + 16
_TEXT_AT: Final = _EXPIRY_AT + 8

_INT64: Final = Struct(">q")


class CommittedOffset(NamedTuple):
    """The fields of a Packed."""

    record_offset: int
    """The offset of its record in the log: of two, the later one is valid."""
    offset: int
    commit_timestamp_ms: int
    leader_epoch: int
    """-1 if the client did not know it."""
    topic_id: UUID
    """NO_UUID if the client used the name."""
    expire_timestamp_ms: int
    """-1 except for clients that set a retention of their own (OffsetCommit up to v4)."""
    metadata: str


def pack(record_offset: int, value: OffsetCommitValue) -> Packed:
    """Pack the value that the log has at `record_offset`."""
    head = _HEAD.pack(record_offset, value.offset, value.commit_timestamp, value.leader_epoch)
    if not value.metadata and value.expire_timestamp == -1:
        return Packed(head + value.topic_id.bytes if value.topic_id.int else head)
    expiry = _INT64.pack(value.expire_timestamp)
    return Packed(head + value.topic_id.bytes + expiry + value.metadata.encode())


def pack_fixed(record_offset: int, raw: bytes) -> Packed | None:
    """Fast path from the bytes of the log for the fixed layout; None for any other.

    The result is exactly that of decoding and `pack`.
    """
    if len(raw) != FIXED_OFFSET.size and len(raw) != FIXED_OFFSET.size + 18:
        return None
    version, offset, leader_epoch, length, timestamp, tags = FIXED_OFFSET.unpack_from(raw)
    if version != 4 or length != 1 or tags != (len(raw) > FIXED_OFFSET.size):
        return None
    head = _HEAD.pack(record_offset, offset, timestamp, leader_epoch)
    if not tags:
        return Packed(head)
    topic_id = raw[FIXED_OFFSET.size + 2 :]
    if raw[FIXED_OFFSET.size : FIXED_OFFSET.size + 2] != TOPIC_ID_TAG or not any(topic_id):
        return None
    return Packed(head + topic_id)


def unpack(packed: Packed) -> CommittedOffset:
    """Unpack all fields."""
    record_offset, offset, timestamp_ms, leader_epoch = _HEAD.unpack_from(packed)
    topic_id, expiry, text = NO_UUID, -1, ""
    if len(packed) >= _EXPIRY_AT:
        topic_id = uuid_of(packed[_TOPIC_ID_AT:_EXPIRY_AT])
    if len(packed) >= _TEXT_AT:
        (expiry,) = _INT64.unpack_from(packed, _EXPIRY_AT)
        text = packed[_TEXT_AT:].decode()
    return CommittedOffset(
        record_offset, offset, timestamp_ms, leader_epoch, topic_id, expiry, text
    )


def topic_id_of(packed: Packed) -> bytes:
    """The id of the topic it was committed for; empty if the client used the name."""
    raw = packed[_TOPIC_ID_AT:_EXPIRY_AT]
    return raw if any(raw) else b""


def is_expired(packed: Packed, *, base_ms: int | None, wall_ms: int, retention_ms: int) -> bool:
    """Whether its retention is over, from `base_ms` or from its own commit.

    If it was committed with an expiry of its own, only that is used.
    """
    if len(packed) >= _TEXT_AT:
        (expiry,) = _INT64.unpack_from(packed, _EXPIRY_AT)
        if expiry != -1:
            return bool(wall_ms >= expiry)
    if base_ms is None:
        (base_ms,) = _INT64.unpack_from(packed, _TIMESTAMP_AT)
    return wall_ms - base_ms >= retention_ms


def record_offset_of(packed: Packed) -> int:
    """The offset of its record in the log."""
    (record_offset,) = _INT64.unpack_from(packed)
    return int(record_offset)


def offset_of(packed: Packed) -> int:
    """The committed offset."""
    (offset,) = _INT64.unpack_from(packed, _OFFSET_AT)
    return int(offset)
