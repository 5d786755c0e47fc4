"""One client's connection: bytes into frames, answers out, and limits on both."""

import asyncio
from struct import Struct
from typing import Final, Protocol, cast

from millstream.coordination.keeper.limits import (
    FRAME_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    OUTSTANDING_PER_CONNECTION_MAX,
)
from millstream.coordination.keeper.watches import ConnectionId
from millstream.coordination.keeper.words import WORDS

_LENGTH: Final = Struct(">i")
_WORD_BYTES: Final = 4


class Owner(Protocol):
    """The server, as its connections see it."""

    chunk: memoryview
    """The receive buffer that all connections share: it is emptied before the next read."""

    def opened(self, connection: "KeeperConnection") -> None: ...

    def take_frame(self, connection: "KeeperConnection", frame: bytes) -> None: ...

    def take_word(self, connection: "KeeperConnection", word: str) -> None: ...

    def closed(self, connection: "KeeperConnection") -> None: ...


class KeeperConnection(asyncio.BufferedProtocol):
    """The protocol of one connection."""

    def __init__(self, owner: Owner, connection_id: ConnectionId) -> None:
        self._owner = owner
        self.connection_id = connection_id
        self.opened_ms = 0
        self.is_ending = False
        """Nothing more is read from it."""
        self.received_count = 0
        self.sent_count = 0
        self.outstanding = 0
        self.peer = ""
        self._transport: asyncio.Transport | None = None
        self._input = bytearray()
        self._is_output_full = False
        self._output_bytes = 0
        self._is_parsing = False

    # -- the transport's calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer = f"{peer[0]}:{peer[1]}"
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one size serves all
        return self._owner.chunk

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_ending:
            self._input += self._owner.chunk[:nbytes]
            self._parse()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_output_full = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._is_output_full = False
        self._output_bytes = 0
        self._adjust_reading()
        self._parse()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self.is_ending = True
        self._input.clear()
        self._owner.closed(self)
        self._transport = None

    # -- the server's calls -----------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_output_full:
            self._output_bytes += len(frame)
            if self._output_bytes > OUTPUT_BYTES_MAX:
                self.abort()
                return
        self.sent_count += 1
        self._transport.write(frame)

    def answered(self) -> None:
        """A request was answered; more may be read."""
        self.outstanding -= 1
        if self.outstanding == OUTSTANDING_PER_CONNECTION_MAX // 2:
            self._adjust_reading()
            self._parse()

    def close(self) -> None:
        """Close after what was sent."""
        self.is_ending = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.is_ending = True
        if self._transport is not None:
            self._transport.abort()

    # -- frames -----------------------------------------------------------------------------

    @property
    def _may_take_more(self) -> bool:
        is_free = self.outstanding < OUTSTANDING_PER_CONNECTION_MAX
        return is_free and not self._is_output_full and not self.is_ending

    def _adjust_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._may_take_more:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _parse(self) -> None:
        """Hand over all complete frames; an answer may call it again from inside."""
        if self._is_parsing:
            return
        self._is_parsing = True
        start = 0
        try:
            while self._may_take_more and (end := self._frame_end(start)) is not None:
                frame = bytes(self._input[start + _LENGTH.size : end])
                start = end
                self.received_count += 1
                self.outstanding += 1
                self._owner.take_frame(self, frame)
        finally:
            self._is_parsing = False
        if start:
            del self._input[:start]
        if self.outstanding >= OUTSTANDING_PER_CONNECTION_MAX:
            self._adjust_reading()

    def _frame_end(self, start: int) -> int | None:
        """Where the frame that begins here ends; None when it is incomplete."""
        if len(self._input) - start < _LENGTH.size:
            return None
        if self.received_count == 0:
            word = bytes(self._input[:_WORD_BYTES])
            if word in WORDS:
                self.is_ending = True
                self._owner.take_word(self, word.decode())
                return None
        (size,) = _LENGTH.unpack_from(self._input, start)
        if not 0 <= size <= FRAME_BYTES_MAX:
            self.abort()
            return None
        end = start + _LENGTH.size + int(size)
        return end if end <= len(self._input) else None
