# Whether batches in memory follow each other, for other kernels.

cdef bint is_chain(
    const unsigned char* data, long long size, long long offset
) noexcept
