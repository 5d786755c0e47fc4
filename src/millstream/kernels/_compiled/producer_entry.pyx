"""A producer's state in one partition as C numbers; described by `slots.pyi`."""

import cython
from cpython.array cimport array
from libc.string cimport memmove

from millstream.kernels._compiled.batch_layout cimport (
    ATTRIBUTES, BASE_OFFSET, BASE_SEQUENCE, CONTROL, LAST_OFFSET, MAX_TIMESTAMP, PRODUCER_EPOCH,
    ROW_FIELDS, SEQUENCE_MASK, TRANSACTIONAL,
)

BATCHES_KEPT = KEPT_MAX

cdef enum:
    NONE_YET = -1  # of a sequence, an offset, a timestamp, an epoch or a round
    NEVER_STAGED = -2  # a round that no slot has: nothing is staged while Python appends a batch


cdef long long* row_at(array rows, Py_ssize_t at) except NULL:
    if rows.ob_descr.itemsize != 8 or not 0 <= at <= len(rows) - ROW_FIELDS:
        raise ValueError("rows must be an array('q') with a whole row there")
    return rows.data.as_longlongs + at


cdef long long last_sequence_of(long long base_sequence, long long count) noexcept:
    return (base_sequence + count - 1) & SEQUENCE_MASK


@cython.final
cdef class ProducerEntry:
    """See the stub."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = NONE_YET
        self.last_timestamp_ms = NONE_YET
        self.transaction_first_offset = NONE_YET
        self.staged_round = NONE_YET
        self.staged_sequence = NONE_YET
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
        return self.kept[self.count - 1].last_sequence if self.count else NONE_YET

    @property
    def last_offset(self):
        return self.kept[self.count - 1].last_offset if self.count else NONE_YET

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
            row[PRODUCER_EPOCH] == self.epoch >= 0
            and row[BASE_SEQUENCE] >= 0
            and (self.transaction_first_offset < 0 or row[ATTRIBUTES] & TRANSACTIONAL != 0)
            and self.expects(row[BASE_SEQUENCE], NEVER_STAGED)
        )

    def take(self, array rows, Py_ssize_t at) -> bool:
        cdef long long* row = row_at(rows, at)
        cdef Kept batch
        cdef long long first = row[BASE_SEQUENCE]
        cdef long long last = NONE_YET
        cdef bint is_in_transaction = row[ATTRIBUTES] & TRANSACTIONAL != 0
        if row[PRODUCER_EPOCH] != self.epoch or first < 0 or row[ATTRIBUTES] & CONTROL:
            return False
        if row[LAST_OFFSET] < row[BASE_OFFSET]:
            return False
        if is_in_transaction and self.transaction_first_offset < 0:
            return False
        if self.count:
            last = self.kept[self.count - 1].last_sequence
            if row[BASE_OFFSET] <= self.kept[self.count - 1].last_offset:
                return False
        if last >= 0 and first != ((last + 1) & SEQUENCE_MASK):
            return False
        batch.first_sequence = first
        batch.last_sequence = last_sequence_of(first, row[LAST_OFFSET] - row[BASE_OFFSET] + 1)
        batch.base_offset, batch.last_offset = row[BASE_OFFSET], row[LAST_OFFSET]
        batch.timestamp_ms = row[MAX_TIMESTAMP]
        self.push(&batch)
        self.last_timestamp_ms = row[MAX_TIMESTAMP]
        return True

    def forget_batches(self) -> None:
        self.count = 0

    cdef void push(self, Kept* batch) noexcept:
        if self.count == KEPT_MAX:
            memmove(&self.kept[0], &self.kept[1], (KEPT_MAX - 1) * sizeof(Kept))
            self.count = KEPT_MAX - 1
        self.kept[self.count] = batch[0]
        self.count += 1

    cdef bint expects(self, long long base_sequence, long long staged_round) noexcept:
        cdef int index
        cdef long long last = NONE_YET
        for index in range(self.count):
            if self.kept[index].first_sequence == base_sequence:
                return False  # may be a retry
            last = self.kept[index].last_sequence
        if self.staged_round == staged_round:
            last = self.staged_sequence
        return base_sequence == ((last + 1) & SEQUENCE_MASK)
