# C layout of the classes in column_buffers.py, for the column kernels beside it.
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy


cdef extern from "Python.h":
    ctypedef struct PyByteArrayObject:
        Py_ssize_t ob_alloc


cdef inline Py_ssize_t allocated(bytearray one) noexcept:
    return (<PyByteArrayObject*>one).ob_alloc


cdef inline int32_t load32(const uint8_t* at) noexcept:
    # Through memcpy: a slice of a buffer may stand at any address.
    cdef int32_t value
    memcpy(&value, at, 4)
    return value


cdef class Held:
    cdef Py_buffer raw
    cdef uint8_t* data


cdef class Growing:
    cdef bytearray held
    cdef uint8_t* at
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef bint is_kept

    cdef int fit(self, Py_ssize_t size) except -1
    cdef bint change(self, Py_ssize_t size) except -1
    cdef int fit_bits(self, Py_ssize_t rows) except -1
    cdef object take(self, Py_ssize_t size)
    cdef object copied(self, Py_ssize_t size)
    cdef object take_bits(self, Py_ssize_t rows, int64_t nulls)


cdef class Binary:
    cdef Growing offsets
    cdef Growing data
    cdef Growing bits
    cdef int64_t nulls

    cdef int fit(self, Py_ssize_t rows, Py_ssize_t data_bytes) except -1
    cdef int append(self, Py_ssize_t row, uint8_t* source, int64_t size) except -1
    cdef object column(self, Py_ssize_t rows)
