# What other kernels use of records.py without Python objects between.

cdef struct Inspection:
    # As `inspect` returns them.
    int reason
    long long oldest
    long long newest
    long long newest_at
    long long null_keys

cdef void inspect_records(
    unsigned char* start, unsigned char* stop, long long count, bint contiguous, Inspection* found
) noexcept nogil
