# C layout of what a connection received, for it and for the shell.
from millstream.kernels._compiled.answers cimport Answers


cdef class InputBuffer(Answers):
    cdef long long frame_bytes_max
    cdef object given
    cdef bytearray buffer
    cdef unsigned char* data
    cdef Py_ssize_t capacity
    # What was received and not yet walked is [start, end) of the buffer.
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    # How much to have room for when nothing is there yet; follows what comes.
    cdef Py_ssize_t recv_bytes

    cdef bint is_shared(self) noexcept
    cdef int took(self, Py_ssize_t size) except -1
    cdef int ensure_room(self) except -1
    cdef Py_ssize_t missing_bytes(self, Py_ssize_t left) noexcept
    cdef int move_to(self, bytearray larger) except -1
