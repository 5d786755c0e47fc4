# Constants of column_decode.py. `kernels/column_types.py` has those with the same names for plain
# Python; a test compares the two.

cdef enum:
    # What `Run` returns beside a Reason.
    PARTIAL = -1
    FULL = -2

cdef enum:
    # Bits of the flags column.
    FLAG_CONTROL = 1
    FLAG_TRANSACTIONAL = 2
    FLAG_LOG_APPEND_TIME = 4

cdef enum:
    DECODE_ROW_COST = 32
    GUESS_BYTES_MAX = 8 * 1024 * 1024
