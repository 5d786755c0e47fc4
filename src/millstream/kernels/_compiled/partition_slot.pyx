"""One partition as C numbers; described by `slots.pyi`.

What one event-loop iteration stages is kept in C arrays: a request costs no Python object here.
Small batches are copied together, which is cheaper than a view and an entry of a vectored write for
each.
"""

from collections import deque

import cython
from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free
from libc.string cimport memcpy

from array import array as _array

from millstream.kernels._compiled cimport outcomes
from millstream.kernels._compiled.batch_layout cimport (
    ATTRIBUTES, BASE_OFFSET, BASE_OFFSET_AT, BASE_SEQUENCE, BASE_SEQUENCE_AT, BASE_TIMESTAMP,
    BASE_TIMESTAMP_AT, LAST_OFFSET, LEADER_EPOCH, LEADER_EPOCH_AT, MAX_TIMESTAMP, MAX_TIMESTAMP_AT,
    POSITION, PRODUCER_EPOCH, PRODUCER_EPOCH_AT, PRODUCER_ID, PRODUCER_ID_AT, RECORD_COUNT,
    RECORD_COUNT_AT, ROW_BYTES, ROW_FIELDS, SIZE,
)
from millstream.kernels._compiled.big_endian cimport get_i16, get_i32, get_i64, ms_put32, ms_put64
from millstream.kernels._compiled.growth cimport grow
from millstream.kernels._compiled.index_layout cimport OFFSET_ENTRY_BYTES
from millstream.kernels._compiled.producer_entry cimport Kept, ProducerEntry, last_sequence_of

NO_LIMIT = 9_223_372_036_854_775_807
ENDS_KEPT = ENDS_MAX
NOT_AT_TAIL = outcomes.NOT_AT_TAIL
NOTHING_NEW = outcomes.NOTHING_NEW

cdef array _EMPTY = _array("q")
cdef enum:
    COPIED_BYTES_MAX = 2048


cdef class Answerer:
    """The base of Connection, so that this module need not know it."""

    cdef int release(self, long long number) except -1:
        raise NotImplementedError

    cdef int refuse(self, long long number, Py_ssize_t at, int code) except -1:
        raise NotImplementedError

    cdef int release_input(self) except -1:
        raise NotImplementedError


@cython.final
cdef class Waiting:
    """See the layout."""

    cdef int release_one(self) except -1:
        self.parts -= 1
        if self.parts == 0:
            self.connection.release(self.number)
        return 0


