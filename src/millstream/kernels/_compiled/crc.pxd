# CRC-32C of bytes in memory, for batches that are checked where they lie.

cdef unsigned int crc32c_of(const unsigned char* data, Py_ssize_t size) noexcept nogil
