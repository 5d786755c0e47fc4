"""Memory of the column kernels: buffers held while read, and buffers that grow while written.

Not a kernel of its own: the C layout is in `column_buffers.pxd`, and only the compiled column
kernels use it.

Large buffers are reused once nothing refers to them any more. Fresh memory would cost more, in
page faults, than writing it: a quarter of all a reader of 1 KB records does.
"""

from collections import deque

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytearray import (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_Resize,
)
from cython.cimports.cpython.ref import Py_REFCNT
from cython.cimports.libc.stdint import int32_t, uint8_t
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.millstream.kernels._compiled.column_buffers import allocated

from millstream.kernels.column_types import BinaryColumn

__all__ = ["Binary", "Growing", "Held"]

p_u8 = cython.typedef(cython.pointer[uint8_t])
p_i32 = cython.typedef(cython.pointer[int32_t])

KEPT_BYTES_MIN = cython.declare(cython.Py_ssize_t, 16 * 1024)
"""Of a buffer that is kept. malloc returns smaller ones to the system and requests them again
rarely enough."""
KEPT_BYTES_MAX = cython.declare(cython.Py_ssize_t, 32 * 1024 * 1024)
"""Of all of them: two or three Arrow batches, and what keys might have needed. The oldest are freed
first."""
STEP_BYTES = cython.declare(cython.Py_ssize_t, 16 * 1024)
LARGE_STEP_BYTES = cython.declare(cython.Py_ssize_t, 256 * 1024)
"""Sizes are rounded up, so that a need of nearly the same size finds the buffer of the last."""

_kept = cython.declare(object, deque())


@cython.cfunc
@cython.exceptval(check=False)
def _rounded(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    step: cython.Py_ssize_t = LARGE_STEP_BYTES if size > LARGE_STEP_BYTES else STEP_BYTES
    return (size + step - 1) // step * step


@cython.cfunc
def _unused(size: cython.Py_ssize_t):
    """A kept buffer that has room for that much, not for far more, and no other owner."""
    one: bytearray
    for one in _kept:
        # The deque's reference and our own.
        if Py_REFCNT(one) <= 2 and size < allocated(one) <= 2 * size + STEP_BYTES:
            return one
    return None


@cython.cfunc
def _keep(one: bytearray):
    _kept.append(one)
    total: cython.Py_ssize_t = 0
    for one in _kept:
        total += allocated(one)
    while total > KEPT_BYTES_MAX:
        total -= allocated(_kept.popleft())


@cython.cclass
class Held:
    """A buffer held as long as its pointer is used."""

    def __cinit__(self, source):
        PyObject_GetBuffer(source, cython.address(self.raw), PyBUF_SIMPLE)
        self.data = cython.cast(p_u8, self.raw.buf)

    def __dealloc__(self):
        PyBuffer_Release(cython.address(self.raw))


@cython.cclass
class Growing:
    """A bytearray that is filled through a pointer and handed over without a copy.

    What is reserved and never written costs address space, not memory.
    """

    def __cinit__(self):
        self.held = PyByteArray_FromStringAndSize(cython.NULL, 0)
        self.at = cython.cast(p_u8, PyByteArray_AS_STRING(self.held))
        self.used = 0
        self.capacity = 0
        self.is_kept = False

    def fit(self, size):
        if size > self.capacity:
            size = max(size, 2 * self.capacity)
            if size < KEPT_BYTES_MIN:
                PyByteArray_Resize(self.held, size)
                self.capacity = size
            else:
                size = _rounded(size)
                if not self.change(size):
                    PyByteArray_Resize(self.held, size)
                    self.capacity = size
            self.at = cython.cast(p_u8, PyByteArray_AS_STRING(self.held))
        return 0

    def change(self, size):
        # Go on in a kept buffer, if one fits: in all of it, so that it is never made smaller.
        other: bytearray = _unused(size)
        if other is None:
            return False
        size = allocated(other) - 1
        PyByteArray_Resize(other, size)
        if self.capacity > 0:
            memcpy(PyByteArray_AS_STRING(other), self.at, self.used or self.capacity)
        self.held = other
        self.capacity = size
        self.is_kept = True
        return True

    def fit_bits(self, rows):
        # Bits start as valid; a null clears its own.
        before: cython.Py_ssize_t = self.capacity
        self.fit((rows >> 3) + 1)
        if self.capacity > before:
            memset(self.at + before, 0xFF, self.capacity - before)
        return 0

    def take(self, size):
        if self.capacity < KEPT_BYTES_MIN:
            PyByteArray_Resize(self.held, size)
            return self.held
        if not self.is_kept:
            self.is_kept = True
            _keep(self.held)
        if size < allocated(self.held) // 2:
            # Far more was reserved than came: a bytearray would move to make itself smaller, and
            # the large one would be lost for the next time.
            return self.copied(size)
        PyByteArray_Resize(self.held, size)
        return self.held

    def copied(self, size):
        small: Growing = Growing()
        small.fit(size)
        memcpy(small.at, self.at, size)
        return small.take(size)

    def take_bits(self, rows, nulls):
        if nulls == 0:
            return None
        if rows & 7:
            self.at[rows >> 3] &= (1 << (rows & 7)) - 1
        return self.take((rows + 7) >> 3)


@cython.cclass
class Binary:
    """A variable-size column under construction."""

    def __cinit__(self):
        self.offsets = Growing()
        self.data = Growing()
        self.bits = Growing()
        self.nulls = 0

    def fit(self, rows, data_bytes):
        is_new: cython.bint = self.offsets.capacity == 0
        self.offsets.fit(4 * (rows + 1))
        if is_new:
            cython.cast(p_i32, self.offsets.at)[0] = 0
        self.bits.fit_bits(rows)
        self.data.fit(data_bytes)
        return 0

    def append(self, row, source, size):
        # For headers, which are rare; the loop over records does this with local pointers.
        self.fit(row + 1, self.data.used + max(size, 0))
        if size < 0:
            self.bits.at[row >> 3] &= ~(1 << (row & 7))
            self.nulls += 1
        elif size > 0:
            memcpy(self.data.at + self.data.used, source, size)
            self.data.used += size
        cython.cast(p_i32, self.offsets.at)[row + 1] = cython.cast(int32_t, self.data.used)
        return 0

    def column(self, rows):
        self.fit(rows, 0)
        return BinaryColumn(
            offsets=self.offsets.take(4 * (rows + 1)),
            data=self.data.take(self.data.used),
            validity=self.bits.take_bits(rows, self.nulls),
        )
