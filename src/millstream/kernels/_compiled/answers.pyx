"""The answers of one connection, given in any order and sent in that of the requests (I-36).

Part of `connection.pyi`. Produce answers are made when their requests are staged and lie in one
block until they are released; small answers leave as one part.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from millstream.kernels._compiled.big_endian cimport ms_put16, ms_put64
from millstream.kernels._compiled.growth cimport grow
from millstream.kernels._compiled.partition_slot cimport NOT_STAGED, Answerer
from millstream.kernels._compiled.request_layout cimport ANSWER_BASE_OFFSET_AT, ANSWER_LOG_START_AT
from millstream.kernels._compiled.slots cimport SlotTable

cdef enum:
    OPEN = 0
    MADE = 1
    LATE = 2
    MERGED_BYTES_MAX = 8192
    SMALL_BYTES_MAX = 65536
    RING_ROOM = 8


cdef class Answers(Answerer):
    """See the layout."""

    def __cinit__(self, SlotTable table, *_arguments, **_options):
        self.table = table
        self.staged_index = NOT_STAGED
        self.late = {}
        self.parts = []

    def __dealloc__(self):
        free(self.ring)
        free(self.made)
        free(self.small)

    # -- requests

    cdef Answer* begin(self) except NULL:
        """A slot for the next request's answer."""
        cdef Py_ssize_t old = self.ring_room
        cdef Answer* answer
        if self.count == old:
            grow(<void**>&self.ring, &self.ring_room, max(RING_ROOM, 2 * old), sizeof(Answer))
            # What had wrapped around follows what had not.
            memcpy(self.ring + old, self.ring, self.first * sizeof(Answer))
        answer = self.ring + ((self.first + self.count) & (self.ring_room - 1))
        answer.at = answer.size = 0
        answer.state = OPEN
        self.count += 1
        self.numbered += 1
        return answer

    cdef Answer* find(self, long long number) except NULL:
        cdef long long index = number - (self.numbered - self.count)
        cdef Answer* answer
        if 0 <= index < self.count:
            answer = self.ring + ((self.first + index) & (self.ring_room - 1))
            if answer.state == OPEN:
                return answer
        raise self.table.violation(f"I-36 request {number} was answered already, or never made")

    cdef unsigned char* make_room(self, Py_ssize_t size) except NULL:
        """Where an answer of at most `size` bytes can be made; `made_bytes` is where it begins."""
        cdef Py_ssize_t index
        cdef Py_ssize_t gone = self.made_bytes
        cdef Answer* answer
        if self.made_bytes + size > self.made_room and self.made_count:
            for index in range(self.count):
                answer = self.ring + ((self.first + index) & (self.ring_room - 1))
                if answer.size and answer.at < gone:
                    gone = answer.at
            if gone >= self.made_bytes - gone:
                memmove(self.made, self.made + gone, self.made_bytes - gone)
                self.made_bytes -= gone
                for index in range(self.count):
                    (self.ring + ((self.first + index) & (self.ring_room - 1))).at -= gone
        if self.made_bytes + size > self.made_room:
            grow(<void**>&self.made, &self.made_room, self.made_bytes + size, 1)
        return self.made + self.made_bytes

    # -- answers

    def answer(self, long long number, parts) -> None:
        cdef Answer* answer
        if self.is_closed:
            return
        answer = self.find(number)
        if number == self.numbered - self.count:
            for part in parts:
                self.send_part(part)
            answer.state = MADE
            self.send_ready()
            self.table.note_ready(self)
        else:
            self.add_late(number, parts)
            answer.state = LATE

    def answer_nothing(self, long long number) -> None:
        self.answer(number, ())

    cdef int release(self, long long number) except -1:
        if self.is_closed:
            return 0
        self.find(number).state = MADE
        if number == self.numbered - self.count:
            self.send_ready()
            self.table.note_ready(self)
        return 0

    cdef int refuse(self, long long number, Py_ssize_t at, int code) except -1:
        """Turn one partition of a made answer into an error; see StagedPartition for `at`."""
        cdef Answer* answer
        cdef unsigned char* field
        if self.is_closed:
            return 0
        answer = self.find(number)
        if answer.size == 0:
            return 0
        field = ms_put16(self.made + answer.at + (at if at > 0 else -at), <unsigned int>code)
        ms_put64(field, <unsigned long long>-1)
        if at > 0:
            ms_put64(field + ANSWER_LOG_START_AT - ANSWER_BASE_OFFSET_AT, <unsigned long long>-1)
        return 0

    cdef int add_late(self, long long number, parts) except -1:
        for part in parts:
            self.late_size += size_of(part)
        self.late[number] = parts
        return 0

    cdef int send_late(self) except -1:
        """The oldest, which was given before its turn."""
        for part in self.late.pop(self.numbered - self.count):
            self.late_size -= size_of(part)
            self.send_part(part)
        return 0

    cdef int send_ready(self) except -1:
        cdef Answer* answer
        while self.count:
            answer = self.ring + self.first
            if answer.state == OPEN:
                break
            if answer.size:
                self.send_small(self.made + answer.at, answer.size)
                self.made_count -= 1
            elif answer.state == LATE:
                self.send_late()
            self.first = (self.first + 1) & (self.ring_room - 1)
            self.count -= 1
        if self.made_count == 0:
            self.made_bytes = 0
            if self.made_room > SMALL_BYTES_MAX:
                free(self.made)
                self.made, self.made_room = NULL, 0
        return 0

    # -- output

    cdef int send_part(self, part) except -1:
        cdef Py_buffer view
        if not isinstance(part, (bytes, bytearray, memoryview)):
            self.close_small()
            self.queued_bytes += part.size_bytes
            self.parts.append(part)
            return 0
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        try:
            if view.len <= MERGED_BYTES_MAX:
                return self.send_small(<unsigned char*>view.buf, view.len)
            self.close_small()
            self.queued_bytes += view.len
            self.parts.append(part)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int send_small(self, const unsigned char* data, Py_ssize_t size) except -1:
        if self.small_bytes and self.small_bytes + size > SMALL_BYTES_MAX:
            self.close_small()
        if self.small_bytes + size > self.small_room:
            grow(<void**>&self.small, &self.small_room, self.small_bytes + size, 1)
        memcpy(self.small + self.small_bytes, data, size)
        self.small_bytes += size
        self.queued_bytes += size
        return 0

    cdef int close_small(self) except -1:
        if self.small_bytes:
            self.parts.append(PyBytes_FromStringAndSize(<char*>self.small, self.small_bytes))
            self.small_bytes = 0
        return 0

    def take_output(self) -> list:
        self.close_small()
        output, self.parts, self.queued_bytes = self.parts, [], 0
        return output

    def drop_output(self) -> list:
        self.is_closed = True
        output = self.take_output()
        for number in sorted(self.late):
            output.extend(self.late[number])
        self.late.clear()
        self.late_size = 0
        self.count = self.made_count = self.made_bytes = 0
        return output

    @property
    def output_bytes(self):
        return self.queued_bytes

    @property
    def late_bytes(self):
        cdef Py_ssize_t total = 0
        if self.late_size:
            for parts in self.late.values():
                for part in parts:
                    if isinstance(part, (bytes, bytearray, memoryview)):
                        total += len(part)
        return total

    @property
    def in_flight(self):
        return self.count


cdef Py_ssize_t size_of(part) except -1:
    if isinstance(part, (bytes, bytearray, memoryview)):
        return len(part)
    return part.size_bytes
