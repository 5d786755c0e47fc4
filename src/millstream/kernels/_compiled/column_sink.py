"""The records of one batch after another, appended to columns: the loop inside `decode`.

Not a kernel of its own: the C layout is in `column_sink.pxd`, and only `column_decode` uses it.
Every length is checked against the bytes in the buffer before it is used, and memory is
reserved once per batch from the size of its records, never from what a record claims.
"""

import cython
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.millstream.kernels._compiled import batch_layout as layout
from cython.cimports.millstream.kernels._compiled import reasons
from cython.cimports.millstream.kernels._compiled.column_buffers import Binary, Growing

from millstream.kernels.column_types import HeaderColumn, RecordColumns

__all__ = ["Sink"]

p_u8 = cython.typedef(cython.pointer[uint8_t])
p_i32 = cython.typedef(cython.pointer[int32_t])
p_i64 = cython.typedef(cython.pointer[int64_t])
p_size = cython.typedef(cython.pointer[cython.Py_ssize_t])

# Variables: with the constants themselves the loop over records is laid out worse, by 1 %.
OK = cython.declare(cython.int, reasons.NONE)
OFFSETS = cython.declare(cython.int, reasons.OFFSETS)
COUNT = cython.declare(cython.int, reasons.COUNT)
RECORD = cython.declare(cython.int, reasons.RECORD)


