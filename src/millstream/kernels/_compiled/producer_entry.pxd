# C layout of a producer's state, for slots and produce.

cdef enum:
    KEPT_MAX = 5

cdef struct Kept:
    long long first_sequence
    long long last_sequence
    long long base_offset
    long long last_offset
    long long timestamp_ms

cdef class ProducerEntry:
    cdef public long long producer_id
    cdef public long long epoch
    cdef public long long coordinator_epoch
    cdef public long long last_timestamp_ms
    cdef public long long transaction_first_offset
    cdef long long staged_round
    cdef long long staged_sequence
    cdef Kept kept[KEPT_MAX]
    cdef int count

    cdef bint expects(self, long long base_sequence, long long staged_round) noexcept
    cdef void push(self, Kept* batch) noexcept

cdef long long last_sequence_of(long long base_sequence, long long count) noexcept
