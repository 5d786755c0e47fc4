"""Unencrypted sockets without asyncio transports, in an epoll of our own.

A `DirectLoop` waits in it; another loop watches it as one descriptor. When it fires, everything
that arrived on any connection is read and handled together: the loop's own cost per event is paid
at most once per iteration instead of once per connection, requests of many connections share one
write per partition, and answers go straight to the socket instead of through a transport's buffer.
"""

import errno
import os
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from millstream.broker.net.exchange import Exchange
from millstream.broker.net.peer import CLOSED, Cause, ClientPeer
from millstream.broker.requests.answer_parts import path_of, size_of
from millstream.broker.requests.context import AnswerPart
from millstream.broker.requests.request_memory import COUNTED_BYTES_MIN
from millstream.kernels.connection import Connection
from millstream.kernels.epoll_shell import ENDED, REQUESTS, WRITABLE, EpollShell
from millstream.kernels.send_file import COLD, SENT, SHORT, UNKNOWN, send_file
from millstream.model.limits import KIB, MIB
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.disk import ShortFile
from millstream.runtime.loop import DirectLoop
from millstream.storage.log.reader import ReadSlice

SEND_BUFFER_BYTES: Final = 256 * KIB
"""One send: enough to make the call cheap, small enough to stay in the processor's cache."""

SENDFILE_BYTES_MIN: Final = 64 * KIB
"""Smaller ranges are read and sent together: checking the page cache for them would cost more."""

TURN_BYTES_MAX: Final = 8 * MIB
"""After so much a client that takes its answer as fast as it is sent waits for the others' turn."""

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)

PlannedPart = tuple[bytes | None, int, int, int]
"""Bytes, or a file's descriptor and a position; and a size."""


class Loop(Protocol):
    """The methods of an event loop that the shell uses."""

    def add_reader(self, fd: int, callback: Callable[..., Any], *arguments: Any) -> None: ...

    def remove_reader(self, fd: int) -> Any: ...


class SocketShell:
    """Carries all unencrypted connections of a broker."""

    def __init__(self, loop: Loop, exchange: Exchange, background: Background) -> None:
        self._loop = loop
        self._exchange = exchange
        self.background = background
        self._epoll = EpollShell(exchange.table, unread_bytes_threshold=COUNTED_BYTES_MIN)
        self.send_ready: Callable[[], list[Connection]] = self._epoll.send_ready
        """Called by the exchange for the connections with output."""
        self.buffer = memoryview(bytearray(SEND_BUFFER_BYTES))
        """Shared by all sends: its content never outlives a call."""
        self.uses_sendfile = True
        """False after a file system did not support it."""
        self._direct = loop if isinstance(loop, DirectLoop) else None
        if self._direct is None or not self._direct.serve(self._epoll, self._run_iteration):
            self._direct = None
            loop.add_reader(self._epoll.fileno(), self._run_iteration)

    def add(
        self, sock: socket.socket, core: Connection, *, listener: str, client_host: str, number: int
    ) -> "SocketPeer":
        """Take over an accepted, non-blocking socket."""
        peer = SocketPeer(self, sock, self._exchange, core, (listener, client_host, number))
        self._epoll.add(core, sock.fileno())
        return peer

    def watch(self, core: Connection, *, reading: bool, writing: bool) -> None:
        self._epoll.watch(core, reading=reading, writing=writing)

    def plan(self, core: Connection, parts: list[PlannedPart], *, skip: int, is_all: bool) -> bool:
        """Let parts of a queue be sent without Python; see `EpollShell.plan`."""
        return self._epoll.plan(core, parts, skip=skip, is_all=is_all)

    def take_planned(self, core: Connection) -> int:
        return self._epoll.take_planned(core)

    def forget(self, core: Connection) -> None:
        self._epoll.forget(core)

    def close(self) -> None:
        """After the last connection."""
        if self._direct is not None:
            self._direct.stop_serving()
        else:
            self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _run_iteration(self) -> None:
        exchange = self._exchange
        exchange.begin()
        for core, flags, error in self._epoll.read_ready(exchange.now_s, exchange.wall_ms):
            peer: SocketPeer = core.owner
            if peer.state == CLOSED:
                continue  # in this very iteration
            if flags & WRITABLE:
                exchange.on_output_ready(peer)
            if flags & REQUESTS:
                exchange.on_readable(peer)
            if flags & ENDED:
                peer.abort(os.strerror(error) if error else "closed by the client", Cause.CLIENT)
        exchange.finish()


