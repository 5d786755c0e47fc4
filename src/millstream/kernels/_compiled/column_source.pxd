# C layout of the classes in column_source.py, for column_encode.py and partitioner.py.
from libc.stdint cimport int64_t, uint8_t

from millstream.kernels._compiled.column_buffers cimport Held


cdef class Spans:
    cdef Held offsets_held
    cdef Held data_held
    cdef Held bits_held
    cdef uint8_t* offsets
    cdef uint8_t* data
    cdef uint8_t* bits
    cdef int64_t data_bytes
    cdef int64_t first

    cdef int64_t size(self, int64_t row, uint8_t** start) noexcept


cdef Spans binary(column, rows, what)


cdef class Source:
    cdef int64_t rows
    cdef int64_t header_rows
    cdef int64_t selected
    cdef Held timestamps
    cdef Held selection
    cdef Spans keys
    cdef Spans values
    cdef Spans lists
    cdef Spans header_keys
    cdef Spans header_values

    # The record at hand, set by `measure`.
    cdef int64_t row
    cdef int64_t timestamp
    cdef int64_t time_delta
    cdef int64_t body_bytes
    cdef int64_t key_size
    cdef int64_t value_size
    cdef int64_t header_start
    cdef int64_t header_count
    cdef uint8_t* key
    cdef uint8_t* value

    cdef int64_t timestamp_at(self, int64_t index) except? -1
    cdef int64_t measure(
        self, int64_t index, int64_t delta, int64_t base_timestamp
    ) except -1
    cdef int64_t measure_headers(self, int64_t row) except -1
    cdef uint8_t* write(self, uint8_t* to, int64_t delta) noexcept
