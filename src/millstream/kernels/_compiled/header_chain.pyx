"""Whether batches follow each other, by their headers only; see `header_chain.pyi`.

The calls are made with the GIL: none of them blocks, but where the caller allows it.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, EOPNOTSUPP, errno

from millstream.kernels._compiled cimport outcomes
from millstream.kernels._compiled cimport batch_layout as layout
from millstream.kernels._compiled.big_endian cimport get_i32, get_i64

__all__ = ["BROKEN", "COLD", "SHORT", "WHOLE", "check_bytes", "check_file"]

WHOLE = outcomes.WHOLE
COLD = outcomes.COLD_CHAIN
SHORT = outcomes.SHORT_CHAIN
BROKEN = outcomes.BROKEN

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t preadv2(int file, const iovec* parts, int count, long long position, int flags)

cdef extern from "<unistd.h>" nogil:
    int SEEK_HOLE
    long long lseek(int file, long long position, int whence)

cdef enum:
    READ_BYTES = 4096  # many headers where batches are small
    NOT_CACHED = -1
    FAILED = -2  # errno says how

cdef long long INT64_MAX = 0x7FFFFFFFFFFFFFFF
cdef int NOWAIT = getattr(os, "RWF_NOWAIT", 0)


cdef inline long long step(const unsigned char* at, long long* offset) noexcept:
    """The size of the batch, 0 if it is wrong; `offset` becomes the smallest that may follow."""
    cdef long long base = get_i64(at + layout.BASE_OFFSET_AT)
    cdef long long delta = get_i32(at + layout.LAST_OFFSET_DELTA_AT)
    cdef long long size = get_i32(at + layout.LENGTH_AT) + layout.UNCOUNTED_BYTES
    if at[layout.MAGIC_AT] != layout.MAGIC_V2 or size < layout.HEADER_BYTES:
        return 0
    if base < offset[0] or delta < 0 or base >= INT64_MAX - delta:
        return 0
    offset[0] = base + delta + 1
    return size


cdef bint is_chain(const unsigned char* data, long long size, long long offset) noexcept:
    cdef long long position = 0
    cdef long long found
    while size - position >= layout.HEADER_BYTES:
        found = step(data + position, &offset)
        if found <= 0:
            return False
        position += found
    return position == size


def check_bytes(buffer, long long offset):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        return is_chain(<const unsigned char*>view.buf, view.len, offset)
    finally:
        PyBuffer_Release(&view)


def check_file(
    int file, long long position, long long stop, long long end, long long offset, bint may_wait
):
    cdef unsigned char data[READ_BYTES]
    cdef long long start = 0
    cdef long long size = 0
    cdef long long found = 0
    cdef int flags = 0 if may_wait else NOWAIT
    if position < 0 or stop > end:
        raise ValueError(f"[{position}, {stop}) of {end} bytes")
    while position < stop:
        if position + layout.HEADER_BYTES > start + size:
            start = position
            # Behind a large batch comes another one: then more than the header is not needed.
            size = layout.HEADER_BYTES if found >= READ_BYTES else READ_BYTES
            size = read_some(file, data, min(size, end - position), position, flags)
            if size == FAILED:
                raise OSError(errno, os.strerror(errno))
            is_partial = 0 < size < layout.HEADER_BYTES <= end - position
            if size == NOT_CACHED or (is_partial and flags):
                hole = has_hole(file, position, stop)
                return position, outcomes.BROKEN if hole else outcomes.COLD_CHAIN
            if size < layout.HEADER_BYTES:
                is_cut = layout.HEADER_BYTES <= end - position
                return position, outcomes.SHORT_CHAIN if is_cut else outcomes.BROKEN
        found = step(data + (position - start), &offset)
        if not 0 < found <= end - position:
            return position, outcomes.BROKEN
        position += found
    return position, outcomes.WHOLE


cdef long long read_some(
    int file, unsigned char* data, long long size, long long position, int flags
) noexcept:
    cdef iovec part
    cdef Py_ssize_t done
    part.iov_base = data
    part.iov_len = <size_t>size
    while True:
        done = preadv2(file, &part, 1, position, flags)
        if done >= 0:
            return done
        if errno == EAGAIN and flags:
            return NOT_CACHED
        if errno == EOPNOTSUPP and flags:
            flags = 0
        elif errno != EINTR:
            return FAILED


cdef bint has_hole(int file, long long position, long long stop) noexcept:
    """A log has none: bytes that were never written are read as zeros."""
    cdef long long found = lseek(file, position, SEEK_HOLE)
    return 0 <= found < stop
