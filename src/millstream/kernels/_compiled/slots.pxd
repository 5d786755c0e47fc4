# C layout of the table of slots, for produce and connection.
from millstream.kernels._compiled.partition_slot cimport Answerer, PartitionSlot

cdef enum:
    LARGE_BYTES_MAX = 16 * 1024 * 1024  # of buffers that are kept for other connections


cdef struct StagedPartition:
    # One partition of a staged request. `at`: where its error code is in the answer, negative
    # when no log start follows.
    Py_ssize_t slot
    Py_ssize_t at
    long long end_offset


cdef struct Request:
    Py_ssize_t connection
    Py_ssize_t first_partition
    Py_ssize_t partition_count
    long long number
    long long deadline_ms
    int acks


cdef class Topic:
    cdef list slots


cdef class SlotTable:
    cdef readonly object violation
    cdef public long long produce_requests
    cdef public long long produce_bytes_in
    cdef public long long produce_bytes_out
    cdef public long long produce_errors
    cdef long long requests_checked
    cdef long long version
    cdef dict by_name
    cdef dict by_id
    cdef list slots
    cdef list connections
    cdef Request* requests
    cdef Py_ssize_t request_count
    cdef Py_ssize_t request_room
    cdef StagedPartition* partitions
    cdef Py_ssize_t partition_count
    cdef Py_ssize_t partition_room
    cdef list ready
    cdef list failed
    cdef list spares
    cdef list large_spares
    cdef Py_ssize_t large_bytes

    cdef int add_request(self, Answerer connection, Request* request) except -1
    cdef int add_partition(self, PartitionSlot slot, Py_ssize_t at) except -1
    cdef int finish(self, Request* request) except -1
    cdef int note_ready(self, Answerer connection) except -1
    cdef bytearray take_spare(self, Py_ssize_t size_min, Py_ssize_t size_best)
    cdef bytearray newest_spare(self, Py_ssize_t size_min, Py_ssize_t size_max)
    cdef int give_spare(self, bytearray buffer) except -1
