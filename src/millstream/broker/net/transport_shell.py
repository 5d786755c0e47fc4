"""Connections that asyncio's transports carry: TLS, and the simulated network.

A transport encrypts, or belongs to a simulation, so output has to go through it. File ranges are
read in chunks, and only while the transport has room.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from millstream.broker.net.exchange import Exchange
from millstream.broker.net.peer import CLOSED, Cause, ClientPeer
from millstream.kernels.connection import Connection
from millstream.model.limits import KIB
from millstream.runtime.disk import ShortFile
from millstream.storage.log.reader import ReadSlice

CHUNK_BYTES: Final = 256 * KIB
"""Bytes of a file range that are read and handed to the transport at a time."""

MakePeer = Callable[["TransportProtocol", asyncio.Transport], "TransportPeer | None"]


class TransportProtocol(asyncio.BufferedProtocol):
    """Connects asyncio's callbacks to a peer; made before the client's address is known."""

    def __init__(self, exchange: Exchange, make_peer: MakePeer) -> None:
        self._exchange = exchange
        self._make_peer = make_peer
        self._peer: TransportPeer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._peer = self._make_peer(self, transport)  # type: ignore[arg-type]
        if self._peer is None:
            transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._peer.core.get_buffer(sizehint) if self._peer else memoryview(bytearray(1))

    def buffer_updated(self, nbytes: int) -> None:
        if self._peer is None or not self._peer.is_open:
            return
        self._exchange.on_received(self._peer, nbytes)

    def eof_received(self) -> None:
        """A client that closes its half is gone; asyncio closes the rest."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._peer is not None:
            reason = "closed by the client" if exc is None else f"lost: {exc}"
            self._peer.abort(reason, Cause.CLIENT)

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.has_room = False

    def resume_writing(self) -> None:
        if self._peer is not None and self._peer.state != CLOSED:
            self._peer.has_room = True
            self._exchange.on_output_ready(self._peer)


class TransportPeer(ClientPeer):
    """A connection on a transport."""

    def __init__(
        self,
        transport: asyncio.Transport,
        exchange: Exchange,
        core: Connection,
        facts: tuple[str, str, int],
    ) -> None:
        listener, client_host, number = facts
        super().__init__(exchange, core, listener=listener, client_host=client_host, number=number)
        self._transport = transport
        self.has_room = True
        self._sent_of_first = 0

    def pause_reading(self) -> None:
        if self._is_reading and self.state != CLOSED:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._transport.resume_reading()

    def send_queue(self) -> bool:
        try:
            while self._queue and self.has_room:
                self._send_first()
        except OSError as error:  # an error of the file: a transport reports its own by callback
            self.fail_reading(error, self._queue[0])
            return False
        return not self._queue

    def _send_first(self) -> None:
        first = self._queue[0]
        if not isinstance(first, ReadSlice):
            self._transport.write(bytes(first))
            self._queue.popleft()
            return
        if first.file is not None:
            size = min(CHUNK_BYTES, first.size_bytes - self._sent_of_first)
            data = first.file.open().read_at(first.position + self._sent_of_first, size)
            if len(data) != size:
                raise ShortFile(first.file.path)
            self._transport.write(data)
            self._sent_of_first += size
            if self._sent_of_first < first.size_bytes:
                return
            first.file.unpin()
        self._sent_of_first = 0
        self._queue.popleft()

    def close_carrier(self) -> None:
        # What the transport holds are answers: they are sent before the connection ends.
        self._transport.close()
