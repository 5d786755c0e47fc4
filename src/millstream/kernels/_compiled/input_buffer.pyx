"""What a client sent and was not walked yet; described by `connection.pyi`.

The buffer is a bytearray that is never resized, so its address holds. It is reused only when no
view of it exists, and returned to the table when every byte of it was walked: an idle connection
has none.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.string cimport memcpy, memmove

from millstream.kernels._compiled.answers cimport Answers
from millstream.kernels._compiled.big_endian cimport get_i32
from millstream.kernels._compiled.request_layout cimport FRAME_SIZE_BYTES
from millstream.kernels._compiled.slots cimport LARGE_BYTES_MAX

cdef extern from "Python.h":
    ctypedef struct PyByteArrayObject:
        Py_ssize_t ob_exports

cdef enum:
    BUFFER_BYTES = 32768
    WIDE_BYTES = 262144  # for a client that sends more at once than there was room for
    ROOM_BYTES_MIN = 4096
    ANY_LARGER = 1 << 30  # of which the table has none: exactly the least is wanted


cdef class InputBuffer(Answers):
    """The base of Connection that receives."""

    def __cinit__(self, *_arguments, **_named):
        self.recv_bytes = BUFFER_BYTES

    def get_buffer(self, Py_ssize_t size_hint) -> memoryview:
        self.ensure_room()
        self.given = memoryview(self.buffer)[self.end :]
        return self.given

    def received(self, Py_ssize_t size) -> None:
        if not 0 <= size <= self.capacity - self.end:
            raise ValueError(f"{size} bytes in a buffer of {self.capacity - self.end}")
        self.took(size)
        given, self.given = self.given, None
        if given is not None:
            try:
                given.release()
            except BufferError:
                pass  # a loop that still holds it lets go of it later

    def trim(self) -> None:
        self.release_input()

    def drop_output(self) -> list:
        # The input is returned at once: a closed connection and its owner refer to each other, so
        # it would stay until the garbage collector runs. A view keeps its own buffer alive.
        self.given = None
        self.start = self.end = 0
        self.move_to(None)
        return Answers.drop_output(self)

    @property
    def buffer_bytes(self):
        return self.capacity

    @property
    def resident_bytes(self):
        # One that is too large to be a spare is new: its pages are touched as bytes are received.
        return self.capacity if self.capacity <= LARGE_BYTES_MAX else self.end

    @property
    def unread_bytes(self):
        return self.end - self.start

    cdef bint is_shared(self) noexcept:
        return (<PyByteArrayObject*><void*>self.buffer).ob_exports != 0

    cdef int took(self, Py_ssize_t size) except -1:
        """So much was received. A full buffer means that more waits: the next one is larger."""
        if size == self.capacity - self.end:
            self.recv_bytes = min(2 * self.recv_bytes, WIDE_BYTES)
        elif size < self.recv_bytes >> 2:
            self.recv_bytes = max(self.recv_bytes >> 1, BUFFER_BYTES)
        self.end += size
        return 0

    cdef int ensure_room(self) except -1:
        """Room for as much as came at once before, and for the rest of a frame as it comes."""
        cdef Py_ssize_t left = self.end - self.start
        cdef Py_ssize_t room, wanted, size
        self.release_input()  # the last time there may have been a view of it
        if self.buffer is None:
            self.move_to(self.table.take_spare(self.recv_bytes, self.recv_bytes))
            return 0
        room = self.capacity - self.end
        wanted = max(self.recv_bytes >> 1, self.missing_bytes(left))
        if room >= wanted or (left > WIDE_BYTES and room >= self.recv_bytes >> 1):
            return 0  # to copy much is worth it only where little room is left
        # What is claimed is not believed: at most twice of what came.
        size = min(left + wanted, max(2 * left, self.recv_bytes, left + ROOM_BYTES_MIN))
        if not self.is_shared() and size <= self.capacity <= LARGE_BYTES_MAX:
            if room < ROOM_BYTES_MIN or left <= self.start:
                memmove(self.data, self.data + self.start, left)
                self.start, self.end = 0, left
        elif room < ROOM_BYTES_MIN or not self.is_shared():
            self.move_to(self.table.take_spare(size, left + wanted))
        return 0

    cdef Py_ssize_t missing_bytes(self, Py_ssize_t left) noexcept:
        """Of the frame that begins, as it claims."""
        cdef long long claimed
        if left < FRAME_SIZE_BYTES:
            return ROOM_BYTES_MIN
        claimed = min(<long long>get_i32(self.data + self.start), self.frame_bytes_max)
        return max(ROOM_BYTES_MIN, <Py_ssize_t>claimed + FRAME_SIZE_BYTES - left)

    cdef int move_to(self, bytearray larger) except -1:
        """Go on in another buffer, or in none."""
        cdef Py_ssize_t left = self.end - self.start
        cdef unsigned char* data = NULL
        if larger is not None:
            data = <unsigned char*>PyByteArray_AS_STRING(larger)
            if left:
                memcpy(data, self.data + self.start, left)
        if self.buffer is not None and not self.is_shared():
            self.table.give_spare(self.buffer)
        self.buffer, self.data = larger, data
        self.capacity = 0 if larger is None else len(larger)
        self.start, self.end = 0, left
        return 0

    cdef int release_input(self) except -1:
        """Return the buffer when it is walked to its end and has no views; a large one also when
        little is left: only a client that sends much may hold much.
        """
        cdef Py_ssize_t left = self.end - self.start
        if self.buffer is None or self.is_shared():
            return 0
        if left == 0:
            self.move_to(None)
        elif self.capacity > WIDE_BYTES and left < self.capacity >> 2 and left < WIDE_BYTES >> 1:
            self.move_to(self.table.take_spare(WIDE_BYTES, ANY_LARGER))
        return 0
