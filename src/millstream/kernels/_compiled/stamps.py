"""Offsets, epochs and append times written into walked batches, in place; part of `batches`."""

import cython
from cython.cimports.cpython.array import array
from cython.cimports.cpython.buffer import PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.millstream.kernels._compiled.crc import crc32c_of

from millstream.kernels.errors import MalformedRecords, Reason

_INT64_MAX = cython.declare(cython.longlong, 2**63 - 1)
_INT32_MAX = cython.declare(cython.longlong, 2**31 - 1)


@cython.cfunc
@cython.exceptval(check=False)
def _put(at: cython.p_uchar, value: cython.ulonglong, size: cython.int) -> cython.void:
    index: cython.int
    for index in range(size):
        at[index] = cython.cast(cython.uchar, value >> (8 * (size - 1 - index)))


@cython.cfunc
@cython.exceptval(-1)
def _check_rows(rows: array, size: cython.longlong) -> cython.int:
    """Rows are the caller's, and positions in them are written through: prove each one."""
    index: cython.Py_ssize_t
    row: cython.p_longlong = rows.data.as_longlongs
    if rows.ob_descr.itemsize != 8 or len(rows) % 12 != 0:
        raise ValueError("rows must be an array('q') of whole rows")
    for index in range(0, len(rows), 12):
        if row[index] < 0 or not 61 <= row[index + 1] <= size - row[index]:
            raise ValueError(f"row {index // 12} lies outside the buffer of {size} bytes")
        if not (0 <= row[index + 2] <= row[index + 3]) or (
            row[index + 3] - row[index + 2] > _INT32_MAX
        ):
            raise ValueError(f"row {index // 12} has impossible offsets")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _check_epoch(leader_epoch: cython.longlong) -> cython.int:
    if not -1 <= leader_epoch <= _INT32_MAX:
        raise ValueError(f"leader epoch {leader_epoch}")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _end_of(rows: array, base_offset: cython.longlong) -> cython.longlong:
    index: cython.Py_ssize_t
    row: cython.p_longlong = rows.data.as_longlongs
    end: cython.longlong = base_offset
    for index in range(0, len(rows), 12):
        if end > _INT64_MAX - (row[index + 3] - row[index + 2]) - 1:
            raise MalformedRecords(Reason.OFFSETS, position=row[index], detail="above int64")
        end += row[index + 3] - row[index + 2] + 1
    return end


def assign_offsets(
    buffer, rows: array, base_offset: cython.longlong, leader_epoch: cython.longlong
):
    view: Py_buffer
    index: cython.Py_ssize_t
    row: cython.p_longlong
    end: cython.longlong
    if base_offset < 0:
        raise ValueError(f"base offset {base_offset}")
    _check_epoch(leader_epoch)
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    try:
        _check_rows(rows, view.len)
        # Before the first byte changes: offsets that do not fit leave every batch as it was.
        end = _end_of(rows, base_offset)
        for index in range(0, len(rows), 12):
            row = rows.data.as_longlongs + index
            row[3] = base_offset + (row[3] - row[2])
            row[2] = base_offset
            row[4] = leader_epoch
            _put(cython.cast(cython.p_uchar, view.buf) + row[0], base_offset, 8)
            _put(cython.cast(cython.p_uchar, view.buf) + row[0] + 12, leader_epoch, 4)
            base_offset = row[3] + 1
        return end
    finally:
        PyBuffer_Release(cython.address(view))


def set_leader_epoch(buffer, rows: array, leader_epoch: cython.longlong):
    view: Py_buffer
    index: cython.Py_ssize_t
    row: cython.p_longlong
    _check_epoch(leader_epoch)
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    try:
        _check_rows(rows, view.len)
        for index in range(0, len(rows), 12):
            row = rows.data.as_longlongs + index
            row[4] = leader_epoch
            _put(cython.cast(cython.p_uchar, view.buf) + row[0] + 12, leader_epoch, 4)
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.exceptval(check=False)
def _set_append_time(
    at: cython.p_uchar, size: cython.longlong, timestamp_ms: cython.longlong
) -> cython.void:
    at[22] |= 8
    _put(at + 35, timestamp_ms, 8)
    # With the GIL, so that nobody resizes the rows, whose positions were proved once.
    _put(at + 17, crc32c_of(at + 21, size - 21), 4)


def set_append_time(buffer, rows: array, timestamp_ms: cython.longlong):
    view: Py_buffer
    index: cython.Py_ssize_t
    row: cython.p_longlong
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    try:
        _check_rows(rows, view.len)
        for index in range(0, len(rows), 12):
            row = rows.data.as_longlongs + index
            _set_append_time(cython.cast(cython.p_uchar, view.buf) + row[0], row[1], timestamp_ms)
            row[5] |= 8
            row[7] = timestamp_ms
    finally:
        PyBuffer_Release(cython.address(view))
