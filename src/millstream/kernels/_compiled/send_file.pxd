# Sending a range of a file without Python, for planned output. Returns one of `outcomes`.

cdef int send_range(
    int sock, int file, long long position, long long size, long long* sent
) noexcept
