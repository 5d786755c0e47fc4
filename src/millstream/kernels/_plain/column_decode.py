"""Many record batches into one set of columns; described by `column_decode.pyi`."""

from __future__ import annotations

from array import array
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from millstream.kernels.column_types import (
    DECODE_DEFAULTS,
    DECODE_ROW_COST,
    FLAG_CONTROL,
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
    BinaryColumn,
    Decoded,
    DecodeOptions,
    HeaderColumn,
    RecordColumns,
    flat_view,
)
from millstream.kernels.compression import decompress
from millstream.kernels.errors import MalformedRecords, Reason

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["decode"]

HEADER: Final = Struct(">qiiBIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp,
max timestamp, producer id, producer epoch, base sequence, record count."""

LENGTH: Final = Struct(">i")
LENGTH_POSITION: Final = 8
LENGTH_END: Final = 12
MAGIC_POSITION: Final = 16
CRC_END: Final = 21
RECORD_BYTES_MIN: Final = 7
CODEC_MAX: Final = 4
INT64_MAX: Final = 2**63 - 1

Value = bytes | None


class _BadRecord(Exception):
    # Becomes MalformedRecords where the position of the batch is known.
    def __init__(self, reason: Reason) -> None:
        self.reason = reason


class _Batch(NamedTuple):
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
            (FLAG_CONTROL if self.attributes & 0x20 else 0)
            | (FLAG_TRANSACTIONAL if self.attributes & 0x10 else 0)
            | (FLAG_LOG_APPEND_TIME if self.attributes & 0x08 else 0)
        )


class _Run:
    """The columns of one call as Python lists, until they become buffers."""

    def __init__(self, view: memoryview, options: DecodeOptions) -> None:
        self.view = view
        self.options = options
        self.end_offset = INT64_MAX if options.end_offset is None else options.end_offset
        self.spent = 0
        self.offsets = array("q")
        self.timestamps = array("q")
        self.flags = bytearray()
        self.keys: list[Value] = []
        self.values: list[Value] = []
        self.header_ends = array("i", (0,))
        self.header_keys: list[Value] = []
        self.header_values: list[Value] = []
        self.batches = array("q")

    def add_batch(self, batch: _Batch, position: int) -> bool:
        """Take the wanted records of a whole batch; False where the budget is spent."""
        stop = position + LENGTH_END + batch.length
        if self.options.check_crc and crc32c(self.view[position + CRC_END : stop]) != batch.crc:
            raise _BadRecord(Reason.CRC)
        payload = self._payload(batch, position + HEADER.size, stop)
        cost = len(payload) + DECODE_ROW_COST * batch.record_count
        if self.batches and self.spent + cost > self.options.bytes_max:
            return False
        self.spent += cost
        row_start = len(self.offsets)
        self._add_records(batch, payload)
        row_stop = len(self.offsets)
        self.flags += bytes((batch.flags,)) * (row_stop - row_start)
        self.batches.extend(
            (row_start, row_stop, batch.base_offset, batch.last_offset, batch.producer_id)
        )
        self.batches.extend((batch.producer_epoch, batch.attributes, batch.leader_epoch))
        return True

    def _payload(self, batch: _Batch, start: int, stop: int) -> bytes:
        codec = batch.attributes & 7
        if codec > CODEC_MAX:
            raise _BadRecord(Reason.CODEC)
        if not 0 <= batch.record_count <= batch.last_offset_delta + 1:
            raise _BadRecord(Reason.COUNT)
        payload = bytes(self.view[start:stop])
        if codec and payload:
            payload = decompress(codec, payload, self.options.batch_bytes_max)
        if batch.record_count > len(payload) // RECORD_BYTES_MIN:
            raise _BadRecord(Reason.COUNT)
        return payload

    def _add_records(self, batch: _Batch, payload: bytes) -> None:
        at = 0
        delta_min = 0
        for _ in range(batch.record_count):
            if at == len(payload):
                raise _BadRecord(Reason.COUNT)
            size, at = _varint(payload, at, 32)
            if not 0 <= size <= len(payload) - at:
                raise _BadRecord(Reason.RECORD)
            delta = self._add_record(batch, payload[at : at + size], delta_min)
            delta_min = delta + 1
            at += size
        if at != len(payload):
            raise _BadRecord(Reason.COUNT)

    def _add_record(self, batch: _Batch, record: bytes, delta_min: int) -> int:
        time_delta, at = _varint(record, 1, 64)
        delta, at = _varint(record, at, 32)
        key, at = _value(record, at)
        value, at = _value(record, at)
        headers = _headers(record, at) if self.options.with_headers else []
        if not delta_min <= delta <= batch.last_offset_delta:
            raise _BadRecord(Reason.OFFSETS)
        timestamp = batch.base_timestamp + time_delta
        if batch.flags & FLAG_LOG_APPEND_TIME:
            timestamp = batch.max_timestamp
        if not -INT64_MAX - 1 <= timestamp <= INT64_MAX:
            raise _BadRecord(Reason.RECORD)
        offset = batch.base_offset + delta
        if self.options.first_offset <= offset < self.end_offset:
            self.offsets.append(offset)
            self.timestamps.append(timestamp)
            self.keys.append(key)
            self.values.append(value)
            for header_key, header_value in headers:
                self.header_keys.append(header_key)
                self.header_values.append(header_value)
            self.header_ends.append(len(self.header_keys))
        return delta

    def decoded(self, position: int, next_offset: int) -> Decoded:
        headers = None
        if self.options.with_headers:
            headers = HeaderColumn(
                list_offsets=self.header_ends.tobytes(),
                rows=len(self.header_keys),
                keys=_column(self.header_keys),
                values=_column(self.header_values),
            )
        return Decoded(
            columns=RecordColumns(
                rows=len(self.offsets),
                timestamps=self.timestamps.tobytes(),
                keys=_column(self.keys),
                values=_column(self.values),
                headers=headers,
            ),
            offsets=self.offsets.tobytes(),
            flags=bytes(self.flags),
            batches=self.batches,
            position=position,
            next_offset=next_offset,
        )


def decode(
    buffer: Buffer, start: int, stop: int, options: DecodeOptions = DECODE_DEFAULTS
) -> Decoded:
    view = flat_view(buffer, 0, "buffer")
    if not 0 <= start <= stop <= len(view):
        raise ValueError(f"[{start}, {stop}) is not inside a buffer of {len(view)} bytes")
    run = _Run(view[:stop], options)
    position, next_offset, previous_offset = start, options.first_offset, -1
    try:
        while next_offset < run.end_offset:
            batch = _batch_at(run.view, position)
            if batch is None:
                break
            if batch.base_offset <= previous_offset:
                raise _BadRecord(Reason.OFFSETS)
            previous_offset = batch.last_offset
            is_wanted = (
                batch.last_offset >= options.first_offset and batch.base_offset < run.end_offset
            )
            if is_wanted and not run.add_batch(batch, position):
                break
            if batch.last_offset >= run.end_offset:
                next_offset = run.end_offset
                break
            position += LENGTH_END + batch.length
            next_offset = max(next_offset, batch.last_offset + 1)
    except _BadRecord as error:
        raise MalformedRecords(error.reason, position=position) from None
    except MalformedRecords as error:
        raise MalformedRecords(error.reason, position=position, detail=str(error)) from error
    return run.decoded(position, next_offset)


def _batch_at(view: memoryview, position: int) -> _Batch | None:
    """The header there, or None where the bytes end inside the batch."""
    remaining = len(view) - position
    if remaining <= MAGIC_POSITION:
        return None
    if view[position + MAGIC_POSITION] != 2:
        raise _BadRecord(Reason.MAGIC)
    (length,) = LENGTH.unpack_from(view, position + LENGTH_POSITION)
    if LENGTH_END + length < HEADER.size:
        raise _BadRecord(Reason.LENGTH)
    if LENGTH_END + length > remaining:
        return None
    batch = _Batch._make(HEADER.unpack_from(view, position))
    if batch.base_offset < 0 or batch.last_offset_delta < 0 or batch.last_offset >= INT64_MAX:
        raise _BadRecord(Reason.OFFSETS)
    return batch


def _varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """A zigzag number of `bits` bits (Kafka drops those beyond), and where it ends."""
    raw = 0
    for shift, byte in zip(range(0, bits, 7), data[at : at + 10], strict=False):
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw %= 1 << bits
            return (raw >> 1) ^ -(raw & 1), at
    raise _BadRecord(Reason.RECORD)


def _value(data: bytes, at: int) -> tuple[Value, int]:
    size, at = _varint(data, at, 32)
    if size == -1:
        return None, at
    if not 0 <= size <= len(data) - at:
        raise _BadRecord(Reason.RECORD)
    return data[at : at + size], at + size


def _headers(data: bytes, at: int) -> list[tuple[Value, Value]]:
    count, at = _varint(data, at, 32)
    if not 0 <= count <= (len(data) - at) // 2:
        raise _BadRecord(Reason.RECORD)
    headers: list[tuple[Value, Value]] = []
    for _ in range(count):
        key, at = _value(data, at)
        if key is None:
            raise _BadRecord(Reason.RECORD)
        value, at = _value(data, at)
        headers.append((key, value))
    if at != len(data):
        raise _BadRecord(Reason.RECORD)
    return headers


def _column(values: list[Value]) -> BinaryColumn:
    ends = array("i", accumulate((len(value or b"") for value in values), initial=0))
    validity = None
    if None in values:
        bits = bytearray((len(values) + 7) // 8)
        for row, value in enumerate(values):
            if value is not None:
                bits[row >> 3] |= 1 << (row & 7)
        validity = bytes(bits)
    data = b"".join(value for value in values if value)
    return BinaryColumn(offsets=ends.tobytes(), data=data, validity=validity)