@cython.cfunc
@cython.exceptval(check=False)
def _long_varint(data: p_u8, cursor: p_size, end: cython.Py_ssize_t, bits: cython.int) -> uint64_t:
    """Past the end, or with more bytes than a number has, the cursor stays at end + 1.

    Bits that the number cannot hold are dropped, as Kafka does: every reader must see the same.
    """
    value: uint64_t = 0
    shift: cython.int = 0
    position: cython.Py_ssize_t = cursor[0]
    while position < end and shift < bits:
        byte: uint8_t = data[position]
        value |= cython.cast(uint64_t, byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            cursor[0] = position
            return value if bits == 64 else cython.cast(uint32_t, value)
    cursor[0] = end + 1
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint(data: p_u8, cursor: p_size, end: cython.Py_ssize_t, bits: cython.int) -> int64_t:
    at: cython.Py_ssize_t = cursor[0]
    value: uint64_t
    if at < end and data[at] < 0x80:
        value = data[at]
        cursor[0] = at + 1
    elif at + 1 < end and data[at + 1] < 0x80:
        value = (data[at] & 0x7F) | cython.cast(uint64_t, data[at + 1]) << 7
        cursor[0] = at + 2
    else:
        # A copy goes to the slow path, so that the caller's cursor can stay in a register.
        value = _long_varint(data, cython.address(at), end, bits)
        cursor[0] = at
    return cython.cast(int64_t, value >> 1) ^ -cython.cast(int64_t, value & 1)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(column: Binary, row: cython.Py_ssize_t, source: p_u8, size: int64_t) -> cython.void:
    """One value into a column that has room for it."""
    used: cython.Py_ssize_t = column.data.used
    if size > 0:
        memcpy(column.data.at + used, source, size)
        used += size
        column.data.used = used
    elif size < 0:
        column.bits.at[row >> 3] &= ~(1 << (row & 7))
        column.nulls += 1
    cython.cast(p_i32, column.offsets.at)[row + 1] = cython.cast(int32_t, used)


@cython.cclass
class Sink:
    """All columns of one decode under construction."""

    def __cinit__(self, with_headers):
        self.rows = 0
        self.header_rows = 0
        self.with_headers = with_headers
        self.offsets, self.timestamps, self.flags = Growing(), Growing(), Growing()
        self.list_offsets = Growing()
        self.keys, self.values = Binary(), Binary()
        self.header_keys, self.header_values = Binary(), Binary()

    def fit_rows(self, rows):
        # Room for that many rows in all.
        self.offsets.fit(8 * rows)
        self.timestamps.fit(8 * rows)
        self.flags.fit(rows)
        if self.with_headers:
            self.list_offsets.fit(4 * (rows + 1))
        self.keys.fit(rows, 0)
        self.values.fit(rows, 0)
        return 0

    def fit(self, rows, data_bytes):
        # Room for `rows` more records whose bytes are `data_bytes` together: each of keys and
        # values may be all of them.
        self.fit_rows(self.rows + rows)
        self.keys.data.fit(self.keys.data.used + data_bytes)
        self.values.data.fit(self.values.data.used + data_bytes)
        return 0

    def add_records(self, data, end):
        # The records of the batch at hand; a reason. The driver has made room for all of them.
        at: cython.Py_ssize_t = 0
        row: cython.Py_ssize_t = self.rows
        i: int64_t
        last_delta: int64_t = -1
        delta_max: int64_t = self.last_offset - self.base_offset
        append_time: cython.bint = (self.attributes & layout.LOG_APPEND_TIME) != 0
        timestamp: int64_t = self.max_timestamp
        for i in range(self.count):
            if at >= end:
                return COUNT
            size: int64_t = _varint(data, cython.address(at), end, 32)
            if size < 0 or size > end - at:
                return RECORD
            stop: cython.Py_ssize_t = at + size
            at += 1  # the attributes of a record mean nothing yet
            time_delta: int64_t = _varint(data, cython.address(at), stop, 64)
            delta: int64_t = _varint(data, cython.address(at), stop, 32)
            key_size: int64_t = _varint(data, cython.address(at), stop, 32)
            key_at: cython.Py_ssize_t = at
            if key_size < layout.NULL_SIZE or key_size > stop - at:
                return RECORD
            at += key_size if key_size > 0 else 0
            value_size: int64_t = _varint(data, cython.address(at), stop, 32)
            if value_size < layout.NULL_SIZE or value_size > stop - at:
                return RECORD
            value_at: cython.Py_ssize_t = at
            at += value_size if value_size > 0 else 0
            in_order: cython.bint = last_delta < delta <= delta_max
            offset: int64_t = self.base_offset + (delta if in_order else 0)
            keep: cython.bint = in_order and self.first_offset <= offset < self.end_offset
            if self.with_headers and not (at + 1 == stop and data[at] == 0):
                if self.add_headers(data, at, stop, keep) != OK:
                    return RECORD
            if not in_order:
                return OFFSETS
            if not append_time:
                timestamp = cython.cast(
                    int64_t,
                    cython.cast(uint64_t, self.base_timestamp) + cython.cast(uint64_t, time_delta),
                )
                if ((self.base_timestamp ^ timestamp) & (time_delta ^ timestamp)) < 0:
                    return RECORD
            last_delta = delta
            at = stop
            if not keep:
                continue
            cython.cast(p_i64, self.offsets.at)[row] = offset
            cython.cast(p_i64, self.timestamps.at)[row] = timestamp
            if self.with_headers:
                cython.cast(p_i32, self.list_offsets.at)[row + 1] = self.header_rows
            _put(self.keys, row, data + key_at, key_size)
            _put(self.values, row, data + value_at, value_size)
            row += 1
        self.rows = row
        return OK if at == end else COUNT

    def add_headers(self, data, at, end, keep):
        count: int64_t = _varint(data, cython.address(at), end, 32)
        if count < 0 or count > (end - at) // 2:
            return RECORD
        i: int64_t
        for i in range(count):
            key_size: int64_t = _varint(data, cython.address(at), end, 32)
            if key_size < 0 or key_size > end - at:
                return RECORD
            key_at: cython.Py_ssize_t = at
            at += key_size
            size: int64_t = _varint(data, cython.address(at), end, 32)
            if size < layout.NULL_SIZE or size > end - at:
                return RECORD
            if keep:
                self.header_keys.append(self.header_rows, data + key_at, key_size)
                self.header_values.append(self.header_rows, data + at, size)
                self.header_rows += 1
            at += max(size, 0)
        return OK if at == end else RECORD

    def columns(self):
        self.fit_rows(self.rows)
        headers = None
        if self.with_headers:
            cython.cast(p_i32, self.list_offsets.at)[0] = 0
            headers = HeaderColumn(
                list_offsets=self.list_offsets.take(4 * (self.rows + 1)),
                rows=self.header_rows,
                keys=self.header_keys.column(self.header_rows),
                values=self.header_values.column(self.header_rows),
            )
        return RecordColumns(
            rows=self.rows,
            timestamps=self.timestamps.take(8 * self.rows),
            keys=self.keys.column(self.rows),
            values=self.values.column(self.rows),
            headers=headers,
        )
