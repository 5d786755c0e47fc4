# C layout of slots, for their table, produce and connection.
from millstream.kernels._compiled.producer_entry cimport ProducerEntry


cdef enum:
    ENDS_MAX = 16  # a power of two, as ENDS_MASK goes around
    ENDS_MASK = ENDS_MAX - 1
    NOT_STAGED = -1  # a `staged_index`
    NOT_LED = -1  # a leader epoch


cdef class Answerer:
    # What the table knows of a connection: it answers staged requests by their number.
    cdef Py_ssize_t staged_index
    cdef bint is_ready

    cdef int release(self, long long number) except -1
    cdef int refuse(self, long long number, Py_ssize_t at, int code) except -1
    cdef int release_input(self) except -1


cdef class Waiting:
    # A request with acks=-1 that the high watermark does not cover yet.
    cdef Answerer connection
    cdef long long number
    cdef long long deadline_ms
    cdef int parts

    cdef int release_one(self) except -1


cdef class PartitionSlot:
    cdef public object owner
    cdef public dict producers
    cdef public long long log_start
    cdef public long long log_end
    cdef public long long high_watermark
    cdef public long long leader_epoch
    cdef public long long position
    cdef public long long position_max
    cdef public long long offset_max
    cdef public long long message_bytes_max
    cdef public long long batches_max
    cdef public long long timestamp_after_max_ms
    cdef public long long timestamp_before_max_ms
    cdef public long long roll_timestamp_ms
    cdef public bint needs_key
    cdef public bint allows_fast_path
    cdef public bint allows_fast_path_acks_all
    cdef public object tail_file
    cdef public bint is_decided
    # A ring of the newest ends of the log and where they are in the active segment.
    cdef long long end_offsets[ENDS_MAX]
    cdef long long end_positions[ENDS_MAX]
    cdef int end_count
    cdef int end_next
    cdef public long long bytes_in
    cdef public long long records_in
    cdef long long round
    cdef long long seen_by
    cdef object failure
    cdef int failure_code
    cdef Py_ssize_t staged_index
    cdef long long records
    cdef long long bytes
    cdef long long* rows
    cdef Py_ssize_t row_count
    cdef Py_ssize_t row_room
    cdef unsigned char* copied
    cdef Py_ssize_t copied_bytes
    cdef Py_ssize_t copied_room
    cdef list buffers
    cdef list entries
    cdef object waiting_parts

    cpdef long long tail(self, long long offset, long long size_max)
    cpdef long long end_tail(self, long long offset, long long size_max)
    cdef bint has_room_for(self, long long records, long long size_bytes) noexcept
    cdef long long stage(
        self, bytearray buffer, unsigned char* data, Py_ssize_t size, ProducerEntry entry
    ) except -1
    cdef int keep_bytes(self, bytearray buffer, unsigned char* data, Py_ssize_t size) except -1
    cdef int close_copied(self) except -1
    cdef int add_buffer(self, one) except -1
    cdef int keep_waiting(self, tuple part) except -1
    cdef int refuse_waiting(self, bint is_all, long long wall_ms, int code) except -1
    cdef int wait(self, Waiting request, long long end_offset, Py_ssize_t at) except -1
