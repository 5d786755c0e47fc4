"""Record batches v2 walked, checked and stamped in place; described by `batches.pyi`.

Written apart from the compiled twin, with `struct`, so that an error in one shows against the
other.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.kernels.batch_layout import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    ATTRIBUTES_LOW_AT,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CODEC_MASK,
    CODEC_MAX,
    CRC_AT,
    HEADER_BYTES,
    LAST_OFFSET,
    LEADER_EPOCH,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAGIC_END,
    MAGIC_V2,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_AT,
    OLD_FORMAT_BYTES_MIN,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    ROW_FIELDS,
    SIZE,
    UNCOUNTED_BYTES,
)
from millstream.kernels.errors import MalformedRecords, Reason
from millstream.kernels.outcomes import MALFORMED_HEADER, NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = [
    "ATTRIBUTES",
    "BASE_OFFSET",
    "BASE_SEQUENCE",
    "BASE_TIMESTAMP",
    "HEADER_BYTES",
    "LAST_OFFSET",
    "LEADER_EPOCH",
    "MAX_TIMESTAMP",
    "POSITION",
    "PRODUCER_EPOCH",
    "PRODUCER_ID",
    "RECORD_COUNT",
    "ROW_FIELDS",
    "SIZE",
    "assign_offsets",
    "find_offset",
    "find_timestamp",
    "set_append_time",
    "set_leader_epoch",
    "walk",
]

# base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp,
# max timestamp, producer id, producer epoch, base sequence, record count
_HEADER: Final = Struct(">qiibIhiqqqhii")
_LENGTH: Final = Struct(">i")
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_TIMESTAMP: Final = Struct(">q")

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


def walk(
    buffer: Buffer, start: int, stop: int, *, check_crc: bool, size_max: int
) -> tuple[array[int], int, int]:
    rows = array("q")
    position = start
    with _bytes_of(buffer, start, stop) as view:
        while position < stop:
            size, reason = _claimed_size(view[position:stop], size_max)
            if reason == Reason.NONE and size > stop - position:
                reason = Reason.SHORT
            if reason == Reason.NONE:
                reason = _check(view[position : position + size], check_crc=check_crc)
            if reason != Reason.NONE:
                return rows, position, int(reason)
            rows.extend(_row(view, position, size))
            position += size
    return rows, position, int(Reason.NONE)


def assign_offsets(buffer: Buffer, rows: array[int], base_offset: int, leader_epoch: int) -> int:
    if not 0 <= base_offset <= _INT64_MAX:
        raise ValueError(f"base offset {base_offset}")
    _check_epoch(leader_epoch)
    with memoryview(buffer).cast("B") as view:
        _check_rows(rows, view)
        end_offset = base_offset
        for at in _row_starts(rows):
            end_offset += rows[at + LAST_OFFSET] - rows[at + BASE_OFFSET] + 1
            if end_offset > _INT64_MAX:
                position = rows[at + POSITION]
                raise MalformedRecords(Reason.OFFSETS, position=position, detail="above int64")
        next_offset = base_offset
        for at in _row_starts(rows):
            delta = rows[at + LAST_OFFSET] - rows[at + BASE_OFFSET]
            _OFFSET.pack_into(view, rows[at + POSITION], next_offset)
            _EPOCH.pack_into(view, rows[at + POSITION] + LEADER_EPOCH_AT, leader_epoch)
            rows[at + BASE_OFFSET] = next_offset
            rows[at + LAST_OFFSET] = next_offset + delta
            rows[at + LEADER_EPOCH] = leader_epoch
            next_offset += delta + 1
    return end_offset


def set_leader_epoch(buffer: Buffer, rows: array[int], leader_epoch: int) -> None:
    _check_epoch(leader_epoch)
    with memoryview(buffer).cast("B") as view:
        _check_rows(rows, view)
        for at in _row_starts(rows):
            _EPOCH.pack_into(view, rows[at + POSITION] + LEADER_EPOCH_AT, leader_epoch)
            rows[at + LEADER_EPOCH] = leader_epoch


def set_append_time(buffer: Buffer, rows: array[int], timestamp_ms: int) -> None:
    with memoryview(buffer).cast("B") as view:
        _check_rows(rows, view)
        for at in _row_starts(rows):
            position = rows[at + POSITION]
            view[position + ATTRIBUTES_LOW_AT] |= LOG_APPEND_TIME
            _TIMESTAMP.pack_into(view, position + MAX_TIMESTAMP_AT, timestamp_ms)
            with view[position + ATTRIBUTES_AT : position + rows[at + SIZE]] as covered:
                _CRC.pack_into(view, position + CRC_AT, crc32c(covered))
            rows[at + ATTRIBUTES] |= LOG_APPEND_TIME
            rows[at + MAX_TIMESTAMP] = timestamp_ms


def find_offset(buffer: Buffer, start: int, stop: int, offset: int) -> tuple[int, int]:
    return _find(buffer, start, stop, column=LAST_OFFSET, wanted=offset)


def find_timestamp(buffer: Buffer, start: int, stop: int, timestamp_ms: int) -> tuple[int, int]:
    return _find(buffer, start, stop, column=MAX_TIMESTAMP, wanted=timestamp_ms)


def _find(buffer: Buffer, start: int, stop: int, *, column: int, wanted: int) -> tuple[int, int]:
    position = start
    with _bytes_of(buffer, start, stop) as view:
        while stop - position >= HEADER_BYTES:
            size, reason = _claimed_size(view[position:stop], _INT32_MAX + UNCOUNTED_BYTES)
            if reason != Reason.NONE:
                return position, MALFORMED_HEADER
            row = _row(view, position, size)
            if not 0 <= row[BASE_OFFSET] <= row[LAST_OFFSET] <= _INT64_MAX:
                return position, MALFORMED_HEADER
            if row[column] >= wanted:
                return position, size
            position += size
    return position, NOT_FOUND


def _bytes_of(buffer: Buffer, start: int, stop: int) -> memoryview:
    view = memoryview(buffer).cast("B")
    if not 0 <= start <= stop <= len(view):
        raise ValueError(f"range [{start}, {stop}) of a buffer of {len(view)} bytes")
    return view


def _claimed_size(view: memoryview, size_max: int) -> tuple[int, Reason]:
    """The size that the batch at the start of `view` claims, and the reason to refuse it."""
    if len(view) < UNCOUNTED_BYTES:
        return 0, Reason.SHORT
    size = _LENGTH.unpack_from(view, LENGTH_AT)[0] + UNCOUNTED_BYTES
    if not OLD_FORMAT_BYTES_MIN <= size <= size_max:
        return size, Reason.LENGTH
    if len(view) < MAGIC_END:
        return size, Reason.SHORT
    if view[MAGIC_AT] != MAGIC_V2:
        return size, Reason.MAGIC
    return size, Reason.NONE if size >= HEADER_BYTES else Reason.LENGTH


def _check(batch: memoryview, *, check_crc: bool) -> Reason:
    """The reason to refuse a complete batch."""
    base_offset, _, _, _, crc, attributes, delta, *_, count = _HEADER.unpack_from(batch)
    if check_crc and crc32c(batch[ATTRIBUTES_AT:]) != crc:
        return Reason.CRC
    if base_offset < 0 or delta < 0 or base_offset + delta > _INT64_MAX:
        return Reason.OFFSETS
    if not 0 <= count <= delta + 1:
        return Reason.COUNT
    return Reason.CODEC if attributes & CODEC_MASK > CODEC_MAX else Reason.NONE


def _row(view: memoryview, position: int, size: int) -> tuple[int, ...]:
    base_offset, _, epoch, _, _, attributes, delta, *rest = _HEADER.unpack_from(view, position)
    return (position, size, base_offset, base_offset + delta, epoch, attributes, *rest)


def _row_starts(rows: array[int]) -> Iterator[int]:
    return iter(range(0, len(rows), ROW_FIELDS))


def _check_rows(rows: array[int], view: memoryview) -> None:
    if rows.itemsize != 8 or len(rows) % ROW_FIELDS:
        raise ValueError("rows must be an array('q') of whole rows")
    if view.readonly:
        raise BufferError("Object is not writable.")
    for at in _row_starts(rows):
        position, size, base_offset, last_offset = rows[at : at + 4]
        if not (position >= 0 and size >= HEADER_BYTES and position + size <= len(view)):
            raise ValueError(f"row {at // ROW_FIELDS} lies outside the buffer")
        if base_offset < 0 or not 0 <= last_offset - base_offset <= _INT32_MAX:
            raise ValueError(f"row {at // ROW_FIELDS} has impossible offsets")


def _check_epoch(leader_epoch: int) -> None:
    if not -1 <= leader_epoch <= _INT32_MAX:
        raise ValueError(f"leader epoch {leader_epoch}")
