# Entries of a segment's indexes. Constants only: there is no module behind it.

cdef enum:
    # Relative offset and position.
    OFFSET_ENTRY_BYTES = 8
    # Timestamp and relative offset.
    TIME_ENTRY_BYTES = 12
    TIME_ENTRY_OFFSET_AT = 8
