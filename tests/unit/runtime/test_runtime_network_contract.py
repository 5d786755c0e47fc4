"""One suite for the real and the simulated network."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.runtime.network import LoopNetwork, Network
from millstream.testing.sim.world import SimWorld

Scenario = Callable[[Network, Network, str], Coroutine[Any, Any, None]]
"""A server's network, a client's, and the name the server listens under."""


@pytest.fixture(params=["os", "simulated"])
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    def on_machine(scenario: Scenario) -> None:
        asyncio.run(scenario(LoopNetwork(), LoopNetwork(), "127.0.0.1"))

    def in_simulation(scenario: Scenario) -> None:
        world = SimWorld(1)
        server, client = world.network.host("server"), world.network.host("client")
        world.run(lambda: scenario(server, client, "server"))

    return on_machine if request.param == "os" else in_simulation


class Recorder(asyncio.Protocol):
    """Keeps what it receives and lets a test wait for it."""

    def __init__(self, accepted: "Accepted | None" = None, *, echoes: bool = False) -> None:
        self.accepted = accepted
        self.echoes = echoes
        self.received = bytearray()
        self.changed = asyncio.Event()
        self.is_lost = False
        self.lost_with: Exception | None = None
        self.saw_end = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.accepted is not None:
            self.accepted.put_nowait(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.echoes:
            self.transport.write(data)
        self.changed.set()

    def eof_received(self) -> bool:
        self.saw_end = True
        self.changed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.lost_with = exc
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


Accepted = asyncio.Queue[Recorder]


class Filler(asyncio.BufferedProtocol):
    """Receives into a small buffer of its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(7)
        self.received = bytearray()
        self.done = asyncio.Event()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set()


def test_bytes_come_back_in_order(play: Callable[[Scenario], None]) -> None:
    async def scenario(server: Network, client: Network, host: str) -> None:
        listener = await server.listen(lambda: Recorder(echoes=True), host=host, port=0)
        transport, protocol = await client.connect(
            Recorder, host=host, port=listener.port, timeout_s=10
        )
        sent = b"".join(f"{number},".encode() for number in range(500))
        for place in range(0, len(sent), 13):
            transport.write(sent[place : place + 13])
        await protocol.until(lambda: len(protocol.received) == len(sent))
        assert protocol.received == sent
        assert transport.get_extra_info("peername")[1] == listener.port
        transport.close()
        await protocol.until(lambda: protocol.is_lost)
        assert protocol.lost_with is None
        listener.close()
        await listener.wait_closed()

    play(scenario)


def test_close_delivers_what_was_written_and_then_the_end(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(server: Network, client: Network, host: str) -> None:
        filler = Filler()
        listener = await server.listen(lambda: filler, host=host, port=0)
        transport, _ = await client.connect(Recorder, host=host, port=listener.port, timeout_s=10)
        transport.writelines([b"x" * 1000, b"y" * 1000])
        transport.close()
        async with asyncio.timeout(20):
            await filler.done.wait()
        assert filler.received == b"x" * 1000 + b"y" * 1000
        listener.close()

    play(scenario)


def test_half_close_lets_the_answer_through(play: Callable[[Scenario], None]) -> None:
    class Answers(Recorder):
        def eof_received(self) -> bool:
            self.transport.write(b"answer to " + bytes(self.received))
            self.transport.close()
            return True

    async def scenario(server: Network, client: Network, host: str) -> None:
        listener = await server.listen(Answers, host=host, port=0)
        transport, protocol = await client.connect(
            Recorder, host=host, port=listener.port, timeout_s=10
        )
        transport.write(b"question")
        transport.write_eof()
        await protocol.until(lambda: protocol.is_lost)
        assert protocol.received == b"answer to question"
        listener.close()

    play(scenario)


def test_abort_is_a_reset_or_an_end_for_the_peer(play: Callable[[Scenario], None]) -> None:
    async def scenario(server: Network, client: Network, host: str) -> None:
        accepted: Accepted = asyncio.Queue()
        listener = await server.listen(lambda: Recorder(accepted), host=host, port=0)
        transport, protocol = await client.connect(
            Recorder, host=host, port=listener.port, timeout_s=10
        )
        transport.abort()
        await protocol.until(lambda: protocol.is_lost)
        peer = await accepted.get()
        await peer.until(lambda: peer.is_lost)
        listener.close()

    play(scenario)


def test_nobody_listens_is_refused_and_a_port_is_taken_once(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(server: Network, client: Network, host: str) -> None:
        listener = await server.listen(Recorder, host=host, port=0)
        with pytest.raises(OSError, match="address already in use"):
            await server.listen(Recorder, host=host, port=listener.port)
        listener.close()
        await listener.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await client.connect(Recorder, host=host, port=listener.port, timeout_s=10)

    play(scenario)


def test_a_reader_that_pauses_pushes_back_on_the_writer(
    play: Callable[[Scenario], None],
) -> None:
    class Writer(Recorder):
        is_paused = False

        def pause_writing(self) -> None:
            self.is_paused = True

        def resume_writing(self) -> None:
            self.is_paused = False
            self.changed.set()

    async def scenario(server: Network, client: Network, host: str) -> None:
        accepted: Accepted = asyncio.Queue()
        listener = await server.listen(lambda: Recorder(accepted), host=host, port=0)
        transport, protocol = await client.connect(
            Writer, host=host, port=listener.port, timeout_s=10
        )
        reader = await accepted.get()
        reader.transport.pause_reading()
        size = 0
        while not protocol.is_paused:
            transport.write(bytes(100_000))
            size += 100_000
            assert size < 100_000_000
        assert transport.get_write_buffer_size() > 0
        reader.transport.resume_reading()
        await protocol.until(lambda: not protocol.is_paused)
        await reader.until(lambda: len(reader.received) == size)
        transport.close()
        await protocol.until(lambda: protocol.is_lost)
        listener.close()

    play(scenario)
