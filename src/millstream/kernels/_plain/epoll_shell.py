"""The system calls of unencrypted sockets around the connection core; see `epoll_shell.pyi`."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Final

from millstream.kernels.errors import FrameError
from millstream.kernels.outcomes import CONNECTIONS_READY, ENDED, LOOP_READY, REQUESTS, WRITABLE

if TYPE_CHECKING:
    from millstream.kernels._plain.connection import Connection
    from millstream.kernels._plain.slots import SlotTable

__all__ = ["CONNECTIONS_READY", "ENDED", "LOOP_READY", "REQUESTS", "WRITABLE", "EpollShell"]

_EVENTS_MAX: Final = 256
_UNFINISHED_BYTES: Final = 262_144
_READ_BYTES_MAX: Final = 2_097_152
_READ_ONCE_BYTES_MAX: Final = 1_048_576
_READ: Final = select.EPOLLIN | select.EPOLLRDHUP
_WRITE: Final = select.EPOLLOUT
_BROKEN: Final = select.EPOLLHUP | select.EPOLLERR


class EpollShell:
    """See the stub."""

    def __init__(self, table: SlotTable, *, unread_bytes_threshold: int = 262_144) -> None:
        self._table = table
        self._unread_bytes_threshold = unread_bytes_threshold
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._descriptors: dict[Connection, int] = {}
        self._loop = -1
        self._events: list[tuple[int, int]] = []
        """Found by `wait` and not handled yet."""
        self._first = 0
        """Where the next `read_ready` begins among its events."""
        self._left_bytes = 0
        """That this one may still read for unfinished requests."""

    def fileno(self) -> int:
        return self._epoll.fileno()

    def add(self, connection: Connection, descriptor: int) -> None:
        self._epoll.register(descriptor, _READ)
        self._connections[descriptor] = connection
        self._descriptors[connection] = descriptor
        connection.is_direct = True

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None:
        events = (_READ if reading else 0) | (_WRITE if writing else 0)
        self._epoll.modify(self._descriptors[connection], events)

    def forget(self, connection: Connection) -> None:
        self._events = []  # it may be among those; the others will be found again
        descriptor = self._descriptors.pop(connection)
        del self._connections[descriptor]
        self._epoll.unregister(descriptor)
        connection.is_direct = False

    def close(self) -> None:
        self._epoll.close()

    def watch_loop(self, descriptor: int) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)
        self._loop = descriptor

    def wait(self, timeout_ms: int) -> int:
        # It sleeps at once: a spin in Python costs what it should save.
        timeout_s = -1 if timeout_ms < 0 else timeout_ms / 1000
        found = self._epoll.poll(timeout_s, _EVENTS_MAX)
        self._events = [one for one in found if one[0] != self._loop]
        is_loop = len(self._events) < len(found)
        return (CONNECTIONS_READY if self._events else 0) | (LOOP_READY if is_loop else 0)

    def read_ready(self, now_s: float, wall_ms: int) -> list[tuple[Connection, int, int]]:
        pending = []
        found, self._events = self._events or self._epoll.poll(0, _EVENTS_MAX), []
        first, skipped = (self._first % len(found) if found else 0), None
        self._left_bytes = _READ_BYTES_MAX
        for number, (descriptor, events) in enumerate(found[first:] + found[:first]):
            if descriptor == self._loop:
                continue  # the loop polls its own epoll
            connection = self._connections[descriptor]
            flags, error = WRITABLE if events & _WRITE else 0, 0
            if events & _READ:
                connection.last_active_s = now_s
                if self._left_bytes > 0 or connection.unread_bytes < _UNFINISHED_BYTES:
                    flag, error = self._read(connection, descriptor, wall_ms)
                    flags |= flag
                elif skipped is None:
                    skipped = first + number  # it fires again
            elif events & _BROKEN:
                flags |= ENDED
            if flags:
                pending.append((connection, flags, error))
        self._first = skipped or 0
        return pending

    def _read(self, connection: Connection, descriptor: int, wall_ms: int) -> tuple[int, int]:
        unfinished, capacity = connection.unread_bytes, connection.buffer_bytes
        room = connection.get_buffer(0)
        if unfinished >= _UNFINISHED_BYTES:
            room = room[:_READ_ONCE_BYTES_MAX]
            if connection.buffer_bytes != capacity:
                self._left_bytes -= unfinished  # it was copied
        try:
            size = os.readv(descriptor, [room])
        except BlockingIOError:
            return 0, 0
        except OSError as error:
            return ENDED, error.errno or 0
        if not size:
            self._left_bytes -= unfinished >> 3  # to free as many pages takes some time, too
            return ENDED, 0
        if unfinished >= _UNFINISHED_BYTES:
            self._left_bytes -= size
        connection.received(size)
        try:
            is_for_python = connection.walk(wall_ms)
        except FrameError:
            return REQUESTS, 0
        is_for_python = is_for_python or connection.is_blocked
        is_large = connection.unread_bytes >= self._unread_bytes_threshold
        return REQUESTS if is_for_python or is_large else 0, 0

    def plan(
        self,
        connection: Connection,
        parts: list[tuple[bytes | None, int, int, int]],
        *,
        skip: int,
        is_all: bool,
    ) -> bool:
        # Sending from Python here gains nothing: the owner of the queue does it.
        del connection, parts, skip, is_all
        return False

    def take_planned(self, connection: Connection) -> int:
        del connection
        return 0

    def send_ready(self) -> list[Connection]:
        return [one for one in self._table.take_ready() if not self._send(one)]

    def _send(self, connection: Connection) -> bool:
        """Whether all that was ready has left."""
        if not connection.is_direct or connection not in self._descriptors:
            return False
        output = connection.take_output()
        if len(output) > 1 or not all(isinstance(part, bytearray) for part in output):
            connection.take_back(output)
            return False
        data = b"".join(output)
        sent = 0
        try:
            sent = os.write(self._descriptors[connection], data) if data else 0
        except OSError:
            sent = 0  # the next send raises the error
        if sent < len(data):
            connection.take_back([bytearray(data[sent:])])
        return sent == len(data)
