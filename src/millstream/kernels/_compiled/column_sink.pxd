# C layout of the class in column_sink.py, for column_decode.py.
from libc.stdint cimport int64_t, uint8_t

from millstream.kernels._compiled.column_buffers cimport Binary, Growing


cdef class Sink:
    cdef Py_ssize_t rows
    cdef Py_ssize_t header_rows
    cdef bint with_headers
    cdef int64_t first_offset
    cdef int64_t end_offset
    cdef Growing offsets
    cdef Growing timestamps
    cdef Growing flags
    cdef Growing list_offsets
    cdef Binary keys
    cdef Binary values
    cdef Binary header_keys
    cdef Binary header_values

    # The batch at hand, set by the driver.
    cdef int64_t base_offset
    cdef int64_t last_offset
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    cdef int attributes
    cdef int64_t count

    cdef int fit_rows(self, Py_ssize_t rows) except -1
    cdef int fit(self, Py_ssize_t rows, Py_ssize_t data_bytes) except -1
    cdef int add_records(self, uint8_t* data, Py_ssize_t end) except -1
    cdef int add_headers(self, uint8_t* data, Py_ssize_t at, Py_ssize_t end, bint keep) except -1
    cdef object columns(self)
