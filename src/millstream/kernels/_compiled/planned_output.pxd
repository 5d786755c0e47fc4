# Output that leaves without Python, for connection and shell.

cdef struct Item:
    # Bytes in memory, or with `data` NULL a range of a file.
    const unsigned char* data
    int file
    long long position
    long long size


cdef class PlannedOutput:
    cdef list parts  # keeps alive what the items point to
    cdef Item* items
    cdef Py_ssize_t count
    cdef Py_ssize_t at
    cdef long long sent_of_item
    cdef long long sent_bytes
    cdef bint is_all  # whether nothing follows

    cdef bint send_more(self, int sock) noexcept
    cdef int send_item(self, int sock, long long size_max, long long* sent) noexcept