@cython.final
cdef class PartitionSlot:
    """See the stub."""

    def __init__(self, owner) -> None:
        self.owner = owner
        self.producers = {}
        self.leader_epoch = NOT_LED
        self.timestamp_after_max_ms = self.timestamp_before_max_ms = NO_LIMIT
        self.roll_timestamp_ms = NO_LIMIT
        self.seen_by = self.staged_index = NOT_STAGED
        # Lists and the queue come when they are needed: most of ten thousand slots are idle.

    def __dealloc__(self):
        free(self.rows)
        free(self.copied)

    @property
    def staged_end(self):
        return self.log_end + self.records

    @property
    def staged_bytes(self):
        return self.bytes

    @property
    def staged_rows(self):
        cdef array rows = clone(_EMPTY, self.row_count * ROW_FIELDS, False)
        if self.row_count:
            memcpy(rows.data.as_longlongs, self.rows, self.row_count * ROW_BYTES)
        return rows

    @property
    def staged_buffers(self):
        self.close_copied()
        return [] if self.buffers is None else self.buffers

    @property
    def waiting(self):
        return 0 if self.waiting_parts is None else len(self.waiting_parts)

    cdef bint has_room_for(self, long long records, long long size_bytes) noexcept:
        return (
            self.position + self.bytes + size_bytes <= self.position_max
            and records - 1 <= self.offset_max - self.log_end - self.records
            and self.row_count < self.batches_max
        )

    cdef long long stage(
        self, bytearray buffer, unsigned char* data, Py_ssize_t size, ProducerEntry entry
    ) except -1:
        """Take a checked batch, stamped with the offsets it will have; its base offset."""
        cdef long long base_offset = self.log_end + self.records
        cdef long long count = get_i32(data + RECORD_COUNT_AT)
        cdef long long* row
        if self.row_count == self.row_room:
            grow(<void**>&self.rows, &self.row_room, self.row_count + 1, ROW_BYTES)
        ms_put64(data + BASE_OFFSET_AT, base_offset)
        ms_put32(data + LEADER_EPOCH_AT, <unsigned int>self.leader_epoch)
        row = self.rows + self.row_count * ROW_FIELDS
        row[POSITION], row[SIZE] = self.bytes, size
        row[BASE_OFFSET], row[LAST_OFFSET] = base_offset, base_offset + count - 1
        row[LEADER_EPOCH], row[ATTRIBUTES] = self.leader_epoch, 0
        row[BASE_TIMESTAMP] = get_i64(data + BASE_TIMESTAMP_AT)
        row[MAX_TIMESTAMP] = get_i64(data + MAX_TIMESTAMP_AT)
        row[PRODUCER_ID] = get_i64(data + PRODUCER_ID_AT)
        row[PRODUCER_EPOCH] = get_i16(data + PRODUCER_EPOCH_AT)
        row[BASE_SEQUENCE], row[RECORD_COUNT] = get_i32(data + BASE_SEQUENCE_AT), count
        self.keep_bytes(buffer, data, size)
        if self.entries is None:
            self.entries = []
        self.entries.append(entry)
        self.row_count += 1
        self.bytes += size
        self.records += count
        if entry is not None:
            entry.staged_round = self.round
            entry.staged_sequence = last_sequence_of(row[BASE_SEQUENCE], count)
        return base_offset

    cdef int keep_bytes(self, bytearray buffer, unsigned char* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t start
        if size <= COPIED_BYTES_MAX:
            if self.copied_bytes + size > self.copied_room:
                grow(<void**>&self.copied, &self.copied_room, self.copied_bytes + size, 1)
            memcpy(self.copied + self.copied_bytes, data, size)
            self.copied_bytes += size
            return 0
        self.close_copied()
        start = data - <unsigned char*>buffer
        return self.add_buffer(memoryview(buffer)[start : start + size])

    cdef int close_copied(self) except -1:
        if self.copied_bytes:
            self.add_buffer(PyBytes_FromStringAndSize(<char*>self.copied, self.copied_bytes))
            self.copied_bytes = 0
        return 0

    cdef int add_buffer(self, one) except -1:
        if self.buffers is None:
            self.buffers = []
        self.buffers.append(one)
        return 0

    def write_staged(self) -> None:
        if not self.row_count:
            return
        try:
            self.owner.write_staged()
        except Exception as error:
            self.failure = error
            self.drop_staged()

    def apply_staged(self) -> None:
        cdef Py_ssize_t index
        cdef long long* row = self.rows
        cdef ProducerEntry entry
        cdef Kept batch
        for index in range(self.row_count):
            entry = <ProducerEntry>self.entries[index]
            if entry is not None:
                batch.first_sequence = row[BASE_SEQUENCE]
                batch.last_sequence = last_sequence_of(row[BASE_SEQUENCE], row[RECORD_COUNT])
                batch.base_offset, batch.last_offset = row[BASE_OFFSET], row[LAST_OFFSET]
                batch.timestamp_ms = row[MAX_TIMESTAMP]
                entry.push(&batch)
                entry.last_timestamp_ms = row[MAX_TIMESTAMP]
            row += ROW_FIELDS
        self.bytes_in += self.bytes
        self.records_in += self.records
        self.position += self.bytes
        self.log_end += self.records
        self.drop_staged()

    def drop_staged(self) -> None:
        self.round += 1
        self.records = self.bytes = 0
        self.row_count = self.row_room = self.copied_bytes = self.copied_room = 0
        # Given back, as of ten thousand partitions few are written to at once.
        free(self.rows)
        free(self.copied)
        self.rows, self.copied = NULL, NULL
        self.buffers = self.entries = None  # not cleared: the log may still hold them

    def takes(self, long long last_offset, long long size_bytes, long long timestamp_ms) -> bool:
        return (
            self.position + size_bytes <= self.position_max
            and last_offset <= self.offset_max
            and self.batches_max > 0
            and timestamp_ms <= self.roll_timestamp_ms
        )

    def follow(self, long long log_end, long long position, long long index_room_bytes) -> None:
        self.log_end, self.position = log_end, position
        # Each batch may add one entry; the segment rolls before an append that finds it full.
        self.batches_max = 0
        if index_room_bytes > 0:
            self.batches_max = (index_room_bytes + OFFSET_ENTRY_BYTES - 1) // OFFSET_ENTRY_BYTES
        if self.end_count and self.end_offsets[(self.end_next - 1) & ENDS_MASK] == self.log_end:
            self.end_next = (self.end_next - 1) & ENDS_MASK
            self.end_count -= 1
        self.end_offsets[self.end_next] = self.log_end
        self.end_positions[self.end_next] = self.position
        self.end_next = (self.end_next + 1) & ENDS_MASK
        self.end_count = min(self.end_count + 1, ENDS_MAX)

    def forget_tail(self) -> None:
        self.tail_file = None
        self.end_count = 0

    cpdef long long tail(self, long long offset, long long size_max):
        if self.high_watermark != self.log_end:
            return outcomes.NOT_AT_TAIL
        return self.end_tail(offset, size_max)

    cpdef long long end_tail(self, long long offset, long long size_max):
        cdef long long size
        cdef int back, at
        if offset < self.log_start:
            return outcomes.NOT_AT_TAIL
        if offset == self.log_end:
            return outcomes.NOTHING_NEW
        if self.tail_file is None:
            return outcomes.NOT_AT_TAIL
        for back in range(1, self.end_count + 1):  # most readers are at the newest
            at = (self.end_next - back) & ENDS_MASK
            if self.end_offsets[at] == offset:
                size = self.position - self.end_positions[at]
                return self.end_positions[at] if 0 < size <= size_max else outcomes.NOT_AT_TAIL
            if self.end_offsets[at] < offset:
                break
        return outcomes.NOT_AT_TAIL

    def advance_high_watermark(self, long long offset) -> None:
        cdef Waiting request
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        while self.waiting_parts and self.waiting_parts[0][0] <= offset:
            _, request, _ = self.waiting_parts.popleft()
            request.release_one()
        if not self.waiting_parts:
            self.waiting_parts = None

    def fail_waiting(self, int error_code) -> int:
        return self.refuse_waiting(True, 0, error_code)

    def expire_waiting(self, long long wall_ms, int error_code) -> int:
        return self.refuse_waiting(False, wall_ms, error_code)

    cdef int refuse_waiting(self, bint is_all, long long wall_ms, int code) except -1:
        cdef Waiting request
        cdef int refused = 0
        parts, self.waiting_parts = self.waiting_parts, None
        for part in parts or ():
            request = part[1]
            if is_all or request.deadline_ms <= wall_ms:
                request.connection.refuse(request.number, part[2], code)
                request.release_one()
                refused += 1
            else:
                self.keep_waiting(part)
        return refused

    cdef int wait(self, Waiting request, long long end_offset, Py_ssize_t at) except -1:
        request.parts += 1
        return self.keep_waiting((end_offset, request, at))

    cdef int keep_waiting(self, tuple part) except -1:
        if self.waiting_parts is None:
            self.waiting_parts = deque()
        self.waiting_parts.append(part)
        return 0
