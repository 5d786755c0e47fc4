"""Single records inside one batch's payload, checked, located and filtered; see `records.pyi`.

Written apart from the compiled twin, so that an error in one shows against the other.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.kernels.batch_layout import (
    INT_VARINT_BYTES_MAX,
    KEY_BYTES,
    KEY_START,
    LONG_VARINT_BYTES_MAX,
    NULL_SIZE,
    OFFSET_DELTA,
    RECORD_BYTES_MIN,
    SPAN_FIELDS,
    START,
    STOP,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
)
from millstream.kernels.errors import MalformedRecords, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = [
    "KEY_BYTES",
    "KEY_START",
    "OFFSET_DELTA",
    "SPAN_FIELDS",
    "START",
    "STOP",
    "TIMESTAMP_DELTA",
    "VALUE_BYTES",
    "inspect",
    "locate",
    "retain",
    "seek",
]

_ATTRIBUTES_BYTES: Final = 1


class _Span(NamedTuple):
    start: int
    stop: int
    offset_delta: int
    timestamp_delta: int
    key_start: int
    key_bytes: int
    value_bytes: int


def inspect(
    payload: Buffer, start: int, stop: int, count: int, *, contiguous: bool
) -> tuple[int, int, int, int, int]:
    timestamp_deltas: list[int] = []
    offset_deltas: list[int] = []
    null_keys = 0
    with _bytes_of(payload, start, stop) as view:
        try:
            for span in _spans(view, start, stop, count):
                if contiguous and span.offset_delta != len(offset_deltas):
                    raise MalformedRecords(Reason.OFFSETS, position=span.start)
                timestamp_deltas.append(span.timestamp_delta)
                offset_deltas.append(span.offset_delta)
                null_keys += span.key_bytes == NULL_SIZE
        except MalformedRecords as error:
            return int(error.reason), 0, 0, -1, 0
    if not timestamp_deltas:
        return int(Reason.NONE), 0, 0, -1, 0
    newest = max(timestamp_deltas)
    newest_at = offset_deltas[timestamp_deltas.index(newest)]
    return int(Reason.NONE), min(timestamp_deltas), newest, newest_at, null_keys


def seek(
    payload: Buffer,
    start: int,
    stop: int,
    count: int,
    *,
    offset_min: int,
    time_min: int,
) -> tuple[int, int, int, int] | None:
    with _bytes_of(payload, start, stop) as view:
        position = start
        for index in range(count):
            if position == stop:
                break
            span = _read_record(view, position, stop)
            is_late = span.timestamp_delta >= time_min
            if is_late and span.offset_delta >= offset_min:
                return index, span.start, span.offset_delta, span.timestamp_delta
            position = span.stop
    return None


def locate(payload: Buffer, start: int, stop: int, count: int) -> array[int]:
    spans = array("q")
    with _bytes_of(payload, start, stop) as view:
        if count > (stop - start) // RECORD_BYTES_MIN:
            raise _wrong_count(count, start)
        for span in _spans(view, start, stop, count):
            spans.extend(span)
    return spans


def retain(payload: Buffer, spans: array[int], keep: Buffer) -> bytes:
    if spans.itemsize != 8 or len(spans) % SPAN_FIELDS:
        raise ValueError("spans must be an array('q') of whole spans")
    kept = []
    floor = 0
    with memoryview(payload).cast("B") as view, memoryview(keep).cast("B") as flags:
        if len(flags) != len(spans) // SPAN_FIELDS:
            raise ValueError(f"{len(flags)} flags for {len(spans) // SPAN_FIELDS} records")
        for flag, at in zip(flags, range(0, len(spans), SPAN_FIELDS), strict=True):
            start, stop = spans[at + START], spans[at + STOP]
            if not floor <= start <= stop <= len(view):
                raise ValueError(f"span {at // SPAN_FIELDS} lies outside the payload")
            floor = stop
            if flag:
                kept.append(bytes(view[start:stop]))
    return b"".join(kept)


def _bytes_of(payload: Buffer, start: int, stop: int) -> memoryview:
    view = memoryview(payload).cast("B")
    if not 0 <= start <= stop <= len(view):
        raise ValueError(f"range [{start}, {stop}) is outside the payload")
    return view


def _spans(view: memoryview, start: int, stop: int, count: int) -> Iterator[_Span]:
    """The `count` records that fill view[start:stop], offsets strictly increasing."""
    position = start
    offset_delta_min = 0
    for _ in range(count):
        if position == stop:
            raise _wrong_count(count, position)
        span = _read_record(view, position, stop)
        if span.offset_delta < offset_delta_min:
            raise MalformedRecords(Reason.OFFSETS, position=position)
        yield span
        offset_delta_min = span.offset_delta + 1
        position = span.stop
    if count < 0 or position != stop:
        raise _wrong_count(count, position)


def _wrong_count(count: int, position: int) -> MalformedRecords:
    return MalformedRecords(Reason.COUNT, position=position, detail=f"{count} records")


def _read_record(view: memoryview, start: int, payload_stop: int) -> _Span:
    try:
        size, position = _read_varint(view, start, payload_stop, INT_VARINT_BYTES_MAX)
        stop = position + size
        if size < _ATTRIBUTES_BYTES or stop > payload_stop:
            raise _WrongBytes
        position += _ATTRIBUTES_BYTES
        timestamp_delta, position = _read_varint(view, position, stop, LONG_VARINT_BYTES_MAX)
        offset_delta, position = _read_varint(view, position, stop, INT_VARINT_BYTES_MAX)
        key_start, key_bytes, position = _read_sized(view, position, stop)
        _, value_bytes, position = _read_sized(view, position, stop)
        if _skip_headers(view, position, stop) != stop:
            raise _WrongBytes
    except _WrongBytes:
        raise MalformedRecords(Reason.RECORD, position=start) from None
    return _Span(start, stop, offset_delta, timestamp_delta, key_start, key_bytes, value_bytes)


class _WrongBytes(Exception):
    pass


def _read_varint(view: memoryview, position: int, stop: int, bytes_max: int) -> tuple[int, int]:
    """The zigzag number at `position`, and where the next byte is."""
    value = 0
    for index, byte in enumerate(view[position : min(stop, position + bytes_max)]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            # Kafka drops the bits that its int or long cannot hold.
            value &= 0xFFFF_FFFF if bytes_max == INT_VARINT_BYTES_MAX else 0xFFFF_FFFF_FFFF_FFFF
            return (value >> 1) ^ -(value & 1), position + index + 1
    raise _WrongBytes


def _read_sized(view: memoryview, position: int, stop: int) -> tuple[int, int, int]:
    """Start and length of the bytes at `position` (-1 and -1 for null), and what follows them."""
    size, position = _read_varint(view, position, stop, INT_VARINT_BYTES_MAX)
    if size == NULL_SIZE:
        return NULL_SIZE, NULL_SIZE, position
    if not 0 <= size <= stop - position:
        raise _WrongBytes
    return position, size, position + size


def _skip_headers(view: memoryview, position: int, stop: int) -> int:
    count, position = _read_varint(view, position, stop, INT_VARINT_BYTES_MAX)
    if not 0 <= count <= stop - position:
        raise _WrongBytes
    for _ in range(count):
        _, key_bytes, position = _read_sized(view, position, stop)
        if key_bytes == NULL_SIZE:
            raise _WrongBytes
        _, _, position = _read_sized(view, position, stop)
    return position
