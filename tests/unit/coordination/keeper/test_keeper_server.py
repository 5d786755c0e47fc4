"""The keeper's shell and its limits: idle, slow and greedy clients, and the end (I-37, I-42)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kits.coordination.coordination_kit import (
    CREDENTIALS,
    KEEPER,
    PORT,
    SimulatedWorld,
    World,
    eventually,
)
from millstream.coordination.keeper import admission as admission_module
from millstream.coordination.keeper import connection as connection_module
from millstream.coordination.keeper.jute import pack_integer
from millstream.coordination.keeper.limits import (
    AUTHENTICATION_TIMEOUT_MS,
    HANDSHAKE_TIMEOUT_MS,
    STOP_TIMEOUT_S,
)
from millstream.coordination.keeper.protocol import AUTH_XID, PING_XID, Code, Op
from millstream.coordination.keeper.state import NO_ZXID
from millstream.coordination.port import NodeKind
from millstream.model.ids import NO_SESSION
from millstream.testing.sim import keeper_requests as wire
from millstream.testing.sim.transport import SimTransport

CONNECT = wire.connect_frame(
    last_zxid=NO_ZXID, timeout_ms=6000, session_id=NO_SESSION, password=bytes(16)
)
HELLO = CONNECT + wire.auth_frame(CREDENTIALS)
"""Answered with two frames."""


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


PING = request(PING_XID, Op.PING, b"")


def play(story: Callable[[SimulatedWorld], Awaitable[None]]) -> None:
    world = SimulatedWorld(11)

    async def played(_: World) -> None:
        await story(world)

    world.play(played)


def test_who_never_asks_for_a_session_is_hung_up_on() -> None:
    async def story(world: SimulatedWorld) -> None:
        silent, half = await raw(world, "silent"), await raw(world, "half")
        half.transport.write(CONNECT[:10])
        await asyncio.sleep(HANDSHAKE_TIMEOUT_MS / 1000 - 1)
        assert [one.is_lost for one in (silent, half)] == [False, False]
        await asyncio.sleep(2)
        assert [one.is_lost for one in (silent, half)] == [True, True]

    play(story)


def test_who_does_not_prove_the_secret_is_hung_up_on() -> None:
    async def story(world: SimulatedWorld) -> None:
        guest, member = await raw(world, "guest"), await raw(world, "member")
        guest.transport.write(CONNECT)
        member.transport.write(HELLO)
        for _ in range(AUTHENTICATION_TIMEOUT_MS // 1000 - 1):
            await asyncio.sleep(1)
            for one in (guest, member):
                one.transport.write(PING)
        assert [one.is_lost for one in (guest, member)] == [False, False]
        member.transport.write(PING)
        await asyncio.sleep(2)
        assert [one.is_lost for one in (guest, member)] == [True, False]

    play(story)


def test_without_the_secret_the_oldest_connection_makes_room_for_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a broker of the same address gets in, however many connections are held open."""
    monkeypatch.setattr(admission_module, "UNAUTHENTICATED_PER_ADDRESS_MAX", 3)

    async def story(world: SimulatedWorld) -> None:
        broker = await raw(world, "there")
        broker.transport.write(HELLO)
        await eventually(world, lambda: len(broker.frames()) == 2, "it has proved itself")
        held = [await raw(world, "there") for _ in range(5)]
        late = await raw(world, "there")
        late.transport.write(HELLO)
        await eventually(world, lambda: len(late.frames()) == 2, "the broker gets in")
        assert [one.is_lost for one in held] == [True, True, True, False, False]
        assert not broker.is_lost

    play(story)


def test_the_number_of_connections_with_the_secret_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_module, "AUTHENTICATED_PER_ADDRESS_MAX", 2)

    async def story(world: SimulatedWorld) -> None:
        made = [await raw(world, "there") for _ in range(3)]
        elsewhere = await raw(world, "elsewhere")
        for one in (*made, elsewhere):
            one.transport.write(HELLO)
        await eventually(world, lambda: any(one.is_lost for one in made), "one is too many")
        await eventually(world, lambda: len(elsewhere.frames()) == 2, "others are served")
        assert sum(one.is_lost for one in made) == 1
        assert not elsewhere.is_lost

    play(story)


def test_frames_before_the_secret_are_small() -> None:
    async def story(world: SimulatedWorld) -> None:
        guest, member = await raw(world, "guest"), await raw(world, "member")
        path = f"{world.root}/x"
        large = request(1, Op.CREATE, wire.create(path, bytes(100_000), NodeKind.PERSISTENT))
        guest.transport.write(CONNECT + large)
        member.transport.write(HELLO + large)
        await eventually(world, lambda: guest.is_lost, "it is too large for a guest")
        await eventually(world, lambda: len(member.frames()) == 3, "and not for a member")
        assert member.frames()[2][12:16] == pack_integer(Code.OK)

    play(story)


def test_what_is_pending_for_one_address_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is answered in the end, whoever had to wait."""
    monkeypatch.setattr(admission_module, "PENDING_BYTES_PER_ADDRESS_MAX", 20_000)
    monkeypatch.setattr(connection_module, "PENDING_BYTES_PER_CONNECTION_MAX", 10_000)

    async def story(world: SimulatedWorld) -> None:
        path = f"{world.root}/n-"
        body = wire.create(path, bytes(1_000), NodeKind.PERSISTENT_SEQUENTIAL)
        many = b"".join(request(xid, Op.CREATE, body) for xid in range(1, 101))
        made = [await raw(world, "there") for _ in range(5)]
        for one in made:
            one.transport.write(HELLO + many)
        most = 0
        while any(len(one.frames()) < 102 for one in made):
            uses = [one.use.pending_bytes for one in world.server._connections.values()]
            most = max(most, *uses)
            await asyncio.sleep(0.0005)
        assert 0 < most < 30_000
        assert len(world.server.machine.state.nodes[world.root].children) == 500

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
        await eventually(world, lambda: len(greedy.frames()) == count + 2, "all is answered")
        answered = [int.from_bytes(frame[:4], "big") for frame in greedy.frames()[2:]]
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
        await eventually(world, lambda: len(slow.frames()) == 3, "it watches")
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
        expected = [pack_integer(0), pack_integer(AUTH_XID), pack_integer(1)]
        assert [frame[:4] for frame in closing.frames()] == expected

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
