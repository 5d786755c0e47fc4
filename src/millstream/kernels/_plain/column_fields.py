"""Batch headers and the fields of records, read with struct and slices; for `column_decode`."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.kernels.batch_layout import (
    CONTROL,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAGIC_END,
    MAGIC_V2,
    NULL_SIZE,
    TRANSACTIONAL,
    UNCOUNTED_BYTES,
)
from millstream.kernels.column_types import (
    FLAG_CONTROL,
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
)
from millstream.kernels.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "INT64_MAX", "INT64_MIN", "BadRecord", "Batch", "Value", "batch_at", "headers_at", "value_at",
    "varint_at",
]  # fmt: skip

HEADER: Final = Struct(">qiiBIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp,
max timestamp, producer id, producer epoch, base sequence, record count."""

LENGTH: Final = Struct(">i")
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

Value = bytes | None


class BadRecord(Exception):
    """Becomes MalformedRecords where the position of the batch is known."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


class Batch(NamedTuple):
    """The fields of a batch header in their order on the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def flags(self) -> int:
        return (
            (FLAG_CONTROL if self.attributes & CONTROL else 0)
            | (FLAG_TRANSACTIONAL if self.attributes & TRANSACTIONAL else 0)
            | (FLAG_LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME else 0)
        )


def batch_at(view: memoryview, position: int) -> Batch | None:
    """The header at that position, or None where the bytes end inside the batch."""
    remaining = len(view) - position
    if remaining < MAGIC_END:
        return None
    if view[position + MAGIC_AT] != MAGIC_V2:
        raise BadRecord(Reason.MAGIC)
    (length,) = LENGTH.unpack_from(view, position + LENGTH_AT)
    if UNCOUNTED_BYTES + length < HEADER.size:
        raise BadRecord(Reason.LENGTH)
    if UNCOUNTED_BYTES + length > remaining:
        return None
    batch = Batch._make(HEADER.unpack_from(view, position))
    if batch.base_offset < 0 or batch.last_offset_delta < 0 or batch.last_offset >= INT64_MAX:
        raise BadRecord(Reason.OFFSETS)
    return batch


def varint_at(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """A zigzag number of `bits` bits (Kafka drops those beyond), and where it ends."""
    if at < len(data) and data[at] < 0x80:
        return (data[at] >> 1) ^ -(data[at] & 1), at + 1
    raw = 0
    for shift in range(0, bits, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= (1 << bits) - 1
            return (raw >> 1) ^ -(raw & 1), at
    raise BadRecord(Reason.RECORD)


def value_at(data: bytes, at: int) -> tuple[Value, int]:
    size, at = varint_at(data, at, 32)
    if size == NULL_SIZE:
        return None, at
    if not 0 <= size <= len(data) - at:
        raise BadRecord(Reason.RECORD)
    return data[at : at + size], at + size


def headers_at(data: bytes, at: int) -> Sequence[tuple[Value, Value]]:
    if data[at:] == b"\0":
        return ()
    count, at = varint_at(data, at, 32)
    if not 0 <= count <= (len(data) - at) // 2:
        raise BadRecord(Reason.RECORD)
    headers: list[tuple[Value, Value]] = []
    for _ in range(count):
        key, at = value_at(data, at)
        if key is None:
            raise BadRecord(Reason.RECORD)
        value, at = value_at(data, at)
        headers.append((key, value))
    if at != len(data):
        raise BadRecord(Reason.RECORD)
    return headers
