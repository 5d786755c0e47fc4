"""The system calls of unencrypted sockets around the connection core; see `epoll_shell.pyi`.

The calls are made with the GIL: they do not block, and to release it and get it back can cost more
than the call when a thread waits for it.
"""

import os

import cython
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memmove

from millstream.kernels._compiled cimport epoll, outcomes
from millstream.kernels._compiled.connection cimport NO_DESCRIPTOR, Connection
from millstream.kernels._compiled.monotonic cimport NS_PER_MS, now_ns
from millstream.kernels._compiled.planned_output cimport PlannedOutput
from millstream.kernels._compiled.slots cimport SlotTable
from millstream.kernels._compiled.sockets cimport MSG_DONTWAIT, MSG_NOSIGNAL, recv, send

from millstream.kernels.errors import FrameError

__all__ = ["CONNECTIONS_READY", "ENDED", "LOOP_READY", "REQUESTS", "WRITABLE", "EpollShell"]

REQUESTS = outcomes.REQUESTS
WRITABLE = outcomes.WRITABLE
ENDED = outcomes.ENDED
CONNECTIONS_READY = outcomes.CONNECTIONS_READY
LOOP_READY = outcomes.LOOP_READY

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    EVENTS_MAX = 256
    # Of a connection with so much of an unfinished request, another part is read only while an
    # iteration has not read or moved more than READ_BYTES_MAX for such connections.
    UNFINISHED_BYTES = 262144
    READ_BYTES_MAX = 2097152
    READ_ONCE_BYTES_MAX = 1048576
    SPIN_NS = 40_000  # about what it costs to sleep and to be woken
    SHORT_NS = 60_000  # a sleep that a spin would have replaced: it takes the waking as well
    NO_SLEEP_NS = 4_000  # it had come before
    SPIN_CREDIT = 8
    CREDIT_MAX = 64
    CLOSED = -1  # instead of the epoll's descriptor


