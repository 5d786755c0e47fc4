"""Record batches v2 walked, checked and stamped in place; described by `batches.pyi`.

Buffers are taken with PyObject_GetBuffer: a typed memoryview costs a microsecond per call, which
is the budget of a whole 16 KB batch. Every access is proved against the buffer's length
first, because Cython's bounds checks do not reach raw pointers. Positions in the header, columns of
a row and Reasons are C constants of `batch_layout.pxd` and `reasons.pxd`.
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
from cython.cimports.millstream.kernels._compiled import batch_layout as layout
from cython.cimports.millstream.kernels._compiled import outcomes, reasons

from millstream.kernels._compiled.crc import crc32c as _crc32c
from millstream.kernels._compiled.stamps import assign_offsets, set_append_time, set_leader_epoch

__all__ = [
    "ATTRIBUTES", "BASE_OFFSET", "BASE_SEQUENCE", "BASE_TIMESTAMP", "HEADER_BYTES", "LAST_OFFSET",
    "LEADER_EPOCH", "MAX_TIMESTAMP", "POSITION", "PRODUCER_EPOCH", "PRODUCER_ID", "RECORD_COUNT",
    "ROW_FIELDS", "SIZE", "assign_offsets", "find_offset", "find_timestamp", "set_append_time",
    "set_leader_epoch", "walk",
]  # fmt: skip

# For Python; C takes them from the layout.
HEADER_BYTES = layout.HEADER_BYTES
ROW_FIELDS = layout.ROW_FIELDS
POSITION = layout.POSITION
SIZE = layout.SIZE
BASE_OFFSET = layout.BASE_OFFSET
LAST_OFFSET = layout.LAST_OFFSET
LEADER_EPOCH = layout.LEADER_EPOCH
ATTRIBUTES = layout.ATTRIBUTES
BASE_TIMESTAMP = layout.BASE_TIMESTAMP
MAX_TIMESTAMP = layout.MAX_TIMESTAMP
PRODUCER_ID = layout.PRODUCER_ID
PRODUCER_EPOCH = layout.PRODUCER_EPOCH
BASE_SEQUENCE = layout.BASE_SEQUENCE
RECORD_COUNT = layout.RECORD_COUNT

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
    if left < layout.UNCOUNTED_BYTES:
        return -reasons.SHORT
    size = _i32(at + layout.LENGTH_AT) + layout.UNCOUNTED_BYTES
    if size < layout.OLD_FORMAT_BYTES_MIN or size > most:
        return -reasons.LENGTH
    if left < layout.MAGIC_END:
        return -reasons.SHORT
    if at[layout.MAGIC_AT] != layout.MAGIC_V2:
        return -reasons.MAGIC
    return size if size >= layout.HEADER_BYTES else -reasons.LENGTH


@cython.cfunc
@cython.exceptval(check=False)
def _offsets_wrong(at: cython.p_uchar) -> cython.bint:
    base: cython.longlong = _i64(at + layout.BASE_OFFSET_AT)
    delta: cython.longlong = _i32(at + layout.LAST_OFFSET_DELTA_AT)
    return base < 0 or delta < 0 or base > _INT64_MAX - delta


@cython.cfunc
@cython.exceptval(check=False)
def _fields_wrong(at: cython.p_uchar) -> cython.int:
    """The Reason against the header's fields."""
    count: cython.longlong = _i32(at + layout.RECORD_COUNT_AT)
    if _offsets_wrong(at):
        return reasons.OFFSETS
    if count < 0 or count > _i32(at + layout.LAST_OFFSET_DELTA_AT) + 1:
        return reasons.COUNT
    codec: cython.int = at[layout.ATTRIBUTES_LOW_AT] & layout.CODEC_MASK
    return reasons.CODEC if codec > layout.CODEC_MAX else reasons.NONE


@cython.cfunc
@cython.exceptval(check=False)
def _fill(row: cython.p_longlong, at: cython.p_uchar, position: cython.longlong) -> cython.void:
    row[layout.POSITION] = position
    row[layout.SIZE] = _i32(at + layout.LENGTH_AT) + layout.UNCOUNTED_BYTES
    row[layout.BASE_OFFSET] = _i64(at + layout.BASE_OFFSET_AT)
    row[layout.LAST_OFFSET] = row[layout.BASE_OFFSET] + _i32(at + layout.LAST_OFFSET_DELTA_AT)
    row[layout.LEADER_EPOCH] = _i32(at + layout.LEADER_EPOCH_AT)
    row[layout.ATTRIBUTES] = _i16(at + layout.ATTRIBUTES_AT)
    row[layout.BASE_TIMESTAMP] = _i64(at + layout.BASE_TIMESTAMP_AT)
    row[layout.MAX_TIMESTAMP] = _i64(at + layout.MAX_TIMESTAMP_AT)
    row[layout.PRODUCER_ID] = _i64(at + layout.PRODUCER_ID_AT)
    row[layout.PRODUCER_EPOCH] = _i16(at + layout.PRODUCER_EPOCH_AT)
    row[layout.BASE_SEQUENCE] = _i32(at + layout.BASE_SEQUENCE_AT)
    row[layout.RECORD_COUNT] = _i32(at + layout.RECORD_COUNT_AT)


@cython.cfunc
@cython.exceptval(check=True)
def _crc(at: cython.p_uchar, size: cython.longlong) -> cython.uint:
    # The view borrows the bytes and dies here, while the caller still holds the buffer.
    covered: memoryview = PyMemoryView_FromMemory(
        cython.cast(cython.p_char, at + layout.ATTRIBUTES_AT),
        size - layout.ATTRIBUTES_AT,
        PyBUF_READ,
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
    rows: array = clone(_EMPTY, layout.ROW_FIELDS, False)
    used: cython.Py_ssize_t = 0
    position: cython.Py_ssize_t = start
    size: cython.longlong
    reason: cython.int = reasons.NONE
    while position < stop:
        size = _claimed(data + position, stop - position, size_max)
        if size < 0:
            reason = cython.cast(cython.int, -size)
        elif size > stop - position:
            reason = reasons.SHORT
        elif check_crc and _crc(data + position, size) != _u32(data + position + layout.CRC_AT):
            reason = reasons.CRC
        else:
            reason = _fields_wrong(data + position)
        if reason != reasons.NONE:
            break
        if used == len(rows):
            resize(rows, used * 2)
        _fill(rows.data.as_longlongs + used, data + position, position)
        used += layout.ROW_FIELDS
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
    reached: cython.longlong
    while stop - position >= layout.HEADER_BYTES:
        at = data + position
        size = _claimed(at, layout.HEADER_BYTES, _INT32_MAX + layout.UNCOUNTED_BYTES)
        if size < 0 or _offsets_wrong(at):
            return position, outcomes.MALFORMED_HEADER
        if by_time:
            reached = _i64(at + layout.MAX_TIMESTAMP_AT)
        else:
            reached = _i64(at + layout.BASE_OFFSET_AT) + _i32(at + layout.LAST_OFFSET_DELTA_AT)
        if reached >= wanted:
            return position, size
        position += size
    return position, outcomes.NOT_FOUND


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
