"""One client's connection: bytes into frames, answers out, and limits on both."""

import asyncio
from struct import Struct
from typing import Final, Protocol, cast

from millstream.coordination.keeper.admission import AddressUse
from millstream.coordination.keeper.clients import Client
from millstream.coordination.keeper.limits import (
    FRAME_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    OUTSTANDING_PER_CONNECTION_MAX,
    PENDING_BYTES_PER_CONNECTION_MAX,
    UNAUTHENTICATED_FRAME_BYTES_MAX,
    UNAUTHENTICATED_OUTSTANDING_MAX,
)
from millstream.coordination.keeper.watches import ConnectionId
from millstream.coordination.keeper.words import KNOWN_WORDS

_LENGTH: Final = Struct(">i")
_WORD_BYTES: Final = 4


class Owner(Protocol):
    """The server, as its connections see it."""

    chunk: memoryview
    """The receive buffer that all connections share: it is emptied before the next read."""

    def opened(self, connection: "KeeperConnection", address: str) -> None: ...

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
        self._pending_bytes = 0
        self.peer = ""
        self.client = Client(connection_id, "")
        """Until `opened` gives it those of its address: the machine's, and what it uses."""
        self.use = AddressUse("")
        self._is_held = False
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
        self._owner.opened(self, str(peer[0]))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the owner's size
        if self.client.is_authenticated:
            return self._owner.chunk
        return self._owner.chunk[:UNAUTHENTICATED_FRAME_BYTES_MAX]

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
        self._forget_output()
        self._adjust_reading()
        self._parse()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self.is_ending = True
        self._input.clear()
        self._forget_output()
        self._owner.closed(self)
        self._transport = None

    # -- the server's calls -----------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_output_full:
            self._output_bytes += len(frame)
            self.use.unread_bytes += len(frame)
            if self._output_bytes > OUTPUT_BYTES_MAX or self.use.is_unread:
                self.abort()
                return
        self.sent_count += 1
        self._transport.write(frame)

    def answered(self, size_bytes: int) -> None:
        """A request of this size was answered; more may be read."""
        self.outstanding -= 1
        self._pending_bytes -= size_bytes
        self.use.answered(size_bytes)
        is_calm = self.outstanding <= self._outstanding_max // 2
        if self._is_held and is_calm and not self._is_pending_much(share=2):
            self.release()

    def release(self) -> None:
        """Read again, if nothing else is against it."""
        self._is_held = False
        self._adjust_reading()
        self._parse()

    def _forget_output(self) -> None:
        self.use.unread_bytes -= self._output_bytes
        self._output_bytes = 0

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
    def _outstanding_max(self) -> int:
        if self.client.is_authenticated:
            return OUTSTANDING_PER_CONNECTION_MAX
        return UNAUTHENTICATED_OUTSTANDING_MAX

    def _is_pending_much(self, *, share: int = 1) -> bool:
        return self._pending_bytes >= PENDING_BYTES_PER_CONNECTION_MAX // share

    @property
    def _is_free(self) -> bool:
        is_free = self.outstanding < self._outstanding_max and not self._is_pending_much()
        return is_free and not self.use.is_full

    @property
    def _may_take_more(self) -> bool:
        return self._is_free and not self._is_output_full and not self.is_ending

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
                self._pending_bytes += len(frame)
                self.use.pending_bytes += len(frame)
                self._owner.take_frame(self, frame)
        finally:
            self._is_parsing = False
        if start:
            del self._input[:start]
        if not self._is_free and not self._is_held:
            self._is_held = True
            if self.use.is_full:
                self.use.held.append(self)
            self._adjust_reading()

    def _frame_end(self, start: int) -> int | None:
        """Where the frame that begins here ends; None when it is incomplete."""
        if len(self._input) - start < _LENGTH.size:
            return None
        if self.received_count == 0:
            word = bytes(self._input[:_WORD_BYTES])
            if word in KNOWN_WORDS:
                self.is_ending = True
                self._owner.take_word(self, word.decode())
                return None
        (size,) = _LENGTH.unpack_from(self._input, start)
        is_known = self.client.is_authenticated
        if not 0 <= size <= (FRAME_BYTES_MAX if is_known else UNAUTHENTICATED_FRAME_BYTES_MAX):
            self.abort()
            return None
        end = start + _LENGTH.size + int(size)
        return end if end <= len(self._input) else None
