# C layout of a connection, for the shell.
from millstream.kernels._compiled.input_buffer cimport InputBuffer
from millstream.kernels._compiled.planned_output cimport PlannedOutput
from millstream.kernels._compiled.produce cimport Plan


cdef enum:
    NO_DESCRIPTOR = -1


cdef struct Header:
    int api_key
    int version
    int correlation_id
    Py_ssize_t client_id_size
    unsigned char* client_id
    unsigned char* body


cdef class Connection(InputBuffer):
    cdef public object owner
    cdef public bint allows_fast_path
    cdef public bint is_direct
    cdef public double last_active_s
    cdef public long long unsent_bytes
    # Of the socket, while the epoll shell watches it; else NO_DESCRIPTOR.
    cdef int descriptor
    # Whether the next frame was checked already and takes the slow path.
    cdef bint is_for_python
    # What leaves by itself when the socket can take more; usually nothing.
    cdef PlannedOutput planned
    cdef Py_ssize_t in_flight_max
    cdef long long output_bytes_max
    cdef Plan plan

    cdef bint must_wait(self) noexcept
    cdef bint sends_more(self, double now_s) noexcept
    cdef bint walk(self, long long wall_ms) except -1
    cdef Py_ssize_t frame_size(self) except? -1
    cdef int read_header(self, unsigned char* at, unsigned char* end, Header* header) except -1
    cdef int stage(self, Header* header, long long wall_ms) except -1
    cdef Py_ssize_t stage_parts(self, Header* header, unsigned char* made) except -1
