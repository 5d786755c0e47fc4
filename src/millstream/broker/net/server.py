"""The listening side of a broker: accepts connections within limits, ends idle ones, and stops."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from millstream.broker.net.admission import Admission
from millstream.broker.net.exchange import Exchange, ExchangeHooks
from millstream.broker.net.listeners import ListenerAddress
from millstream.broker.net.peer import Cause, ClientPeer
from millstream.broker.net.socket_shell import SocketShell
from millstream.broker.net.transport_shell import TransportPeer, TransportProtocol
from millstream.broker.requests.dispatch import Dispatch
from millstream.broker.requests.request_memory import RequestMemory
from millstream.kernels.connection import Connection
from millstream.kernels.slots import SlotTable
from millstream.model.limits import UNSENT_ANSWER_BYTES_MAX
from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.background import Background
from millstream.runtime.clock import Clock
from millstream.runtime.network import Listener, Network
from millstream.runtime.sockets import SocketListener, listen_for_sockets

log = get_logger("millstream.broker.net.server")

SWEEP_INTERVAL_S: Final = 1.0
DRAIN_TIMEOUT_S: Final = 2.0
"""How long a stop waits for clients to take their answers."""


class ConnectionLimits(Protocol):
    """Read at every use, because most can be changed while the broker runs."""

    @property
    def frame_bytes_max(self) -> int: ...

    @property
    def in_flight_max(self) -> int: ...

    @property
    def request_memory_bytes(self) -> int: ...

    @property
    def send_buffer_bytes(self) -> int | None: ...

    @property
    def connections_max(self) -> int: ...

    @property
    def idle_s(self) -> float: ...

    def per_address_max(self, address: str) -> int: ...


class Server:
    """All listeners and connections of one broker. Make it on a running loop."""

    def __init__(
        self,
        dispatch: Dispatch,
        table: SlotTable,
        limits: ConnectionLimits,
        metrics: BrokerMetrics,
        *,
        clock: Clock,
        background: Background,
        network: Network | None,
        hooks: ExchangeHooks,
    ) -> None:
        """Without a network of its own it uses the machine's sockets."""
        self._limits = limits
        self._metrics = metrics
        self._network = network
        self._background = background
        self._clock = clock
        self._table = table
        self._client_log = hooks.client_log or ClientLog(clock)
        self._admission = Admission(limits, clock, self._client_log, metrics.connections.refused)
        self.exchange = Exchange(
            table,
            dispatch,
            clock,
            metrics.apis,
            self._on_peer_closed,
            call_soon=asyncio.get_running_loop().call_soon,
            hooks=replace(
                hooks,
                admission=self._admission,
                client_log=self._client_log,
                memory=RequestMemory(limits.request_memory_bytes),
            ),
            take_ready=table.take_ready if network is not None else self._take_ready,
        )
        self._shell: SocketShell | None = None
        self._listeners: list[Listener] = []
        self._peers: dict[int, ClientPeer] = {}
        self._next_number = 0
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def connection_count(self) -> int:
        return len(self._peers)

    # -- start and stop --------------------------------------------------------------------

    async def bind(self, addresses: Sequence[ListenerAddress]) -> list[ListenerAddress]:
        """Open the ports without accepting yet; returns the addresses with the chosen ports."""
        if self._network is None:
            loop = asyncio.get_running_loop()
            self._shell = SocketShell(loop, self.exchange, self._background)
        bound = []
        for one in addresses:
            try:
                listener = await self._listen(one)
            except OSError as error:
                raise OSError(error.errno, f"{one.url}: {error.strerror or error}") from error
            self._listeners.append(listener)
            bound.append(one._replace(port=listener.port))
        return bound

    def accept(self) -> None:
        """Start to accept connections."""
        for listener in self._listeners:
            if isinstance(listener, SocketListener):
                listener.resume()
        self._sweep_handle = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)

    def stop_accepting(self) -> None:
        """Close the ports; the connections stay."""
        for listener in self._listeners:
            listener.close()
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()

    async def close(self) -> None:
        """End every connection, after a short time to send the answers (I-42)."""
        self.stop_accepting()
        self._emptied = asyncio.Event()
        for peer in list(self._peers.values()):
            peer.close("the broker stops", Cause.STOP)
        if self._peers:
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await self._emptied.wait()
            except TimeoutError:
                for peer in list(self._peers.values()):
                    peer.abort("the broker stopped", Cause.STOP)
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    async def _listen(self, one: ListenerAddress) -> Listener:
        if self._network is None:
            return await listen_for_sockets(
                one.host,
                one.port,
                lambda sock, at: self._on_accepted(one.name, sock, at),
                self._on_accept_error,
            )
        make = self._transport_maker(one.name)
        return await self._network.listen(
            lambda: TransportProtocol(self.exchange, make), host=one.host, port=one.port
        )

    # -- connections -----------------------------------------------------------------------

    def _take_ready(self) -> list[Connection]:
        return self._table.take_ready() if self._shell is None else self._shell.send_ready()

    def _on_accepted(self, listener: str, sock: socket.socket, address: Any) -> None:
        host = address[0]
        if self._shell is None:
            sock.close()
            return
        size = self._limits.send_buffer_bytes
        if size is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        peer = self._shell.add(
            sock, self._new_core(), listener=listener, client_host=host, number=self._number()
        )
        peer.local_host = sock.getsockname()[0]
        self._add_peer(peer)

    def _transport_maker(
        self, listener: str
    ) -> Callable[[TransportProtocol, asyncio.Transport], TransportPeer | None]:
        def make(_: TransportProtocol, transport: asyncio.Transport) -> TransportPeer | None:
            name = transport.get_extra_info("peername") or ("unknown",)
            facts = (listener, str(name[0]), self._number())
            peer = TransportPeer(transport, self.exchange, self._new_core(), facts)
            peer.local_host = str((transport.get_extra_info("sockname") or ("",))[0])
            self._add_peer(peer)
            return peer

        return make

    def _new_core(self) -> Connection:
        limits = self._limits
        return Connection(
            self._table,
            frame_bytes_max=limits.frame_bytes_max,
            in_flight_max=limits.in_flight_max,
            output_bytes_max=UNSENT_ANSWER_BYTES_MAX,
        )

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _add_peer(self, peer: ClientPeer) -> None:
        self._peers[peer.connection_id] = peer
        self._metrics.connections.opened()
        self._admission.opened(peer)

    def _on_peer_closed(self, peer: ClientPeer) -> None:
        if self._peers.pop(peer.connection_id, None) is None:
            return
        self._admission.closed(peer)
        self._metrics.connections.closed(peer.close_cause)
        self._log_end(peer)
        if self._emptied is not None and not self._peers:
            self._emptied.set()

    def _log_end(self, peer: ClientPeer) -> None:
        lines = self._client_log
        is_bad = peer.close_cause in (Cause.PROTOCOL, Cause.FAILURE, Cause.MEMORY)
        (lines.warning if is_bad else lines.debug)(
            log, "connection closed", client=peer.client_host, reason=peer.close_reason
        )

    def apply_connection_limit(self) -> None:
        """The limits may have changed: let those in for whom there is room now."""
        self._admission.sweep()

    def _on_accept_error(self, error: OSError) -> None:
        message = "could not accept a connection"
        self._client_log.warning(log, message, client="", reason=error.strerror)

    # -- upkeep ----------------------------------------------------------------------------

    def _sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        idle_s = self._limits.idle_s
        overdue = [one for one in self._peers.values() if one.is_overdue(now_s, idle_s=idle_s)]
        for peer in overdue:
            peer.abort("idle", Cause.IDLE)
        self._admission.sweep()
        self.exchange.held.sweep(self._peers.values())
        loop = asyncio.get_running_loop()
        self._sweep_handle = loop.call_later(SWEEP_INTERVAL_S, self._sweep)
