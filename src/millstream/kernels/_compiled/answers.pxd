# The answers of one connection in request order, for connection.
from millstream.kernels._compiled.partition_slot cimport Answerer
from millstream.kernels._compiled.slots cimport SlotTable


cdef struct Answer:
    # `made` answers lie at [at, at + size) of the connection's bytes; size 0 is no answer.
    Py_ssize_t at
    Py_ssize_t size
    int state


cdef class Answers(Answerer):
    cdef SlotTable table
    cdef bint is_closed
    cdef long long numbered
    # A ring of the requests in flight, the oldest at `first`.
    cdef Answer* ring
    cdef Py_ssize_t ring_room
    cdef Py_ssize_t first
    cdef Py_ssize_t count
    # Answers that wait for earlier ones, and their size.
    cdef dict late
    cdef Py_ssize_t late_size
    # Answers that were made when their requests were staged.
    cdef unsigned char* made
    cdef Py_ssize_t made_bytes
    cdef Py_ssize_t made_room
    cdef Py_ssize_t made_count
    # Output: whole parts, then the bytes of small ones.
    cdef list parts
    cdef unsigned char* small
    cdef Py_ssize_t small_bytes
    cdef Py_ssize_t small_room
    cdef Py_ssize_t queued_bytes

    cdef Answer* begin(self) except NULL
    cdef Answer* find(self, long long number) except NULL
    cdef unsigned char* make_room(self, Py_ssize_t size) except NULL
    cdef int add_late(self, long long number, parts) except -1
    cdef int send_late(self) except -1
    cdef int send_ready(self) except -1
    cdef int send_part(self, part) except -1
    cdef int send_small(self, const unsigned char* data, Py_ssize_t size) except -1
    cdef int close_small(self) except -1