class SocketPeer(ClientPeer):
    """A connection on an unencrypted socket."""

    def __init__(
        self,
        shell: SocketShell,
        sock: socket.socket,
        exchange: Exchange,
        core: Connection,
        facts: tuple[str, str, int],
    ) -> None:
        listener, client_host, number = facts
        super().__init__(exchange, core, listener=listener, client_host=client_host, number=number)
        self._shell = shell
        self._socket = sock
        self._is_writing = False
        self._is_pause_due = False
        """Reading is paused and the epoll not updated yet. With an answer about to be sent that can
        wait until it is known whether the client takes it: most do, and reading goes on."""
        self._sent_of_first = 0
        """Bytes of the queue's first part that were sent."""
        self._is_loading = False
        """Whether a thread reads cold data for the queue's first part."""
        self._is_planned = False
        """Whether the epoll sends from the queue's front when the socket can take more."""

    # -- input -----------------------------------------------------------------------------

    def pause_reading(self) -> None:
        if self._is_reading and self.state != CLOSED:
            self._is_reading = False
            self._is_pause_due = True
            self._set_direct()
        if self._is_pause_due and not self.core.output_bytes:
            self._watch()

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._is_pause_due and not self._is_writing:
            self._is_pause_due = False
            self._set_direct()
        else:
            self._watch()

    def _watch(self) -> None:
        self._is_pause_due = False
        self._shell.watch(self.core, reading=self._is_reading, writing=self._is_writing)
        self._set_direct()

    def _set_direct(self) -> None:
        """Set whether answers may be sent without Python: not while reading is paused, and never
        before the queue, whether that waits for the socket or for the disk (I-36).
        """
        self.core.is_direct = self._is_reading and not self._queue and self.state != CLOSED

    def has_left(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    # -- output ----------------------------------------------------------------------------

    def send_queue(self) -> bool:
        is_empty = self._send_queue()
        self._set_direct()
        return is_empty

    def _send_queue(self) -> bool:
        self._take_planned()
        if self._is_loading:
            self._set_writing(False)
            return False
        try:
            if len(self._queue) == 1 and self._send_only():
                return True
            if self._send_planned():
                self._set_writing(True)
                return False
            is_empty = self._send_turn()
        except BlockingIOError:
            is_empty = False
        except OSError as error:
            self._fail(error)
            return False
        # While a thread reads there is nothing to write: the socket would only report, again
        # and again, that it could take more.
        if self._is_writing or not is_empty:
            self._set_writing(not is_empty and not self._is_loading)
        return is_empty

    def _send_planned(self) -> bool:
        """Let the epoll send what it can without Python, now and whenever there is room.

        False: the epoll has no plan any more, and the caller sends the rest of the queue.
        """
        parts: list[PlannedPart] = []
        for part in self._queue:
            if type(part) is bytes:
                parts.append((part, -1, 0, len(part)))
            elif isinstance(part, ReadSlice):
                descriptor = self._descriptor_of(part, 0)
                if descriptor < 0:
                    break
                parts.append((None, descriptor, part.position, part.size_bytes))
            else:
                break
        if not parts:
            return False
        is_all = len(parts) == len(self._queue)
        shell, skip = self._shell, self._sent_of_first
        self._is_planned = True
        if shell.plan(self.core, parts, skip=skip, is_all=is_all):
            return True
        self._take_planned()
        return False

    def _take_planned(self) -> None:
        """Take the queue back from the epoll, without what was sent."""
        if self._is_planned:
            self._is_planned = False
            self._sent(self._shell.take_planned(self.core))

    def _send_only(self) -> bool:
        """Send a queue of one whole part, which most are; False: continue on the slow path."""
        only = self._queue[0]
        if type(only) is not bytes or self._sent_of_first or self._is_writing:
            return False
        size = self._socket.send(only)
        if size < len(only):
            self._sent_of_first = size
            return False
        self._queue.clear()
        return True

    def _send_turn(self) -> bool:
        """Send from the queue while the socket takes it; returns whether all was sent."""
        queue, left = self._queue, TURN_BYTES_MAX
        while queue and left > 0:
            size, can_send_more = self._send_some()
            left -= size
            if not can_send_more:
                return False
        return not queue

    def _send_some(self) -> tuple[int, bool]:
        """Send the front of the queue: the bytes sent, and whether to go on."""
        queue, skip = self._queue, self._sent_of_first
        first = queue[0]
        if isinstance(first, ReadSlice):
            descriptor = self._descriptor_of(first, skip)
            if descriptor >= 0:
                return self._send_range(first, skip, descriptor)
        elif len(queue) == 1 or len(first) >= SEND_BUFFER_BYTES // 4:
            return self._send(memoryview(first)[skip:], is_last=len(queue) == 1)
        filled, is_last = self._fill()
        if filled < 0:
            return 0, False  # a thread is reading; it calls flush when it is done
        return self._send(self._shell.buffer[:filled], is_last=is_last)

    def _send(self, view: memoryview, *, is_last: bool) -> tuple[int, bool]:
        # The bytes before a range are few; they are sent with the range's first bytes.
        size = self._socket.send(view, 0 if is_last else socket.MSG_MORE)
        self._sent(size)
        return size, size == len(view)

    def _descriptor_of(self, part: ReadSlice, skip: int) -> int:
        """The file of a range that is better sent by sendfile than through the buffer; else -1."""
        if part.size_bytes - skip < SENDFILE_BYTES_MIN or not self._shell.uses_sendfile:
            return -1
        descriptor = part.file.open().descriptor if part.file is not None else None
        return -1 if descriptor is None else descriptor

    def _send_range(self, part: ReadSlice, skip: int, descriptor: int) -> tuple[int, bool]:
        left = part.size_bytes - skip
        size, state = send_file(
            self._socket.fileno(), descriptor, part.position + skip, min(left, TURN_BYTES_MAX)
        )
        if size:
            self._sent(size)
        if state == COLD:
            self._load_in_background(part, skip + size, min(left - size, SEND_BUFFER_BYTES))
        elif state == SHORT:
            raise ShortFile(path_of(part))
        elif state == UNKNOWN:
            self._shell.uses_sendfile = False
            return size, True
        return size, state == SENT

    def _fill(self) -> tuple[int, bool]:
        """Put the queue's front into the shared buffer: its size, and whether that was all.

        The size is negative when the data must be read from disk first.
        """
        buffer, filled, skip = self._shell.buffer, 0, self._sent_of_first
        for part in self._queue:
            room = SEND_BUFFER_BYTES - filled
            if not room:
                return filled, False
            if isinstance(part, ReadSlice):
                if self._descriptor_of(part, skip) >= 0:
                    return filled, False
                size = min(room, part.size_bytes - skip)
                if not self._load(part, skip, buffer[filled : filled + size]):
                    if not filled:
                        self._load_in_background(part, skip, size)
                        return -1, False
                    return filled, False
            else:
                size = min(room, len(part) - skip)
                buffer[filled : filled + size] = memoryview(part)[skip : skip + size]
            filled += size
            skip = 0
        return filled, True

    def _load(self, part: ReadSlice, skip: int, target: memoryview) -> bool:
        """Read from the page cache; False when the data is not in it."""
        file = part.file
        if file is None or not target:
            return True
        opened = file.open()
        descriptor = opened.descriptor
        if descriptor is None or not _NOWAIT:
            size = opened.read_into(part.position + skip, target)
        else:
            try:
                size = os.preadv(descriptor, [target], part.position + skip, _NOWAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                size = opened.read_into(part.position + skip, target)
            if 0 < size < len(target):
                return False  # the rest is cold
        if size != len(target):
            raise ShortFile(file.path)
        return True

    def _load_in_background(self, part: ReadSlice, skip: int, size: int) -> None:
        file = part.file
        if file is None:
            return
        # What was sent with MSG_MORE must not wait for the disk; this flushes it.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened = file.open()  # it stays pinned: the part is in the queue
        self._is_loading = True
        work = partial(opened.read_at, part.position + skip, size)
        try:
            self._shell.background.submit(work, partial(self._loaded, part, skip), name="cold read")
        except BackgroundFullError:
            self._is_loading = False
            data = opened.read_at(part.position + skip, size)
            if not data:
                raise ShortFile(file.path) from None
            self._replace_front(part, skip, data)
            self._exchange.on_output_ready(self)

    def _loaded(self, part: ReadSlice, skip: int, outcome: Outcome[bytes]) -> None:
        self._is_loading = False
        if self.state == CLOSED:
            if part.file is not None:
                part.file.unpin()
            return
        try:
            data = outcome.result()
            if not data:
                raise ShortFile(path_of(part))
        except OSError as error:
            self.fail_reading(error, part)
            return
        self._replace_front(part, skip, data)
        self._exchange.on_output_ready(self)

    def _replace_front(self, part: ReadSlice, skip: int, data: bytes) -> None:
        """Replace the front of the range by the bytes that were read."""
        self._queue.popleft()
        rest = part.size_bytes - skip - len(data)
        if rest:
            self._queue.appendleft(ReadSlice(part.file, part.position + skip + len(data), rest))
        elif part.file is not None:
            part.file.unpin()
        self._queue.appendleft(data)
        self._sent_of_first = 0

    def _sent(self, size: int) -> None:
        """Drop what was sent from the queue."""
        self.last_active_s = self._exchange.now_s
        taken = size + self._sent_of_first
        queue = self._queue
        while queue:
            first = queue[0]
            length = size_of(first)
            if taken < length:
                break
            taken -= length
            _unpin(queue.popleft())
        self._sent_of_first = taken

    def _fail(self, error: OSError) -> None:
        if error.errno == errno.EIO:  # an error of the file: a socket does not have it
            self.fail_reading(error, self._queue[0])
        else:
            self.abort(f"sending failed: {error.strerror}", Cause.CLIENT)

    def _set_writing(self, is_writing: bool) -> None:  # noqa: FBT001 - a state, not a switch
        if self.state != CLOSED and (self._is_writing != is_writing or self._is_pause_due):
            self._is_writing = is_writing
            self._watch()

    # -- end -------------------------------------------------------------------------------

    def close_carrier(self) -> None:
        if self._is_loading:
            # The thread still reads from the file: its range is unpinned when that is done.
            self._queue.popleft()
        self._shell.forget(self.core)
        self._socket.close()


def _unpin(part: AnswerPart) -> None:
    if isinstance(part, ReadSlice) and part.file is not None:
        part.file.unpin()
