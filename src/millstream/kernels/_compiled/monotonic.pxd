# The monotonic clock. Inline only: there is no module behind it.
from libc.stdint cimport int64_t

cdef extern from "<time.h>" nogil:
    struct timespec:
        int64_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec* now)

cdef enum:
    NS_PER_S = 1_000_000_000
    NS_PER_MS = 1_000_000


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * NS_PER_S + now.tv_nsec
