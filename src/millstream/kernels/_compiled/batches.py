"""Record batches v2 walked, checked and stamped in place; described by `batches.pyi`.

Buffers are taken with PyObject_GetBuffer: a typed memoryview costs a microsecond per call, which
is what a whole 16 KB batch may cost here. Every access is proved against the buffer's length
first, because Cython's bounds checks do not reach raw pointers. Numbers stand where the plain
twin has names (byte positions in the header, columns of a row, Reasons): C needs constants.
"""

from array import array as _array

import cython
from cython.cimports.cpython.array import array, clone, resize
from cython.cimports.cpython.buffer import (
    PyBUF_READ,
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.cpython.memoryview import PyMemoryView_FromMemory

from millstream.kernels._compiled.crc import crc32c as _crc32c
from millstream.kernels._compiled.stamps import assign_offsets, set_append_time, set_leader_epoch

__all__ = [
    "ATTRIBUTES", "BASE_OFFSET", "BASE_SEQUENCE", "BASE_TIMESTAMP", "HEADER_BYTES", "LAST_OFFSET",
    "LEADER_EPOCH", "MAX_TIMESTAMP", "POSITION", "PRODUCER_EPOCH", "PRODUCER_ID", "RECORD_COUNT",
    "ROW_FIELDS", "SIZE", "assign_offsets", "find_offset", "find_timestamp", "set_append_time",
    "set_leader_epoch", "walk",
]  # fmt: skip

HEADER_BYTES = 61
ROW_FIELDS = 12
(
    POSITION, SIZE, BASE_OFFSET, LAST_OFFSET, LEADER_EPOCH, ATTRIBUTES, BASE_TIMESTAMP,
    MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, RECORD_COUNT,
) = range(ROW_FIELDS)  # fmt: skip

_EMPTY = cython.declare(array, _array("q"))
_INT64_MAX = cython.declare(cython.longlong, 2**63 - 1)
_INT32_MAX = cython.declare(cython.longlong, 2**31 - 1)


@cython.cfunc
def _u32(at: cython.p_uchar) -> cython.uint:
    # Shifts that the compiler turns into one load and a byte swap.
    high: cython.uint = (cython.cast(cython.uint, at[0]) << 8) | at[1]
    return (high << 16) | (cython.cast(cython.uint, at[2]) << 8) | at[3]


@cython.cfunc
@cython.exceptval(check=False)
def _i16(at: cython.p_uchar) -> cython.longlong:
    return cython.cast(cython.short, (cython.cast(cython.uint, at[0]) << 8) | at[1])


@cython.cfunc
@cython.exceptval(check=False)
def _i32(at: cython.p_uchar) -> cython.longlong:
    return cython.cast(cython.int, _u32(at))


@cython.cfunc
@cython.exceptval(check=False)
def _i64(at: cython.p_uchar) -> cython.longlong:
    return cython.cast(
        cython.longlong, (cython.cast(cython.ulonglong, _u32(at)) << 32) | _u32(at + 4)
    )


@cython.cfunc
@cython.exceptval(check=False)
def _claimed(at: cython.p_uchar, left: cython.longlong, most: cython.longlong) -> cython.longlong:
    """The size that the batch claims, or minus a Reason; reads no byte from `left` on."""
    size: cython.longlong
    if left < 12:
        return -1
    size = _i32(at + 8) + 12
    # 26 is the smallest message of the old formats: those are told apart by their magic.
    if size < 26 or size > most:
        return -2
    if left < 17:
        return -1
    if at[16] != 2:
        return -3
    return size if size >= 61 else -2


@cython.cfunc
@cython.exceptval(check=False)
def _offsets_wrong(at: cython.p_uchar) -> cython.bint:
    base: cython.longlong = _i64(at)
    delta: cython.longlong = _i32(at + 23)
    return base < 0 or delta < 0 or base > _INT64_MAX - delta


@cython.cfunc
@cython.exceptval(check=False)
def _fields_wrong(at: cython.p_uchar) -> cython.int:
    """A Reason against the header's fields, or 0."""
    count: cython.longlong = _i32(at + 57)
    if _offsets_wrong(at):
        return 5
    if count < 0 or count > _i32(at + 23) + 1:
        return 6
    return 7 if (at[22] & 7) > 4 else 0


@cython.cfunc
@cython.exceptval(check=False)
def _fill(row: cython.p_longlong, at: cython.p_uchar, position: cython.longlong) -> cython.void:
    row[0] = position
    row[1] = _i32(at + 8) + 12
    row[2] = _i64(at)
    row[3] = row[2] + _i32(at + 23)
    row[4] = _i32(at + 12)
    row[5] = _i16(at + 21)
    row[6] = _i64(at + 27)
    row[7] = _i64(at + 35)
    row[8] = _i64(at + 43)
    row[9] = _i16(at + 51)
    row[10] = _i32(at + 53)
    row[11] = _i32(at + 57)


@cython.cfunc
@cython.exceptval(check=True)
def _crc(at: cython.p_uchar, size: cython.longlong) -> cython.uint:
    # The view borrows the bytes and dies here, while the caller still holds the buffer.
    covered: memoryview = PyMemoryView_FromMemory(
        cython.cast(cython.p_char, at + 21), size - 21, PyBUF_READ
    )
    return _crc32c(covered)


@cython.cfunc
def _walk(
    data: cython.p_uchar,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    check_crc: cython.bint,
    size_max: cython.longlong,
) -> tuple:
    rows: array = clone(_EMPTY, 12, False)
    used: cython.Py_ssize_t = 0
    position: cython.Py_ssize_t = start
    size: cython.longlong
    reason: cython.int = 0
    while position < stop:
        size = _claimed(data + position, stop - position, size_max)
        if size < 0:
            reason = cython.cast(cython.int, -size)
        elif size > stop - position:
            reason = 1
        elif check_crc and _crc(data + position, size) != _u32(data + position + 17):
            reason = 4
        else:
            reason = _fields_wrong(data + position)
        if reason != 0:
            break
        if used == len(rows):
            resize(rows, used * 2)
        _fill(rows.data.as_longlongs + used, data + position, position)
        used += 12
        position += size
    if used != len(rows):
        resize(rows, used)
    return rows, position, reason


@cython.cfunc
def _find(
    data: cython.p_uchar,
    position: cython.longlong,
    stop: cython.longlong,
    by_time: cython.bint,
    wanted: cython.longlong,
) -> tuple:
    at: cython.p_uchar
    size: cython.longlong
    while stop - position >= 61:
        at = data + position
        size = _claimed(at, 61, _INT32_MAX + 12)
        if size < 0 or _offsets_wrong(at):
            return position, -2
        if (_i64(at + 35) if by_time else _i64(at) + _i32(at + 23)) >= wanted:
            return position, size
        position += size
    return position, -1


@cython.cfunc
@cython.exceptval(-1)
def _take(
    buffer, view: cython.pointer(Py_buffer), start: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.int:
    PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
    if not 0 <= start <= stop <= view.len:
        PyBuffer_Release(view)
        raise ValueError(f"range [{start}, {stop}) of a buffer of {len(buffer)} items")
    return 0


def walk(
    buffer,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    *,
    check_crc: cython.bint,
    size_max: cython.longlong,
):
    view: Py_buffer
    _take(buffer, cython.address(view), start, stop)
    try:
        return _walk(cython.cast(cython.p_uchar, view.buf), start, stop, check_crc, size_max)
    finally:
        PyBuffer_Release(cython.address(view))


def find_offset(buffer, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, offset: cython.longlong):
    view: Py_buffer
    _take(buffer, cython.address(view), start, stop)
    try:
        return _find(cython.cast(cython.p_uchar, view.buf), start, stop, False, offset)
    finally:
        PyBuffer_Release(cython.address(view))


def find_timestamp(
    buffer, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, timestamp_ms: cython.longlong
):
    view: Py_buffer
    _take(buffer, cython.address(view), start, stop)
    try:
        return _find(cython.cast(cython.p_uchar, view.buf), start, stop, True, timestamp_ms)
    finally:
        PyBuffer_Release(cython.address(view))
