"""Offsets, epochs and append times written into walked batches, in place; part of `batches`."""

import cython
from cython.cimports.cpython.array import array
from cython.cimports.cpython.buffer import PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.millstream.kernels._compiled import batch_layout as layout
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
    if rows.ob_descr.itemsize != 8 or len(rows) % layout.ROW_FIELDS != 0:
        raise ValueError("rows must be an array('q') of whole rows")
    for index in range(len(rows) // layout.ROW_FIELDS):
        if row[layout.POSITION] < 0 or not (
            layout.HEADER_BYTES <= row[layout.SIZE] <= size - row[layout.POSITION]
        ):
            raise ValueError(f"row {index} lies outside the buffer of {size} bytes")
        if not (0 <= row[layout.BASE_OFFSET] <= row[layout.LAST_OFFSET]) or (
            row[layout.LAST_OFFSET] - row[layout.BASE_OFFSET] > _INT32_MAX
        ):
            raise ValueError(f"row {index} has impossible offsets")
        row += layout.ROW_FIELDS
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
    row: cython.p_longlong = rows.data.as_longlongs
    end: cython.longlong = base_offset
    for _ in range(len(rows) // layout.ROW_FIELDS):
        if end > _INT64_MAX - (row[layout.LAST_OFFSET] - row[layout.BASE_OFFSET]) - 1:
            position = row[layout.POSITION]
            raise MalformedRecords(Reason.OFFSETS, position=position, detail="above int64")
        end += row[layout.LAST_OFFSET] - row[layout.BASE_OFFSET] + 1
        row += layout.ROW_FIELDS
    return end


def assign_offsets(
    buffer, rows: array, base_offset: cython.longlong, leader_epoch: cython.longlong
):
    view: Py_buffer
    row: cython.p_longlong
    at: cython.p_uchar
    end: cython.longlong
    if base_offset < 0:
        raise ValueError(f"base offset {base_offset}")
    _check_epoch(leader_epoch)
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    try:
        _check_rows(rows, view.len)
        # Before the first byte changes: offsets that do not fit leave every batch as it was.
        end = _end_of(rows, base_offset)
        row = rows.data.as_longlongs
        for _ in range(len(rows) // layout.ROW_FIELDS):
            at = cython.cast(cython.p_uchar, view.buf) + row[layout.POSITION]
            row[layout.LAST_OFFSET] += base_offset - row[layout.BASE_OFFSET]
            row[layout.BASE_OFFSET] = base_offset
            row[layout.LEADER_EPOCH] = leader_epoch
            _put(at + layout.BASE_OFFSET_AT, base_offset, 8)
            _put(at + layout.LEADER_EPOCH_AT, leader_epoch, 4)
            base_offset = row[layout.LAST_OFFSET] + 1
            row += layout.ROW_FIELDS
        return end
    finally:
        PyBuffer_Release(cython.address(view))


def set_leader_epoch(buffer, rows: array, leader_epoch: cython.longlong):
    view: Py_buffer
    row: cython.p_longlong
    at: cython.p_uchar
    _check_epoch(leader_epoch)
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    try:
        _check_rows(rows, view.len)
        row = rows.data.as_longlongs
        for _ in range(len(rows) // layout.ROW_FIELDS):
            row[layout.LEADER_EPOCH] = leader_epoch
            at = cython.cast(cython.p_uchar, view.buf) + row[layout.POSITION]
            _put(at + layout.LEADER_EPOCH_AT, leader_epoch, 4)
            row += layout.ROW_FIELDS
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.exceptval(check=False)
def _set_append_time(
    at: cython.p_uchar, size: cython.longlong, timestamp_ms: cython.longlong
) -> cython.void:
    at[layout.ATTRIBUTES_LOW_AT] |= layout.LOG_APPEND_TIME
    _put(at + layout.MAX_TIMESTAMP_AT, timestamp_ms, 8)
    # With the GIL, so that no thread resizes the rows, whose positions were proved once.
    _put(
        at + layout.CRC_AT,
        crc32c_of(at + layout.ATTRIBUTES_AT, size - layout.ATTRIBUTES_AT),
        4,
    )


def set_append_time(buffer, rows: array, timestamp_ms: cython.longlong):
    view: Py_buffer
    row: cython.p_longlong
    at: cython.p_uchar
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    try:
        _check_rows(rows, view.len)
        row = rows.data.as_longlongs
        for _ in range(len(rows) // layout.ROW_FIELDS):
            at = cython.cast(cython.p_uchar, view.buf) + row[layout.POSITION]
            _set_append_time(at, row[layout.SIZE], timestamp_ms)
            row[layout.ATTRIBUTES] |= layout.LOG_APPEND_TIME
            row[layout.MAX_TIMESTAMP] = timestamp_ms
            row += layout.ROW_FIELDS
    finally:
        PyBuffer_Release(cython.address(view))
