"""What is left of a connection's output, sent chunk by chunk when its socket can take more.

A client that takes megabytes takes them in many chunks, and between two of them there is nothing to
decide. Everything else (the disk, an error, the end) is left to Python, which finds it again.
"""

import cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc

from millstream.kernels._compiled cimport outcomes
from millstream.kernels._compiled.send_file cimport send_range
from millstream.kernels._compiled.sockets cimport MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, send

cdef enum:
    TURN_BYTES_MAX = 8 * 1024 * 1024  # then the others have their turn


@cython.final
cdef class PlannedOutput:
    """See the layout."""

    def __cinit__(self, list parts, long long skip, bint is_all):
        cdef Item* item
        self.items = <Item*>malloc(max(1, len(parts)) * sizeof(Item))
        if self.items == NULL:
            raise MemoryError
        self.parts = parts
        for part, file, position, size in parts:
            item = self.items + self.count
            item.data, item.file, item.position, item.size = NULL, file, position, size
            if item.file < 0:
                if not isinstance(part, bytes) or PyBytes_GET_SIZE(part) != item.size:
                    raise ValueError(f"{size} bytes of {type(part)}")
                item.data = <const unsigned char*>PyBytes_AS_STRING(part)
            elif item.position < 0 or item.size < 0:
                raise ValueError(f"{size} bytes from byte {position}")
            self.count += 1
        if self.count == 0 or not 0 <= skip <= self.items[0].size:
            raise ValueError(f"{skip} bytes of the first part have left")
        self.sent_of_item = skip
        self.is_all = is_all

    def __dealloc__(self):
        free(self.items)

    cdef bint send_more(self, int sock) noexcept:
        """Whether it goes on when the socket can take more; if not, Python has to decide."""
        cdef long long left = TURN_BYTES_MAX
        cdef long long sent
        cdef int state
        while self.at < self.count and left > 0:
            sent = 0
            state = self.send_item(sock, left, &sent)
            left -= sent
            self.sent_bytes += sent
            self.sent_of_item += sent
            if self.sent_of_item == self.items[self.at].size:
                self.at += 1
                self.sent_of_item = 0
            if state != outcomes.SENT:
                return state == outcomes.FULL and self.at < self.count
        return self.at < self.count

    cdef int send_item(self, int sock, long long size_max, long long* sent) noexcept:
        cdef Item* item = self.items + self.at
        cdef long long size = min(item.size - self.sent_of_item, size_max)
        cdef Py_ssize_t done
        cdef bint is_last = self.is_all and self.at == self.count - 1
        if item.data == NULL:
            return send_range(sock, item.file, item.position + self.sent_of_item, size, sent)
        # What stands before a range is small; it leaves with the range's first bytes.
        done = send(
            sock, item.data + self.sent_of_item, size,
            MSG_DONTWAIT | MSG_NOSIGNAL | (0 if is_last else MSG_MORE),
        )
        if done < 0:
            return outcomes.FULL if errno == EAGAIN or errno == EINTR else outcomes.FAILED
        sent[0] = done
        return outcomes.SENT if done == size else outcomes.FULL
