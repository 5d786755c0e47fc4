"""Transports in memory: two ends of a connection, and a pipe for each direction.

A pipe keeps the order of bytes as TCP does, and may deliver them late, in other chunks than they
were written in, or (while its link is cut) not at all. Undelivered bytes are the sender's write
buffer, so a slow or paused reader pushes back on the writer.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol

_HIGH_WATER_BYTES: Final = 256 * 1024


class Link(Protocol):
    """What a pipe needs to know of the link from its sender to its receiver."""

    def is_cut(self) -> bool: ...

    def delay_s(self) -> float: ...

    def chunks(self, data: bytes) -> list[bytes]:
        """The data as the receiver will get it, in one or more parts."""

    def note(self, event: str, size: int) -> None: ...


class _End:
    """In a pipe's queue: the sender closed its side, or reset the connection."""

    def __init__(self, *, is_reset: bool) -> None:
        self.is_reset = is_reset


class Pipe:
    """One direction of a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link) -> None:
        self._loop = loop
        self._link = link
        self._queue: deque[tuple[float, bytes | _End]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.undelivered_bytes = 0
        self.sender: SimTransport
        self.receiver: SimTransport

    def send(self, data: bytes) -> None:
        self.undelivered_bytes += len(data)
        for chunk in self._link.chunks(data):
            self._append(chunk)

    def finish(self) -> None:
        self._append(_End(is_reset=False))

    def reset(self) -> None:
        """What was not delivered is lost, as after a TCP reset."""
        self._queue.clear()
        self.undelivered_bytes = 0
        self._append(_End(is_reset=True))

    def drop(self) -> None:
        """What is under way never arrives."""
        self._queue.clear()
        self.undelivered_bytes = 0
        if self._timer is not None:
            self._timer.cancel()

    def _append(self, item: bytes | _End) -> None:
        self._queue.append((self._loop.time() + self._link.delay_s(), item))
        self.wake()

    def wake(self) -> None:
        """Check again what can be delivered: on new data, on healing, on resume.

        One timer, for the front of the queue: what was written later arrives later.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queue:
            due_s = max(self._queue[0][0], self._loop.time())
            self._timer = self._loop.call_at(due_s, self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        if self._link.is_cut() or not self.receiver.is_reading():
            return
        _, item = self._queue.popleft()
        if isinstance(item, bytes):
            self._link.note("deliver", len(item))
            self.undelivered_bytes -= len(item)
            self.receiver.take_data(item)
            self.sender.buffer_drained()
        else:
            self._link.note("reset" if item.is_reset else "end", 0)
            self.receiver.take_end(is_reset=item.is_reset)
        self.wake()


class SimTransport(asyncio.Transport):
    """One end of a simulated connection, with the calls and callbacks of asyncio's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        *,
        incoming: Pipe,
        outgoing: Pipe,
        extra: dict[str, Any],
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._protocol = protocol
        self._incoming = incoming
        self._outgoing = outgoing
        incoming.receiver = self
        outgoing.sender = self
        self._is_closing = False
        self._is_finished = False
        self._is_dead = False
        self._is_paused = False
        self._has_sent_end = False
        self._writing_is_paused = False
        self._high_bytes, self._low_bytes = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4

    # -- The transport's calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_sent_end:
            raise RuntimeError("write after write_eof")
        if not data or self._is_closing:
            return
        self._outgoing.send(bytes(data))
        if self._outgoing.undelivered_bytes > self._high_bytes and not self._writing_is_paused:
            self._writing_is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._has_sent_end and not self._is_closing:
            self._has_sent_end = True
            self._outgoing.finish()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """What was written is still delivered."""
        if self._is_closing:
            return
        if not self._has_sent_end:
            self._outgoing.finish()
        self._finish(None)

    def abort(self) -> None:
        if not self._is_finished:
            self._outgoing.reset()
            self._finish(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._incoming.wake()

    def is_reading(self) -> bool:
        return not self._is_paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high if high is not None else _HIGH_WATER_BYTES
        self._low_bytes = low if low is not None else self._high_bytes // 4

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        return self._outgoing.undelivered_bytes

    # -- The pipes' calls

    def take_data(self, data: bytes) -> None:
        if self._is_finished:
            # The peer writes to a connection that this end has closed: TCP answers with a reset.
            self._outgoing.reset()
            return
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            self._fill(self._protocol, memoryview(data))
        elif isinstance(self._protocol, asyncio.Protocol):
            self._protocol.data_received(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, view: memoryview) -> None:
        while view and not self._is_finished:
            buffer = memoryview(protocol.get_buffer(len(view))).cast("B")
            size = min(len(buffer), len(view))
            if not size:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:size] = view[:size]
            buffer.release()
            protocol.buffer_updated(size)
            view = view[size:]

    def take_end(self, *, is_reset: bool) -> None:
        if self._is_finished:
            return
        if is_reset:
            self.lose(ConnectionResetError("connection reset by the simulated peer"))
        elif isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            keeps_open = self._protocol.eof_received()
            if not keeps_open:
                self.close()

    def buffer_drained(self) -> None:
        if self._writing_is_paused and self._outgoing.undelivered_bytes <= self._low_bytes:
            self._writing_is_paused = False
            if not self._is_finished:
                self._protocol.resume_writing()

    # -- The network's calls

    def lose(self, error: Exception | None) -> None:
        """The connection is gone for this end."""
        if not self._is_finished:
            self._outgoing.drop()
            self._finish(error)

    def kill(self, *, notifies_peer: bool) -> None:
        """The process of this end died: its protocol gets no more calls."""
        self._is_closing = self._is_finished = self._is_dead = True
        self._is_paused = False
        if notifies_peer:
            self._incoming.drop()
            self._outgoing.reset()
        else:
            # The peer goes on sending to this end until a reset answers it.
            self._outgoing.drop()

    def _finish(self, error: Exception | None) -> None:
        self._is_closing = self._is_finished = True
        self._is_paused = False
        self._loop.call_soon(self._report_lost, error)
        self._incoming.wake()

    def _report_lost(self, error: Exception | None) -> None:
        if not self._is_dead:
            self._protocol.connection_lost(error)
