"""A producer's state in one partition as plain numbers; described by `slots.pyi`."""

import cython
from cpython.array cimport array
from libc.string cimport memmove

BATCHES_KEPT = 5


cdef enum:
    TRANSACTIONAL = 0x10
    CONTROL = 0x20


cdef long long* row_at(array rows, Py_ssize_t at) except NULL:
    if rows.ob_descr.itemsize != 8 or not 0 <= at <= len(rows) - 12:
        raise ValueError("rows must be an array('q') with a whole row there")
    return rows.data.as_longlongs + at


cdef long long last_sequence_of(long long base_sequence, long long count) noexcept:
    return (base_sequence + count - 1) & 0x7FFFFFFF


@cython.final
cdef class ProducerEntry:
    """See the stub."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.last_timestamp_ms = -1
        self.transaction_first_offset = -1
        self.staged_round = -1
        self.staged_sequence = -1
        self.count = 0

    @property
    def batches(self):
        cdef int index
        cdef Kept* one
        found = []
        for index in range(self.count):
            one = &self.kept[index]
            found.append((one.first_sequence, one.last_sequence, one.base_offset, one.last_offset,
                          one.timestamp_ms))
        return found

    @property
    def last_sequence(self):
        return self.kept[self.count - 1].last_sequence if self.count else -1

    @property
    def last_offset(self):
        return self.kept[self.count - 1].last_offset if self.count else -1

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.count = 0

    def keep(
        self,
        long long first_sequence,
        long long last_sequence,
        long long base_offset,
        long long last_offset,
        long long timestamp_ms,
    ) -> None:
        cdef Kept batch
        batch.first_sequence = first_sequence
        batch.last_sequence = last_sequence
        batch.base_offset = base_offset
        batch.last_offset = last_offset
        batch.timestamp_ms = timestamp_ms
        self.push(&batch)

    def is_next(self, array rows, Py_ssize_t at) -> bool:
        cdef long long* row = row_at(rows, at)
        return (
            row[9] == self.epoch >= 0
            and row[10] >= 0
            and (self.transaction_first_offset < 0 or row[5] & TRANSACTIONAL != 0)
            and self.expects(row[10], -2)  # nothing is staged while a batch comes the long way
        )

    def take(self, array rows, Py_ssize_t at) -> bool:
        cdef long long* row = row_at(rows, at)
        cdef Kept batch
        cdef long long last = -1
        cdef bint is_in_transaction = row[5] & TRANSACTIONAL != 0
        if row[9] != self.epoch or row[10] < 0 or row[5] & CONTROL or row[3] < row[2]:
            return False
        if is_in_transaction and self.transaction_first_offset < 0:
            return False
        if self.count:
            last = self.kept[self.count - 1].last_sequence
            if row[2] <= self.kept[self.count - 1].last_offset:
                return False
        if last >= 0 and row[10] != ((last + 1) & 0x7FFFFFFF):
            return False
        batch.first_sequence = row[10]
        batch.last_sequence = last_sequence_of(row[10], row[3] - row[2] + 1)
        batch.base_offset, batch.last_offset, batch.timestamp_ms = row[2], row[3], row[7]
        self.push(&batch)
        self.last_timestamp_ms = row[7]
        return True

    def forget_batches(self) -> None:
        self.count = 0

    cdef void push(self, Kept* batch) noexcept:
        if self.count == 5:
            memmove(&self.kept[0], &self.kept[1], 4 * sizeof(Kept))
            self.count = 4
        self.kept[self.count] = batch[0]
        self.count += 1

    cdef bint expects(self, long long base_sequence, long long staged_round) noexcept:
        cdef int index
        cdef long long last = -1
        for index in range(self.count):
            if self.kept[index].first_sequence == base_sequence:
                return False  # may be a retry
            last = self.kept[index].last_sequence
        if self.staged_round == staged_round:
            last = self.staged_sequence
        return base_sequence == ((last + 1) & 0x7FFFFFFF)
