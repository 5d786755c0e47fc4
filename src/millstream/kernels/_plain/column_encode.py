"""Columns into record batches; described by `column_encode.pyi`."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.kernels.batch_layout import (
    HEADER_BYTES,
    MAGIC_V2,
    NULL_SIZE,
    SEQUENCE_MASK,
    UNCOUNTED_BYTES,
)
from millstream.kernels.column_types import (
    BATCH_DEFAULTS,
    BatchOptions,
    BinaryColumn,
    RecordColumns,
    flat_view,
)
from millstream.kernels.compression import compress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = ["encode", "encode_many", "rows_that_fit"]

UNCHECKED: Final = Struct(">qiibI")
"""Base offset, length, leader epoch, magic, CRC: what the CRC does not cover."""
CHECKED: Final = Struct(">hiqqqhii")
"""Attributes, last offset delta, base timestamp, max timestamp, producer id and epoch, base
sequence, record count."""

BATCH_BYTES_MAX: Final = 2**31 - 1 + UNCOUNTED_BYTES
ROWS_MAX: Final = 2**60
INT64: Final = range(-(2**63), 2**63)


class _Spans:
    """The spans [begin, end) of a variable-size column; None for a null."""

    def __init__(
        self, offsets: Buffer, validity: Buffer | None, *, first: int, rows: int, what: str
    ) -> None:
        if first not in range(2**31) or rows not in range(ROWS_MAX):
            raise ValueError(f"{what} cannot begin at {first} and have {rows} rows")
        view = flat_view(offsets, 4 * (first + rows + 1), what)
        self._offsets = view[4 * first : 4 * (first + rows + 1)].cast("i")
        self._validity = None
        if validity is not None:
            self._validity = flat_view(validity, (first + rows + 7) // 8, what)
        self._first = first
        self._what = what

    def at(self, row: int, end_max: int) -> tuple[int, int] | None:
        bit = self._first + row
        if self._validity is not None and not self._validity[bit >> 3] >> (bit & 7) & 1:
            return None
        begin, end = self._offsets[row], self._offsets[row + 1]
        if not 0 <= begin <= end <= end_max:
            raise ValueError(f"{self._what} offsets of row {row} are wrong")
        return begin, end


class _Values:
    """A binary column, or nulls where there is none."""

    def __init__(self, column: BinaryColumn | None, rows: int, what: str) -> None:
        self._spans = None
        if column is not None:
            self._spans = _Spans(
                column.offsets, column.validity, first=column.first, rows=rows, what=what
            )
            self._data = flat_view(column.data, 0, what)

    def at(self, row: int) -> bytes | None:
        if self._spans is None:
            return None
        span = self._spans.at(row, len(self._data))
        return None if span is None else bytes(self._data[span[0] : span[1]])


class _Source:
    """The records of the columns, one at a time."""

    def __init__(self, columns: RecordColumns, selection: Buffer | None) -> None:
        if columns.rows not in range(ROWS_MAX):
            raise ValueError(f"columns cannot have {columns.rows} rows")
        self._rows = columns.rows
        timestamps = flat_view(columns.timestamps, 8 * columns.rows, "timestamps")
        self._timestamps = timestamps[: 8 * columns.rows].cast("q")
        self._keys = _Values(columns.keys, columns.rows, "keys")
        self._values = _Values(columns.values, columns.rows, "values")
        self._selection = None
        self.count = columns.rows
        if selection is not None:
            chosen = flat_view(selection, 0, "selection")
            self._selection = chosen[: len(chosen) // 8 * 8].cast("q")
            self.count = len(self._selection)
        self._headers = headers = columns.headers
        if headers is not None:
            self._lists = _Spans(
                headers.list_offsets,
                headers.validity,
                first=headers.first,
                rows=columns.rows,
                what="headers",
            )
            self._header_keys = _Values(headers.keys, headers.rows, "header keys")
            self._header_values = _Values(headers.values, headers.rows, "header values")

    def timestamp_at(self, index: int) -> int:
        return self._timestamps[self._row_at(index)]

    def record_at(self, index: int, *, delta: int, base_timestamp: int) -> bytes:
        row = self._row_at(index)
        time_delta = self._timestamps[row] - base_timestamp
        if time_delta not in INT64:
            raise ValueError(f"timestamps {base_timestamp} and {self._timestamps[row]} in a batch")
        parts = [b"\0", _varint(time_delta), _varint(delta)]
        parts += [*_field(self._keys.at(row)), *_field(self._values.at(row))]
        headers = list(self._headers_of(row))
        parts.append(_varint(len(headers)))
        for key, value in headers:
            parts += [*_field(key), *_field(value)]
        body = b"".join(parts)
        return _varint(len(body)) + body

    def _headers_of(self, row: int) -> Iterator[tuple[bytes, bytes | None]]:
        span = self._lists.at(row, self._headers.rows) if self._headers else None
        for index in range(*(span or (0, 0))):
            key = self._header_keys.at(index)
            if key is None:
                raise ValueError(f"header {index} of row {row} has no key")
            yield key, self._header_values.at(index)

    def _row_at(self, index: int) -> int:
        if self._selection is None:
            return index
        row = self._selection[index]
        if not 0 <= row < self._rows:
            raise ValueError(f"selected row {row} of {self._rows}")
        return row


def encode(
    columns: RecordColumns,
    start: int,
    stop: int,
    options: BatchOptions = BATCH_DEFAULTS,
    *,
    selection: Buffer | None = None,
) -> bytearray:
    if start == stop:
        raise ValueError("a batch of no records")
    batches = encode_many(
        columns, start, stop, options, size_max=BATCH_BYTES_MAX, selection=selection
    )
    if len(batches) != 1:
        raise ValueError(f"{stop - start} records are more than one batch can hold")
    return batches[0][0]


def encode_many(
    columns: RecordColumns,
    start: int,
    stop: int,
    options: BatchOptions = BATCH_DEFAULTS,
    *,
    size_max: int,
    selection: Buffer | None = None,
) -> list[tuple[bytearray, int]]:
    source = _checked_source(columns, start, stop, selection)
    batches: list[tuple[bytearray, int]] = []
    offset, sequence = options.base_offset, options.base_sequence
    while start < stop:
        records = _records_that_fit(source, start, stop, size_max)
        timestamps = [source.timestamp_at(start + row) for row in range(len(records))]
        batches.append((_sealed(records, timestamps, options, offset, sequence), len(records)))
        start += len(records)
        offset += len(records)
        # Sequences wrap from the largest int32 to zero.
        sequence = sequence if sequence < 0 else (sequence + len(records)) & SEQUENCE_MASK
    return batches


def rows_that_fit(
    columns: RecordColumns,
    start: int,
    stop: int,
    *,
    size_max: int,
    selection: Buffer | None = None,
) -> int:
    source = _checked_source(columns, start, stop, selection)
    return len(_records_that_fit(source, start, stop, size_max)) if start < stop else 0


def _checked_source(
    columns: RecordColumns, start: int, stop: int, selection: Buffer | None
) -> _Source:
    source = _Source(columns, selection)
    if not 0 <= start <= stop <= source.count:
        raise ValueError(f"[{start}, {stop}) is not inside {source.count} rows")
    return source


def _records_that_fit(source: _Source, start: int, stop: int, size_max: int) -> list[bytes]:
    records: list[bytes] = []
    used = HEADER_BYTES
    base_timestamp = source.timestamp_at(start)
    for index in range(start, stop):
        record = source.record_at(index, delta=index - start, base_timestamp=base_timestamp)
        used += len(record)
        if used > size_max and records:
            break
        if used > BATCH_BYTES_MAX:
            raise ValueError("a record is larger than a batch can be")
        records.append(record)
    return records


def _sealed(
    records: list[bytes], timestamps: list[int], options: BatchOptions, offset: int, sequence: int
) -> bytearray:
    payload = b"".join(records)
    if options.codec:
        payload = compress(options.codec, payload, options.level)
    append_time_ms = options.append_time_ms
    checked = CHECKED.pack(
        options.attributes,
        len(records) - 1,
        timestamps[0],
        max(timestamps) if append_time_ms is None else append_time_ms,
        options.producer_id,
        options.producer_epoch,
        sequence,
        len(records),
    )
    size = HEADER_BYTES + len(payload)
    if size > BATCH_BYTES_MAX:
        raise ValueError("a compressed batch is larger than a batch can be")
    crc = crc32c(payload, crc32c(checked))
    unchecked = UNCHECKED.pack(offset, size - UNCOUNTED_BYTES, options.leader_epoch, MAGIC_V2, crc)
    return bytearray().join((unchecked, checked, payload))


def _field(value: bytes | None) -> tuple[bytes, bytes]:
    return (_varint(NULL_SIZE), b"") if value is None else (_varint(len(value)), value)


def _varint(value: int) -> bytes:
    raw = value << 1 ^ value >> 63
    if raw < 0x80:
        return bytes((raw,))
    parts = bytearray()
    while raw >= 0x80:
        parts.append(raw & 0x7F | 0x80)
        raw >>= 7
    parts.append(raw)
    return bytes(parts)
