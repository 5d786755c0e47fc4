"""The keeper's shell and its limits: idle, slow and greedy clients, and the end (I-37, I-42)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kits.coordination.coordination_kit import KEEPER, PORT, SimulatedWorld, World, eventually
from millstream.coordination.keeper import connection as connection_module
from millstream.coordination.keeper import server as server_module
from millstream.coordination.keeper.jute import pack_integer
from millstream.coordination.keeper.limits import HANDSHAKE_TIMEOUT_MS, STOP_TIMEOUT_S
from millstream.coordination.keeper.protocol import Op
from millstream.coordination.keeper.state import NO_ZXID
from millstream.coordination.port import NodeKind
from millstream.model.ids import NO_SESSION
from millstream.testing.sim import keeper_requests as wire
from millstream.testing.sim.transport import SimTransport

HELLO = wire.connect_frame(
    last_zxid=NO_ZXID, timeout_ms=6000, session_id=NO_SESSION, password=bytes(16)
)


class Raw(asyncio.Protocol):
    """A connection whose bytes the test sees."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False
        self.transport: SimTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def frames(self) -> list[bytes]:
        found, position = [], 0
        while position + 4 <= len(self.received):
            end = position + 4 + int.from_bytes(self.received[position : position + 4], "big")
            if end > len(self.received):
                break
            found.append(bytes(self.received[position + 4 : end]))
            position = end
        return found


async def raw(world: SimulatedWorld, name: str) -> Raw:
    network = world.world.node(name).network
    _, made = await network.connect(Raw, host=KEEPER, port=PORT, timeout_s=5)
    return made


def request(xid: int, op: Op, body: bytes) -> bytes:
    return wire.frame(pack_integer(xid) + pack_integer(op) + body)


def play(story: Callable[[SimulatedWorld], Awaitable[None]]) -> None:
    world = SimulatedWorld(11)

    async def played(_: World) -> None:
        await story(world)

    world.play(played)


def test_who_never_asks_for_a_session_is_hung_up_on() -> None:
    async def story(world: SimulatedWorld) -> None:
        silent, half = await raw(world, "silent"), await raw(world, "half")
        half.transport.write(HELLO[:10])
        await asyncio.sleep(HANDSHAKE_TIMEOUT_MS / 1000 - 1)
        assert [one.is_lost for one in (silent, half)] == [False, False]
        await asyncio.sleep(2)
        assert [one.is_lost for one in (silent, half)] == [True, True]

    play(story)


def test_the_number_of_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 3)

    async def story(world: SimulatedWorld) -> None:
        kept = [await raw(world, f"kept{number}") for number in range(2)]
        refused = await raw(world, "refused")
        await asyncio.sleep(1)
        assert [one.is_lost for one in (*kept, refused)] == [False, False, True]
        kept[0].transport.abort()
        await asyncio.sleep(1)
        again = await raw(world, "again")
        again.transport.write(HELLO)
        await eventually(world, again.frames, "there is room again")

    play(story)


def test_many_writes_at_once_are_all_answered_in_order() -> None:
    """More than may wait for the disk: the rest is left in the socket meanwhile."""
    count = 2_500

    async def story(world: SimulatedWorld) -> None:
        greedy = await raw(world, "greedy")
        path = f"{world.root}/n-"
        body = wire.create(path, b"", NodeKind.PERSISTENT_SEQUENTIAL)
        frames = [request(xid, Op.CREATE, body) for xid in range(1, count + 1)]
        greedy.transport.write(HELLO + b"".join(frames))
        await eventually(world, lambda: len(greedy.frames()) == count + 1, "all is answered")
        answered = [int.from_bytes(frame[:4], "big") for frame in greedy.frames()[1:]]
        assert answered == list(range(1, count + 1))
        assert len(world.server.machine.state.nodes[world.root].children) == count

    play(story)


def test_who_does_not_take_his_answers_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "OUTPUT_BYTES_MAX", 200_000)

    async def story(world: SimulatedWorld) -> None:
        slow, writer = await raw(world, "slow"), await world.open("writer")
        slow.transport.write(HELLO)
        await eventually(world, slow.frames, "it has a session")
        path = f"{world.root}/" + "x" * 5_000
        add_watch = wire.versioned(path, 0)
        slow.transport.write(request(1, Op.ADD_WATCH, add_watch))
        await eventually(world, lambda: len(slow.frames()) == 2, "it watches")
        slow.transport.pause_reading()
        await writer.create(path)
        for version in range(150):
            await writer.set(path, b"", version=version)
        slow.transport.resume_reading()
        await asyncio.sleep(1)  # long before its session expires
        assert slow.is_lost
        assert await writer.exists(path) is not None

    play(story)


def test_the_last_answer_leaves_before_the_connection_ends() -> None:
    async def story(world: SimulatedWorld) -> None:
        closing = await raw(world, "closing")
        closing.transport.write(HELLO + request(1, Op.CLOSE_SESSION, b""))
        await eventually(world, lambda: closing.is_lost, "the server hangs up")
        assert [frame[:4] for frame in closing.frames()] == [pack_integer(0), pack_integer(1)]

    play(story)


def test_a_client_that_takes_nothing_does_not_hold_up_the_end() -> None:
    world = SimulatedWorld(12)

    async def story(_: World) -> None:
        stuck = await raw(world, "stuck")
        stuck.transport.write(HELLO)
        await eventually(world, stuck.frames, "it has a session")
        stuck.transport.pause_reading()
        started_s = world.world.loop.time()
        await world.stop_keeper()
        assert world.world.loop.time() - started_s < STOP_TIMEOUT_S + 1
        await world.start_keeper()

    world.play(story)
