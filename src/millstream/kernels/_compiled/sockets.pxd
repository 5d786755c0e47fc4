# The calls that move bytes through a socket without blocking.

cdef extern from "<sys/socket.h>" nogil:
    int MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL
    Py_ssize_t recv(int descriptor, void* buffer, size_t size, int flags)
    Py_ssize_t send(int descriptor, const void* buffer, size_t size, int flags)
