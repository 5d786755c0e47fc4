"""Single records inside one batch's payload, checked, located and filtered; see `records.pyi`.

A record is read through a cursor that stops at the record's own end, so no length inside it,
however wrong, leads out of it.
"""

from array import array as _array

import cython
from cython.cimports.cpython.array import array, clone
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.millstream.kernels._compiled import batch_layout as layout
from cython.cimports.millstream.kernels._compiled import reasons

from millstream.kernels._compiled.record_filter import retain
from millstream.kernels.errors import MalformedRecords, Reason

__all__ = [
    "KEY_BYTES", "KEY_START", "OFFSET_DELTA", "SPAN_FIELDS", "START", "STOP", "TIMESTAMP_DELTA",
    "VALUE_BYTES", "inspect", "locate", "retain", "seek",
]  # fmt: skip

# For Python; C takes them from the layout.
SPAN_FIELDS = layout.SPAN_FIELDS
START, STOP = layout.START, layout.STOP
OFFSET_DELTA, TIMESTAMP_DELTA = layout.OFFSET_DELTA, layout.TIMESTAMP_DELTA
KEY_START, KEY_BYTES, VALUE_BYTES = layout.KEY_START, layout.KEY_BYTES, layout.VALUE_BYTES

_EMPTY = cython.declare(array, _array("q"))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _varint_slow(cursor: cython.pointer(Cursor), bytes_max: cython.int) -> cython.longlong:
    value: cython.ulonglong = 0
    byte: cython.uchar
    index: cython.int
    for index in range(bytes_max):
        if cursor.at >= cursor.end:
            break
        byte = cursor.at[0]
        cursor.at += 1
        value |= cython.cast(cython.ulonglong, byte & 0x7F) << (7 * index)
        if byte < 0x80:
            # Kafka drops the bits that an int cannot hold; so every reader sees the same number.
            if bytes_max == layout.INT_VARINT_BYTES_MAX:
                value = cython.cast(cython.uint, value)
            return cython.cast(cython.longlong, (value >> 1) ^ (0 - (value & 1)))
    cursor.failed = True
    return 0


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _varint(cursor: cython.pointer(Cursor), bytes_max: cython.int) -> cython.longlong:
    # The slow path gets a copy: a cursor whose address went out would live in memory.
    value: cython.uint
    copy: Cursor
    number: cython.longlong
    if cursor.at < cursor.end and cursor.at[0] < 0x80:
        value = cursor.at[0]
        cursor.at += 1
        return cython.cast(cython.int, (value >> 1) ^ (0 - (value & 1)))
    if cursor.end - cursor.at >= 2 and cursor.at[1] < 0x80:
        value = (cursor.at[0] & 0x7F) | (cython.cast(cython.uint, cursor.at[1]) << 7)
        cursor.at += 2
        return cython.cast(cython.int, (value >> 1) ^ (0 - (value & 1)))
    copy = cursor[0]
    number = _varint_slow(cython.address(copy), bytes_max)
    cursor[0] = copy
    return number


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _skip(cursor: cython.pointer(Cursor), least: cython.longlong) -> cython.longlong:
    """Read a length and pass that many bytes; NULL_SIZE stands for null where `least` allows it."""
    size: cython.longlong = _varint(cursor, layout.INT_VARINT_BYTES_MAX)
    if size < least or size > cursor.end - cursor.at:
        cursor.failed = True
    elif size > 0:
        cursor.at += size
    return size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(cursor: cython.pointer(Cursor)) -> cython.void:
    count: cython.longlong = _varint(cursor, layout.INT_VARINT_BYTES_MAX)
    if count < 0 or count > cursor.end - cursor.at:
        cursor.failed = True
    while count > 0 and not cursor.failed:
        _skip(cursor, 0)
        if not cursor.failed:
            _skip(cursor, layout.NULL_SIZE)
        count -= 1


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _read(payload: cython.pointer(Cursor), record: cython.pointer(Record)) -> cython.bint:
    """Read one record and move `payload` behind it; False when its bytes are wrong."""
    body: Cursor
    headers: Cursor
    size: cython.longlong = _varint(payload, layout.INT_VARINT_BYTES_MAX)
    if payload.failed or size < 0 or size > payload.end - payload.at:
        return False
    if size == 0:
        return False
    body.at, body.failed = payload.at + 1, False  # behind the attributes, which are not in use
    payload.at += size
    body.end = payload.at
    record.timestamp_delta = _varint(cython.address(body), layout.LONG_VARINT_BYTES_MAX)
    record.offset_delta = _varint(cython.address(body), layout.INT_VARINT_BYTES_MAX)
    record.key_bytes = _skip(cython.address(body), layout.NULL_SIZE)
    if body.failed:
        return False
    record.key = body.at - record.key_bytes if record.key_bytes >= 0 else cython.NULL
    record.value_bytes = _skip(cython.address(body), layout.NULL_SIZE)
    if body.failed:
        return False
    if body.at + 1 == body.end and body.at[0] == 0:
        return True  # no headers and nothing left: most records
    headers = body
    _skip_headers(cython.address(headers))
    return not headers.failed and headers.at == headers.end


