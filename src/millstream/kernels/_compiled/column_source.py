"""Columns read row by row as records: measured, then written. The loop inside `encode`.

Not a kernel of its own: the C layout is in `column_source.pxd`, and only `column_encode`
and `partitioner` use it.
The caller's columns are not trusted: `measure` checks every offset against its buffer and raises
ValueError before a byte is read, `write` then repeats what was measured.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.millstream.kernels._compiled.column_buffers import Held, load32

from millstream.kernels.column_types import flat_view

__all__ = ["Source", "Spans"]

p_u8 = cython.typedef(cython.pointer[uint8_t])
pp_u8 = cython.typedef(cython.pointer[p_u8])

# Variables: with constants `encode` is laid out worse, by 2 %.
NULL_VALUE = cython.declare(int64_t, -1)
WRONG = cython.declare(int64_t, -2)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _load64(at: p_u8) -> int64_t:
    value: int64_t
    memcpy(cython.address(value), at, 8)
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _zigzag(value: int64_t) -> uint64_t:
    return (cython.cast(uint64_t, value) << 1) ^ cython.cast(uint64_t, value >> 63)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_bytes(value: int64_t) -> int64_t:
    raw: uint64_t = _zigzag(value)
    size: int64_t = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(to: p_u8, value: int64_t) -> p_u8:
    raw: uint64_t = _zigzag(value)
    while raw >= 0x80:
        to[0] = cython.cast(uint8_t, raw | 0x80)
        to += 1
        raw >>= 7
    to[0] = cython.cast(uint8_t, raw)
    return to + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(to: p_u8, source: p_u8, size: int64_t) -> p_u8:
    to = _put_varint(to, size)
    if size > 0:
        memcpy(to, source, size)
        to += size
    return to


@cython.cclass
class Spans:
    """The spans of a variable-size column; all null without offsets."""

    def __cinit__(self, offsets, validity, first, rows, what):
        self.offsets = cython.NULL
        self.bits = cython.NULL
        self.data = cython.NULL
        self.data_bytes = 0
        if first not in range(2**31) or rows not in range(2**60):
            raise ValueError(f"{what} cannot begin at {first} and have {rows} rows")
        self.first = first
        if offsets is not None:
            self.offsets_held = Held(flat_view(offsets, 4 * (first + rows + 1), what))
            self.offsets = self.offsets_held.data + 4 * self.first
        if validity is not None:
            self.bits_held = Held(flat_view(validity, (first + rows + 7) // 8, what))
            self.bits = self.bits_held.data

    def size(self, row, start):
        # Bytes of the value, whose pointer goes to `start`; or NULL_VALUE, or WRONG.
        if self.offsets == cython.NULL:
            return NULL_VALUE
        bit: int64_t = self.first + row
        if self.bits != cython.NULL and not (self.bits[bit >> 3] >> (bit & 7)) & 1:
            return NULL_VALUE
        begin: int64_t = load32(self.offsets + 4 * row)
        end: int64_t = load32(self.offsets + 4 * row + 4)
        if begin < 0 or end < begin or end > self.data_bytes:
            return WRONG
        start[0] = self.data + begin
        return end - begin


@cython.cfunc
def binary(column, rows, what) -> Spans:
    if column is None:
        return Spans(None, None, 0, rows, what)
    spans: Spans = Spans(column.offsets, column.validity, column.first, rows, what)
    spans.data_held = Held(flat_view(column.data, 0, what))
    spans.data = spans.data_held.data
    spans.data_bytes = spans.data_held.raw.len
    return spans


@cython.cclass
class Source:
    """All columns of one encode, and the record at hand."""

    def __cinit__(self, columns, selection):
        if columns.rows not in range(2**60):
            raise ValueError(f"columns cannot have {columns.rows} rows")
        self.rows = columns.rows
        self.timestamps = Held(flat_view(columns.timestamps, 8 * columns.rows, "timestamps"))
        self.keys = binary(columns.keys, columns.rows, "keys")
        self.values = binary(columns.values, columns.rows, "values")
        self.selected = self.rows
        if selection is not None:
            self.selection = Held(flat_view(selection, 0, "selection"))
            self.selected = self.selection.raw.len // 8
        headers = columns.headers
        if headers is not None:
            self.lists = Spans(
                headers.list_offsets, headers.validity, headers.first, columns.rows, "headers"
            )
            self.header_keys = binary(headers.keys, headers.rows, "header keys")
            self.header_values = binary(headers.values, headers.rows, "header values")
            # Spans of the list column count header rows instead of bytes.
            self.lists.data_bytes = headers.rows

    def timestamp_at(self, index):
        # Of the record at `index`, which becomes the row at hand.
        self.row = index
        if self.selection is not None:
            self.row = _load64(self.selection.data + 8 * index)
            if self.row < 0 or self.row >= self.rows:
                raise ValueError(f"selected row {self.row} of {self.rows}")
        return _load64(self.timestamps.data + 8 * self.row)

    def measure(self, index, delta, base_timestamp):
        # Bytes of the record at `index`, its length prefix included.
        self.timestamp = self.timestamp_at(index)
        self.time_delta = cython.cast(
            int64_t, cython.cast(uint64_t, self.timestamp) - cython.cast(uint64_t, base_timestamp)
        )
        if ((self.timestamp ^ base_timestamp) & (self.timestamp ^ self.time_delta)) < 0:
            raise ValueError(f"timestamps {base_timestamp} and {self.timestamp} in one batch")
        self.key_size = self.keys.size(self.row, cython.address(self.key))
        self.value_size = self.values.size(self.row, cython.address(self.value))
        if self.key_size == WRONG or self.value_size == WRONG:
            raise ValueError(f"key or value offsets of row {self.row} are wrong")
        body: int64_t = (
            1 + _varint_bytes(self.time_delta) + _varint_bytes(delta)
            + _varint_bytes(self.key_size) + max(self.key_size, 0)
            + _varint_bytes(self.value_size) + max(self.value_size, 0)
        )  # fmt: skip
        self.header_count = 0
        body += 1 if self.lists is None else self.measure_headers(self.row)
        self.body_bytes = body
        return body + _varint_bytes(body)

    def measure_headers(self, row):
        start: p_u8 = cython.NULL
        count: int64_t = self.lists.size(row, cython.address(start))
        if count == WRONG:
            raise ValueError(f"header list offsets of row {row} are wrong")
        if count <= 0:
            return 1
        self.header_count = count
        # The list column has no data of its own: its pointers count from zero.
        self.header_start = start - self.lists.data
        total: int64_t = _varint_bytes(count)
        i: int64_t
        for i in range(self.header_start, self.header_start + count):
            key_size: int64_t = self.header_keys.size(i, cython.address(start))
            size: int64_t = self.header_values.size(i, cython.address(start))
            if key_size < 0 or size == WRONG:
                raise ValueError(f"header {i} of row {row} has no key or wrong offsets")
            total += _varint_bytes(key_size) + key_size + _varint_bytes(size) + max(size, 0)
        return total

    def write(self, to, delta):
        # The measured record; where it ends.
        to = _put_varint(to, self.body_bytes)
        to[0] = 0
        to = _put_varint(to + 1, self.time_delta)
        to = _put_varint(to, delta)
        to = _put_bytes(to, self.key, self.key_size)
        to = _put_bytes(to, self.value, self.value_size)
        to = _put_varint(to, self.header_count)
        i: int64_t
        at: p_u8 = cython.NULL
        size: int64_t
        for i in range(self.header_start, self.header_start + self.header_count):
            size = self.header_keys.size(i, cython.address(at))
            to = _put_bytes(to, at, size)
            size = self.header_values.size(i, cython.address(at))
            to = _put_bytes(to, at, size)
        return to
