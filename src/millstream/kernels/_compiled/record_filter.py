"""The records of a batch that compaction keeps, joined; part of `records.pyi`."""

import cython
from cython.cimports.cpython.array import array
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy
from cython.cimports.millstream.kernels._compiled import batch_layout as layout


@cython.cfunc
@cython.exceptval(-1)
def _kept_bytes(
    spans: array, keep: cython.p_uchar, payload_bytes: cython.longlong
) -> cython.longlong:
    """Bytes of the kept spans, after proof that they ascend inside the payload."""
    span: cython.p_longlong = spans.data.as_longlongs
    index: cython.Py_ssize_t
    total: cython.longlong = 0
    floor: cython.longlong = 0
    for index in range(len(spans) // layout.SPAN_FIELDS):
        if not floor <= span[layout.START] <= span[layout.STOP] <= payload_bytes:
            raise ValueError(f"span {index} lies outside the payload")
        floor = span[layout.STOP]
        if keep[index]:
            total += span[layout.STOP] - span[layout.START]
        span += layout.SPAN_FIELDS
    return total


@cython.cfunc
def _retain(
    data: cython.p_uchar, spans: array, keep: cython.p_uchar, total: cython.longlong
) -> bytes:
    kept: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
    into: cython.p_char = PyBytes_AS_STRING(kept)
    span: cython.p_longlong = spans.data.as_longlongs
    index: cython.Py_ssize_t
    size: cython.longlong
    for index in range(len(spans) // layout.SPAN_FIELDS):
        if keep[index]:
            size = span[layout.STOP] - span[layout.START]
            memcpy(into, data + span[layout.START], size)
            into += size
        span += layout.SPAN_FIELDS
    return kept


def retain(payload, spans: array, keep):
    view: Py_buffer
    flags: Py_buffer
    kept: cython.p_uchar
    total: cython.longlong
    records: cython.Py_ssize_t
    if spans.ob_descr.itemsize != 8 or len(spans) % layout.SPAN_FIELDS != 0:
        raise ValueError("spans must be an array('q') of whole spans")
    PyObject_GetBuffer(payload, cython.address(view), PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(keep, cython.address(flags), PyBUF_SIMPLE)
        try:
            records = len(spans) // layout.SPAN_FIELDS
            if flags.len != records:
                raise ValueError(f"{flags.len} flags for {records} records")
            kept = cython.cast(cython.p_uchar, flags.buf)
            total = _kept_bytes(spans, kept, view.len)
            return _retain(cython.cast(cython.p_uchar, view.buf), spans, kept, total)
        finally:
            PyBuffer_Release(cython.address(flags))
    finally:
        PyBuffer_Release(cython.address(view))
