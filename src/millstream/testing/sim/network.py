"""A network of named hosts in virtual time: delays, cuts in one or both directions, resets.

`SimNetwork.host(name)` is the `Network` seam of one process. A cut link loses nothing of an open
connection: bytes wait, as TCP retransmits, and flow when it heals; timeouts are the business of
the code under test. A host that dies silently leaves its peers half-open; one whose process is
killed resets them.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from millstream.model.invariant import invariant
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.trace import Trace
from millstream.testing.sim.transport import Pipe, SimTransport

P = TypeVar("P", bound=asyncio.BaseProtocol)

LINK_DELAY_S: Final = (0.0001, 0.002)
FIRST_EPHEMERAL_PORT: Final = 49152
_SPLIT_CHANCE: Final = 0.2
"""How often a write arrives in two chunks, so that framing is exercised at every byte."""


class _Link:
    """One direction between two hosts."""

    def __init__(self, network: "SimNetwork", source: str, target: str) -> None:
        self._network = network
        self._hosts = (source, target)
        self._name = f"{source}>{target}"
        self.randomness = network.randomness.fork(self._name)
        self.delay_range_s = LINK_DELAY_S
        self.cut_count = 0
        """Cuts and clogs that hold it."""

    def is_cut(self) -> bool:
        if self.cut_count > 0 or self._hosts[1] in self._network.paused_hosts:
            return True
        return not self._network.down_hosts.isdisjoint(self._hosts)

    def delay_s(self) -> float:
        return self.randomness.between(*self.delay_range_s)

    def chunks(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or not self.randomness.chance(_SPLIT_CHANCE):
            return [data]
        cut = self.randomness.integer(1, len(data))
        return [data[:cut], data[cut:]]

    def note(self, event: str, size: int) -> None:
        self._network.trace.note(event, self._name, size)


class _Connection:
    """The two ends of one connection, the one that connected first."""

    def __init__(self, hosts: tuple[str, str]) -> None:
        self.hosts = hosts
        self.ends: tuple[SimTransport, SimTransport]
        self.pipes: tuple[Pipe, Pipe]


class SimListener:
    """A listening port of a simulated host."""

    def __init__(
        self,
        network: "SimNetwork",
        address: tuple[str, int],
        make_protocol: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._network = network
        self._address = address
        self.make_protocol = make_protocol

    @property
    def port(self) -> int:
        return self._address[1]

    def close(self) -> None:
        self._network.stop_listening(self._address, self)

    async def wait_closed(self) -> None:
        """Returns at once: accepting connections is no separate work here."""


class SimNetwork:
    """All hosts and the links between them; links work until a fault is injected."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, randomness: SeededRandomness, trace: Trace
    ) -> None:
        self._loop = loop
        self.randomness = randomness
        self.trace = trace
        self._links: dict[tuple[str, str], _Link] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._connections: list[_Connection] = []
        self._next_port = FIRST_EPHEMERAL_PORT
        self._changed = asyncio.Event()
        self.down_hosts: set[str] = set()
        """Hosts without power: nothing reaches or leaves them. Never iterated."""
        self.paused_hosts: set[str] = set()
        """Hosts whose process is stopped: what is sent to them waits. Never iterated."""

    def host(self, name: str) -> "SimHost":
        """The seam for a process on this host."""
        return SimHost(self, name)

    # -- Faults

    def partition(self, one: str, other: str) -> None:
        """Cut both directions; each call needs its own `heal`."""
        self.cut(one, other)
        self.cut(other, one)

    def heal(self, one: str, other: str) -> None:
        self.mend(one, other)
        self.mend(other, one)

    def cut(self, source: str, target: str) -> None:
        """Cut one direction: the other still flows."""
        self.link(source, target).cut_count += 1
        self.trace.note("cut", source, target)

    def mend(self, source: str, target: str) -> None:
        link = self.link(source, target)
        invariant(link.cut_count > 0, "mended a link that was not cut", link=(source, target))
        link.cut_count -= 1
        self.trace.note("mend", source, target)
        self.wake()

    def heal_all(self) -> None:
        """Every link works, at its usual speed."""
        for link in self._links.values():
            link.cut_count = 0
            link.delay_range_s = LINK_DELAY_S
        self.wake()

    def clog(self, source: str, target: str, *, duration_s: float) -> None:
        """Hold one direction for a while."""
        self.cut(source, target)
        self._loop.call_later(duration_s, self._unclog, source, target)

    def _unclog(self, source: str, target: str) -> None:
        if self.link(source, target).cut_count:  # heal_all may have been first
            self.mend(source, target)

    def slow_down(self, source: str, target: str, *, delay_range_s: tuple[float, float]) -> None:
        self.link(source, target).delay_range_s = delay_range_s

    def reset(self, one: str, other: str) -> None:
        """Every connection between the two breaks at once, for both ends."""
        for connection in self._of(one, other):
            for end in connection.ends:
                end.lose(ConnectionResetError("connection reset by the simulated network"))
        self._forget_finished()

    def kill_host(self, name: str, *, is_silent: bool = False) -> None:
        """The process on the host dies.

        Its kernel resets the peers, or with `is_silent` (power loss) they are not notified: they
        stay half-open, and after `revive_host` a reset answers what they send.
        """
        self.trace.note("kill", name, is_silent)
        if is_silent:
            self.down_hosts.add(name)
        for address in [address for address in self._listeners if address[0] == name]:
            del self._listeners[address]
        for connection in self._of(name):
            for host, end in zip(connection.hosts, connection.ends, strict=True):
                if host == name:
                    end.kill(notifies_peer=not is_silent)

    def revive_host(self, name: str) -> None:
        """Power is back; processes on the host can listen and connect again."""
        self.down_hosts.discard(name)
        self.wake()

    def connection_count(self, one: str, other: str) -> int:
        self._forget_finished()
        return len(self._of(one, other))

    # -- For hosts

    def link(self, source: str, target: str) -> _Link:
        key = (source, target)
        if key not in self._links:
            self._links[key] = _Link(self, source, target)
        return self._links[key]

    def start_listening(
        self, host: str, port: int, make_protocol: Callable[[], asyncio.BaseProtocol]
    ) -> SimListener:
        address = (host, port if port else self._new_port())
        if address in self._listeners:
            raise OSError(98, "address already in use in the simulated network", str(address))
        self._listeners[address] = SimListener(self, address, make_protocol)
        self.trace.note("listen", *address)
        return self._listeners[address]

    def stop_listening(self, address: tuple[str, int], listener: SimListener) -> None:
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    async def carry(self, source: str, target: str) -> None:
        """The time one packet takes, cuts included."""
        link = self.link(source, target)
        await asyncio.sleep(link.delay_s())
        while link.is_cut():
            self._changed.clear()
            await self._changed.wait()

    async def connect(
        self, source: str, make_protocol: Callable[[], P], target: str, port: int
    ) -> tuple[SimTransport, P]:
        await self.carry(source, target)
        listener = self._listeners.get((target, port))
        if listener is None:
            await self.carry(target, source)
            raise ConnectionRefusedError(111, "connection refused", f"{target}:{port}")
        # As with a real loop the client's protocol gets no call before it has the connection.
        connection = self._join(source, asyncio.Protocol(), target, port, listener)
        client, server = connection.ends
        server.get_protocol().connection_made(server)
        try:
            await self.carry(target, source)
        except BaseException:
            client.kill(notifies_peer=True)  # given up half-way: the server learns it
            raise
        if client.is_closing():
            raise ConnectionResetError(104, "connection reset while connecting", f"{target}:{port}")
        protocol = make_protocol()
        client.set_protocol(protocol)
        protocol.connection_made(client)
        client.resume_reading()
        return client, protocol

    def _join(
        self,
        source: str,
        protocol: asyncio.BaseProtocol,
        target: str,
        port: int,
        listener: SimListener,
    ) -> _Connection:
        client_address, server_address = (source, self._new_port()), (target, port)
        out = Pipe(self._loop, self.link(source, target))
        back = Pipe(self._loop, self.link(target, source))
        client = SimTransport(
            self._loop,
            protocol,
            incoming=back,
            outgoing=out,
            extra={"sockname": client_address, "peername": server_address},
        )
        server = SimTransport(
            self._loop,
            listener.make_protocol(),
            incoming=out,
            outgoing=back,
            extra={"sockname": server_address, "peername": client_address},
        )
        client.pause_reading()  # until its protocol knows the connection
        connection = _Connection((source, target))
        connection.ends, connection.pipes = (client, server), (out, back)
        self._forget_finished()
        self._connections.append(connection)
        self.trace.note("connect", *client_address, *server_address)
        return connection

    def _of(self, *hosts: str) -> list[_Connection]:
        return [
            connection
            for connection in self._connections
            if all(host in connection.hosts for host in hosts)
        ]

    def _forget_finished(self) -> None:
        self._connections = [
            connection
            for connection in self._connections
            if not all(end.is_closing() for end in connection.ends)
        ]

    def _new_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1

    def wake(self) -> None:
        """Links changed: check again what can be delivered."""
        self._changed.set()
        for connection in self._connections:
            for pipe in connection.pipes:
                pipe.wake()


class SimHost:
    """The `Network` seam of one simulated process."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self._network = network
        self.name = name

    async def listen(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
    ) -> SimListener:
        invariant(tls is None, "the simulated network has no TLS")
        invariant(host == self.name, "a simulated host listens under its name", host=host)
        return self._network.start_listening(self.name, port, make_protocol)

    async def connect(
        self,
        make_protocol: Callable[[], P],
        *,
        host: str,
        port: int,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[SimTransport, P]:
        invariant(tls is None, "the simulated network has no TLS")
        async with asyncio.timeout(timeout_s):
            return await self._network.connect(self.name, make_protocol, host, port)
