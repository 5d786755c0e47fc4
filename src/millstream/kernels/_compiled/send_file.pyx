"""From a file's pages to a socket without a copy in between; see `send_file.pyi`.

The calls are made with the GIL, as in the shell: none of them blocks.
"""

import os

from libc.errno cimport EAGAIN, EINTR, EINVAL, ENOSYS, errno

from millstream.kernels._compiled cimport outcomes

__all__ = ["COLD", "FULL", "SENT", "SHORT", "UNKNOWN", "send_file"]

SENT = outcomes.SENT
FULL = outcomes.FULL
COLD = outcomes.COLD
SHORT = outcomes.SHORT
UNKNOWN = outcomes.UNKNOWN

cdef extern from "<sys/types.h>" nogil:
    ctypedef long long off_t

cdef extern from "<sys/mman.h>" nogil:
    int PROT_NONE, MAP_SHARED
    void* MAP_FAILED
    void* mmap(void* address, size_t size, int protection, int flags, int file, off_t position)
    int munmap(void* address, size_t size)
    int mincore(void* address, size_t size, unsigned char* pages)

cdef extern from "<sys/sendfile.h>" nogil:
    Py_ssize_t sendfile(int sock, int file, off_t* position, size_t size)

cdef enum:
    WINDOW_BYTES = 1 << 20
    PAGE_BYTES_MIN = 4096
    PAGES_MAX = WINDOW_BYTES // PAGE_BYTES_MIN + 1
    IN_CORE = 1  # the bit that mincore sets
    RESIDENCY_UNKNOWN = -1  # instead of a number of bytes

cdef Py_ssize_t page_bytes = os.sysconf("SC_PAGE_SIZE")
if page_bytes < PAGE_BYTES_MIN:
    raise ImportError(f"pages of {page_bytes} bytes")


def send_file(int sock, int file, long long position, long long size):
    cdef long long sent = 0
    cdef int state
    if position < 0 or size < 0:
        raise ValueError(f"{size} bytes from byte {position}")
    state = send_range(sock, file, position, size, &sent)
    if state == outcomes.FAILED:
        raise OSError(errno, os.strerror(errno))
    return sent, state


cdef int send_range(
    int sock, int file, long long position, long long size, long long* sent
) noexcept:
    cdef Py_ssize_t cached, done
    cdef off_t at
    while sent[0] < size:
        at = position + sent[0]
        cached = cached_bytes(file, at, <Py_ssize_t>min(size - sent[0], <long long>WINDOW_BYTES))
        if cached <= 0:
            return outcomes.UNKNOWN if cached < 0 else outcomes.COLD
        done = sendfile(sock, file, &at, cached)
        if done < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                return outcomes.FULL
            if errno == EINVAL or errno == ENOSYS:
                return outcomes.UNKNOWN
            return outcomes.FAILED
        sent[0] += done
        if done < cached:
            return outcomes.FULL if done else outcomes.SHORT
    return outcomes.SENT


cdef Py_ssize_t cached_bytes(int file, long long position, Py_ssize_t size) noexcept:
    """From `position` on; or RESIDENCY_UNKNOWN."""
    cdef unsigned char pages[PAGES_MAX]
    cdef Py_ssize_t skipped = <Py_ssize_t>(position % page_bytes)
    cdef Py_ssize_t length = skipped + size
    cdef Py_ssize_t count = (length + page_bytes - 1) // page_bytes
    cdef Py_ssize_t found = 0
    cdef int failed
    # Pages are not touched through the mapping, so no access needs to be allowed.
    cdef void* address = mmap(NULL, length, PROT_NONE, MAP_SHARED, file, position - skipped)
    if address == MAP_FAILED:
        return RESIDENCY_UNKNOWN
    failed = mincore(address, length, pages)
    munmap(address, length)
    if failed:
        return RESIDENCY_UNKNOWN
    while found < count and pages[found] & IN_CORE:
        found += 1
    return max(0, min(size, found * page_bytes - skipped))