@cython.cfunc
@cython.exceptval(-1)
def _take(
    payload, view: cython.pointer(Py_buffer), start: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.int:
    PyObject_GetBuffer(payload, view, PyBUF_SIMPLE)
    if not 0 <= start <= stop <= view.len:
        PyBuffer_Release(view)
        raise ValueError(f"range [{start}, {stop}) is outside the payload")
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def inspect_records(
    start: cython.p_uchar,
    stop: cython.p_uchar,
    count: cython.longlong,
    contiguous: cython.bint,
    found: cython.pointer(Inspection),
) -> cython.void:
    """The loop of `inspect`, described by `records.pxd`."""
    cursor: Cursor
    record: Record
    index: cython.longlong
    expected: cython.longlong = 0
    oldest: cython.longlong = 0
    newest: cython.longlong = 0
    newest_at: cython.longlong = -1
    null_keys: cython.longlong = 0
    cursor.at, cursor.end, cursor.failed = start, stop, False
    found.reason = reasons.COUNT
    found.oldest, found.newest, found.newest_at, found.null_keys = 0, 0, -1, 0
    if count < 0:
        return
    for index in range(count):
        if cursor.at == cursor.end:
            return
        if not _read(cython.address(cursor), cython.address(record)):
            found.reason = reasons.RECORD
            return
        if record.offset_delta < expected or (contiguous and record.offset_delta != expected):
            found.reason = reasons.OFFSETS
            return
        expected = record.offset_delta + 1
        null_keys += record.key_bytes < 0
        if index == 0 or record.timestamp_delta < oldest:
            oldest = record.timestamp_delta
        if index == 0 or record.timestamp_delta > newest:
            newest = record.timestamp_delta
            newest_at = record.offset_delta
    if cursor.at != cursor.end:
        return
    found.reason = reasons.NONE
    found.oldest, found.newest, found.newest_at = oldest, newest, newest_at
    found.null_keys = null_keys


def inspect(
    payload,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    count: cython.longlong,
    *,
    contiguous: cython.bint,
):
    view: Py_buffer
    data: cython.p_uchar
    found: Inspection
    _take(payload, cython.address(view), start, stop)
    data = cython.cast(cython.p_uchar, view.buf)
    if stop - start > RELEASE_BYTES:
        with cython.nogil:
            inspect_records(data + start, data + stop, count, contiguous, cython.address(found))
    else:
        inspect_records(data + start, data + stop, count, contiguous, cython.address(found))
    PyBuffer_Release(cython.address(view))
    return found.reason, found.oldest, found.newest, found.newest_at, found.null_keys


def seek(
    payload,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    count: cython.longlong,
    *,
    offset_min: cython.longlong,
    time_min: cython.longlong,
):
    view: Py_buffer
    cursor: Cursor
    record: Record
    begin: cython.p_uchar
    index: cython.longlong = 0
    failed: cython.bint = False
    _take(payload, cython.address(view), start, stop)
    cursor.at = begin = cython.cast(cython.p_uchar, view.buf) + start
    cursor.end, cursor.failed = begin + (stop - start), False
    with cython.nogil:
        while index < count and cursor.at < cursor.end:
            begin = cursor.at
            failed = not _read(cython.address(cursor), cython.address(record))
            if failed or record.offset_delta >= offset_min and record.timestamp_delta >= time_min:
                break
            index += 1
        else:
            index = -1
    start = begin - cython.cast(cython.p_uchar, view.buf)
    PyBuffer_Release(cython.address(view))
    if failed:
        raise MalformedRecords(Reason.RECORD, position=start)
    return None if index < 0 else (index, start, record.offset_delta, record.timestamp_delta)


@cython.cfunc
def _locate(
    data: cython.p_uchar, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, count: cython.longlong
) -> array:
    cursor: Cursor
    record: Record
    begin: cython.p_uchar
    spans: array
    index: cython.longlong
    expected: cython.longlong = 0
    span: cython.p_longlong
    # The claimed count is not trusted with memory.
    if count < 0 or count > (stop - start) // layout.RECORD_BYTES_MIN:
        raise MalformedRecords(Reason.COUNT, position=start, detail=f"{count} records")
    spans = clone(_EMPTY, count * layout.SPAN_FIELDS, False)
    cursor.at, cursor.end, cursor.failed = data + start, data + stop, False
    for index in range(count):
        begin = cursor.at
        if begin == cursor.end:
            raise MalformedRecords(Reason.COUNT, position=stop, detail=f"{count} records")
        if not _read(cython.address(cursor), cython.address(record)):
            raise MalformedRecords(Reason.RECORD, position=begin - data)
        if record.offset_delta < expected:
            raise MalformedRecords(Reason.OFFSETS, position=begin - data)
        expected = record.offset_delta + 1
        span = spans.data.as_longlongs + index * layout.SPAN_FIELDS
        span[layout.START], span[layout.STOP] = begin - data, cursor.at - data
        span[layout.OFFSET_DELTA] = record.offset_delta
        span[layout.TIMESTAMP_DELTA] = record.timestamp_delta
        span[layout.KEY_START] = record.key - data if record.key_bytes >= 0 else layout.NULL_SIZE
        span[layout.KEY_BYTES], span[layout.VALUE_BYTES] = record.key_bytes, record.value_bytes
    if cursor.at != cursor.end:
        raise MalformedRecords(Reason.COUNT, position=cursor.at - data, detail=f"{count} records")
    return spans


def locate(payload, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, count: cython.longlong):
    view: Py_buffer
    _take(payload, cython.address(view), start, stop)
    try:
        return _locate(cython.cast(cython.p_uchar, view.buf), start, stop, count)
    finally:
        PyBuffer_Release(cython.address(view))
