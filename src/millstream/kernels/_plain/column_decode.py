"""Many record batches into one set of columns; described by `column_decode.pyi`."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

from crc32c import crc32c

from millstream.kernels._plain.column_fields import (
    INT64_MAX,
    INT64_MIN,
    BadRecord,
    Batch,
    Value,
    batch_at,
    headers_at,
    value_at,
    varint_at,
)  # fmt: skip
from millstream.kernels.batch_layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CODEC_MAX,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    RECORD_BYTES_MIN,
    UNCOUNTED_BYTES,
)
from millstream.kernels.column_types import (
    DECODE_DEFAULTS,
    DECODE_ROW_COST,
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

    def add_batch(self, batch: Batch, position: int) -> bool:
        """Take the selected records of a whole batch; False where the budget is spent."""
        stop = position + UNCOUNTED_BYTES + batch.length
        if (
            self.options.check_crc
            and crc32c(self.view[position + ATTRIBUTES_AT : stop]) != batch.crc
        ):
            raise BadRecord(Reason.CRC)
        payload = self._payload(batch, position + HEADER_BYTES, stop)
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

    def _payload(self, batch: Batch, start: int, stop: int) -> bytes:
        codec = batch.attributes & CODEC_MASK
        if codec > CODEC_MAX:
            raise BadRecord(Reason.CODEC)
        if not 0 <= batch.record_count <= batch.last_offset_delta + 1:
            raise BadRecord(Reason.COUNT)
        payload = bytes(self.view[start:stop])
        if codec and payload:
            payload = decompress(codec, payload, self.options.batch_bytes_max)
        if batch.record_count > len(payload) // RECORD_BYTES_MIN:
            raise BadRecord(Reason.COUNT)
        return payload

    def _add_records(self, batch: Batch, payload: bytes) -> None:
        at = 0
        delta_min = 0
        for _ in range(batch.record_count):
            if at == len(payload):
                raise BadRecord(Reason.COUNT)
            size, at = varint_at(payload, at, 32)
            if not 0 <= size <= len(payload) - at:
                raise BadRecord(Reason.RECORD)
            delta = self._add_record(batch, payload[at : at + size], delta_min)
            delta_min = delta + 1
            at += size
        if at != len(payload):
            raise BadRecord(Reason.COUNT)

    def _add_record(self, batch: Batch, record: bytes, delta_min: int) -> int:
        time_delta, at = varint_at(record, 1, 64)
        delta, at = varint_at(record, at, 32)
        key, at = value_at(record, at)
        value, at = value_at(record, at)
        headers = headers_at(record, at) if self.options.with_headers else ()
        if not delta_min <= delta <= batch.last_offset_delta:
            raise BadRecord(Reason.OFFSETS)
        timestamp = batch.base_timestamp + time_delta
        if batch.attributes & LOG_APPEND_TIME:
            timestamp = batch.max_timestamp
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise BadRecord(Reason.RECORD)
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
            batch = batch_at(run.view, position)
            if batch is None:
                break
            if batch.base_offset <= previous_offset:
                raise BadRecord(Reason.OFFSETS)
            previous_offset = batch.last_offset
            is_wanted = (
                batch.last_offset >= options.first_offset and batch.base_offset < run.end_offset
            )
            if is_wanted and not run.add_batch(batch, position):
                break
            if batch.last_offset >= run.end_offset:
                next_offset = run.end_offset
                break
            position += UNCOUNTED_BYTES + batch.length
            next_offset = max(next_offset, batch.last_offset + 1)
    except BadRecord as error:
        raise MalformedRecords(error.reason, position=position) from None
    except MalformedRecords as error:
        raise MalformedRecords(error.reason, position=position, detail=str(error)) from error
    return run.decoded(position, next_offset)


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