@cython.final
cdef class EpollShell:
    """See the stub."""

    cdef SlotTable table
    cdef int descriptor  # of the epoll itself
    cdef Py_ssize_t unread_bytes_threshold
    cdef dict connections  # keeps alive what the kernel points to
    cdef epoll.epoll_event events[EVENTS_MAX]
    cdef int event_count  # found by `wait` and not handled yet
    cdef int credit  # see `spin`
    cdef int first  # where the next `read_ready` begins among its events
    cdef Py_ssize_t left_bytes  # that this one may still read for unfinished requests

    def __init__(self, SlotTable table, *, Py_ssize_t unread_bytes_threshold=262_144) -> None:
        self.table = table
        self.unread_bytes_threshold = unread_bytes_threshold
        self.connections = {}
        self.descriptor = epoll.epoll_create1(epoll.EPOLL_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(errno, os.strerror(errno))

    def fileno(self) -> int:
        return self.descriptor

    def add(self, Connection connection, int descriptor) -> None:
        cdef uint32_t events = epoll.EPOLLIN | epoll.EPOLLRDHUP
        self.control(epoll.EPOLL_CTL_ADD, descriptor, <void*>connection, events)
        self.connections[descriptor] = connection
        connection.descriptor = descriptor
        connection.is_direct = True

    def watch(self, Connection connection, *, bint reading, bint writing) -> None:
        cdef uint32_t events = 0
        if reading:
            events |= epoll.EPOLLIN | epoll.EPOLLRDHUP
        if writing:
            events |= epoll.EPOLLOUT
        self.control(epoll.EPOLL_CTL_MOD, connection.descriptor, <void*>connection, events)

    def forget(self, Connection connection) -> None:
        self.event_count = 0  # it may be among those; the others will be found again
        connection.planned = None
        del self.connections[connection.descriptor]
        self.control(epoll.EPOLL_CTL_DEL, connection.descriptor, NULL, 0)
        connection.descriptor = NO_DESCRIPTOR
        connection.is_direct = False

    cdef int control(
        self, int operation, int descriptor, void* data, uint32_t events
    ) except -1:
        cdef epoll.epoll_event event
        event.events = events
        event.data.ptr = data  # NULL is the loop's own epoll
        if epoll.epoll_ctl(self.descriptor, operation, descriptor, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        return 0

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = CLOSED

    # -- input

    def watch_loop(self, int descriptor) -> None:
        self.control(epoll.EPOLL_CTL_ADD, descriptor, NULL, epoll.EPOLLIN)

    def wait(self, int timeout_ms) -> int:
        cdef int64_t left_ns, until_ns = now_ns() + timeout_ms * <int64_t>NS_PER_MS
        cdef int count, found
        while True:
            count = 0
            if timeout_ms != 0 and self.credit >= SPIN_CREDIT:
                with nogil:
                    count = self.spin()
            if count == 0:
                count = self.sleep(timeout_ms)
            found = self.sort_out(count)
            if found or count == 0:
                return found
            # Nothing came but room for more output: the wait goes on.
            if timeout_ms >= 0:
                left_ns = until_ns - now_ns()
                if left_ns <= 0:
                    return 0
                timeout_ms = <int>((left_ns + NS_PER_MS - 1) // NS_PER_MS)

    cdef int sort_out(self, int count) except -1:
        """Keep the events that are for `read_ready`; returns what `wait` does."""
        cdef Connection connection
        cdef epoll.epoll_event* event
        cdef int index, kept = 0, found = 0
        for index in range(count):
            event = &self.events[index]
            if event.data.ptr == NULL:
                found = outcomes.LOOP_READY
                continue
            connection = <Connection>event.data.ptr
            if event.events != epoll.EPOLLOUT or not connection.sends_more(now_ns() * 1e-9):
                self.events[kept] = event[0]
                kept += 1
        self.event_count = kept
        return found | outcomes.CONNECTIONS_READY if kept else found

    cdef int spin(self) noexcept nogil:
        """Poll for a moment instead of sleeping.

        To sleep and be woken costs the processor more than a short wait, on virtual machines
        several times more, and the caches are cold afterwards. A spin that brings nothing is a
        loss, so it takes credit, which short sleeps earn: eight of them pay for one such loss, and
        a long one halves what there is. A broker without work has none and never spins.
        """
        cdef int count
        cdef int64_t until_ns = now_ns() + SPIN_NS
        while True:
            count = epoll.epoll_wait(self.descriptor, self.events, EVENTS_MAX, 0)
            if count != 0:
                return max(count, 0)
            if now_ns() >= until_ns:
                break
            sched_yield()  # the thread that waits for this processor may bring something
        self.credit -= SPIN_CREDIT
        return 0

    cdef int sleep(self, int timeout_ms) except -1:
        cdef int count
        cdef int64_t slept_ns = now_ns()
        with nogil:
            count = epoll.epoll_wait(self.descriptor, self.events, EVENTS_MAX, timeout_ms)
        if count < 0:
            if errno != EINTR:
                raise OSError(errno, os.strerror(errno))
            return 0
        slept_ns = now_ns() - slept_ns
        if slept_ns > SHORT_NS:
            self.credit >>= 1
        elif slept_ns > NO_SLEEP_NS:
            self.credit = min(self.credit + 1, CREDIT_MAX)
        return count

    def read_ready(self, double now_s, long long wall_ms) -> list:
        cdef Connection connection
        cdef epoll.epoll_event* event
        cdef int number, index, flags, error
        cdef int count = self.event_count, skipped = -1
        cdef bint is_waited = count != 0  # then `wait` has sent what was planned
        self.event_count = 0
        if count == 0:
            count = epoll.epoll_wait(self.descriptor, self.events, EVENTS_MAX, 0)
        pending = []
        self.left_bytes = READ_BYTES_MAX
        for number in range(count):
            index = (self.first + number) % count
            event = &self.events[index]
            if event.data.ptr == NULL:
                continue  # the loop polls its own epoll
            connection = <Connection>event.data.ptr
            if event.events == epoll.EPOLLOUT and not is_waited and connection.sends_more(now_s):
                continue
            flags = outcomes.WRITABLE if event.events & epoll.EPOLLOUT else 0
            error = 0
            if event.events & (epoll.EPOLLIN | epoll.EPOLLRDHUP):
                connection.last_active_s = now_s
                if self.left_bytes > 0 or connection.end - connection.start < UNFINISHED_BYTES:
                    flags |= self.read(connection, wall_ms, &error)
                elif skipped < 0:
                    skipped = index  # it fires again
            elif event.events & (epoll.EPOLLHUP | epoll.EPOLLERR):
                flags |= outcomes.ENDED
            if flags:
                pending.append((connection, flags, error))
        self.first = max(skipped, 0)
        return pending

    cdef int read(self, Connection connection, long long wall_ms, int* error) except -1:
        """Read once: what is left fires again, after the others had their turn."""
        cdef Py_ssize_t size, unfinished = connection.end - connection.start
        cdef unsigned char* before = connection.data
        cdef bint is_for_python
        connection.ensure_room()
        size = connection.capacity - connection.end
        if unfinished >= UNFINISHED_BYTES:
            size = min(size, <Py_ssize_t>READ_ONCE_BYTES_MAX)
            if connection.data != before:
                self.left_bytes -= unfinished  # it was copied
        size = recv(connection.descriptor, connection.data + connection.end, size, MSG_DONTWAIT)
        if size <= 0:
            if size < 0 and (errno == EAGAIN or errno == EINTR):
                return 0
            self.left_bytes -= unfinished >> 3  # to free as many pages takes some time, too
            error[0] = errno if size < 0 else 0
            return outcomes.ENDED
        if unfinished >= UNFINISHED_BYTES:
            self.left_bytes -= size
        connection.took(size)
        try:
            is_for_python = connection.walk(wall_ms)
        except FrameError:
            return outcomes.REQUESTS  # `next_request` raises it again
        is_for_python = (
            is_for_python
            or connection.must_wait()
            or connection.end - connection.start >= self.unread_bytes_threshold
        )
        return outcomes.REQUESTS if is_for_python else 0

    # -- output

    def plan(self, Connection connection, list parts, *, long long skip, bint is_all) -> bool:
        connection.planned = PlannedOutput(parts, skip, is_all)
        return connection.planned.send_more(connection.descriptor)

    def take_planned(self, Connection connection) -> int:
        cdef PlannedOutput planned = connection.planned
        connection.planned = None
        return 0 if planned is None else planned.sent_bytes

    def send_ready(self) -> list:
        cdef Connection connection
        left = []
        for connection in self.table.take_ready():
            if not self.send_small(connection):
                left.append(connection)
        return left

    cdef bint send_small(self, Connection connection) except -1:
        """Whether all that was ready has left."""
        cdef Py_ssize_t sent
        if not connection.is_direct or connection.descriptor < 0 or connection.parts:
            return False
        if connection.small_bytes == 0:
            return True
        sent = send(
            connection.descriptor,
            connection.small,
            connection.small_bytes,
            MSG_DONTWAIT | MSG_NOSIGNAL,
        )
        if sent <= 0:
            return False  # the next send raises the error
        connection.small_bytes -= sent
        connection.queued_bytes -= sent
        memmove(connection.small, connection.small + sent, connection.small_bytes)
        return connection.small_bytes == 0
