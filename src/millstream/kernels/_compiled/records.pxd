# C layout of records.py, and what other kernels use of it without Python objects between.

cdef enum:
    RELEASE_BYTES = 65536  # above this, which may be millions of records, the GIL is released

cdef struct Cursor:
    # The next byte and the end; `failed` is set by the first wrong varint.
    unsigned char* at
    unsigned char* end
    bint failed

cdef struct Record:
    # `key` is NULL for a null key.
    long long timestamp_delta
    long long offset_delta
    unsigned char* key
    long long key_bytes
    long long value_bytes

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
