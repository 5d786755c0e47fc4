# Sending a range of a file, for whoever does it without Python.

cdef enum:
    ALL_SENT = 0
    IS_FULL = 1
    IS_COLD = 2
    IS_SHORT = 3
    IS_UNKNOWN = 4
    HAS_FAILED = 5  # errno says how

cdef int send_range(
    int sock, int file, long long position, long long size, long long* sent
) noexcept
