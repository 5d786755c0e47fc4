"""I-37: when unfinished requests take too much memory, the largest and oldest are closed."""

from typing import Any, cast

import pytest

from millstream.broker.net import exchange as exchanges
from millstream.broker.net.exchange import HELD_BYTES_MIN, Exchange
from millstream.broker.net.peer import MUTED_BYTES, Cause, ClientPeer
from millstream.kernels.connection import Connection
from millstream.kernels.slots import SlotTable
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import KIB, MIB
from millstream.observe.api_counters import ApiCounters
from millstream.testing.sim.clock import ManualClock

LIMIT = 10 * MIB


class Peer(ClientPeer):
    """A connection that is fed by hand."""

    def send_queue(self) -> bool:
        self._queue.clear()
        return True

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def close_carrier(self) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.table = SlotTable(violation=InvariantViolated)
        self.handled: list[int] = []
        self.ended: list[ClientPeer] = []
        self.exchange = Exchange(
            self.table,
            cast(Any, self),
            self.clock,
            ApiCounters(),
            self.ended.append,
            call_soon=lambda work: work(),
        )
        self._number = 0

    def handle(self, peer: ClientPeer, facts: Any, body: memoryview) -> None:
        """In place of dispatch."""
        del body
        self.handled.append(facts.number)

    def connect(self) -> Peer:
        self._number += 1
        core = Connection(self.table, frame_bytes_max=100 * MIB, in_flight_max=10)
        facts: Any = {"listener": "L", "client_host": "h", "number": self._number}
        return Peer(self.exchange, core, **facts)

    def receive(self, peer: Peer, data: bytes) -> None:
        self.exchange.begin()
        for start in range(0, len(data), 60 * KIB):
            part = data[start : start + 60 * KIB]
            while part and peer.is_open:
                room = peer.core.get_buffer(len(part))
                size = min(len(room), len(part))
                room[:size] = part[:size]
                self.exchange.on_received(peer, size)
                part = part[size:]
        self.exchange.finish()

    def hold(self, peer: Peer, size: int) -> None:
        """The beginning of a frame that is never finished."""
        self.receive(peer, (90 * MIB).to_bytes(4, "big") + bytes(size - 4))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(exchanges, "BUFFERED_REQUEST_BYTES_MAX", LIMIT)
    return World()


def test_who_holds_most_goes_not_who_comes_last(world: World) -> None:
    large, small = world.connect(), world.connect()
    world.hold(large, 9 * MIB)
    world.hold(small, 2 * MIB)
    assert world.ended == [large]
    assert (large.close_cause, small.is_open) == (Cause.LIMIT, True)


def test_who_sends_a_large_request_now_stays_and_who_holds_for_long_goes(world: World) -> None:
    """Slow attackers each have less than an honest client that is sending."""
    slow = [world.connect() for _ in range(4)]
    for peer in slow:
        world.hold(peer, 2 * MIB)
    for _ in range(60):
        world.clock.advance(1_000)
        for peer in slow:
            world.receive(peer, b"x")  # a byte now and then makes no request younger
    honest = world.connect()
    world.hold(honest, 7 * MIB)
    assert honest.is_open
    assert set(world.ended) <= set(slow)
    assert len(world.ended) == 3


def test_what_is_finished_is_not_held(world: World) -> None:
    for _ in range(30):
        peer = world.connect()
        frame = bytes.fromhex("0012 0000 00000001 ffff") + bytes(MIB)
        world.receive(peer, len(frame).to_bytes(4, "big") + frame)
        assert peer.held_bytes == 0
    assert not world.ended
    assert len(world.handled) == 30


def test_small_leftovers_are_not_counted(world: World) -> None:
    peer = world.connect()
    world.hold(peer, HELD_BYTES_MIN - 1)
    assert peer.held_bytes == 0
    world.receive(peer, b"xx")
    assert peer.held_bytes == HELD_BYTES_MIN + 1


def test_a_request_that_is_being_served_is_held_too(world: World) -> None:
    """It is in memory until it was decoded, in another thread and perhaps after many others."""
    first, second = world.connect(), world.connect()
    first.mute(6 * MIB)
    second.mute(5 * MIB)
    assert world.ended == [first]
    assert second.held_bytes == 5 * MIB
    second.unmute()
    assert second.held_bytes == 0


def test_a_muted_connection_is_not_served_until_it_may_speak(world: World) -> None:
    """Not what is in its buffer, not when answers leave meanwhile, not twice at once."""
    peer = world.connect()
    frame = bytes.fromhex("0012 0000 00000001 ffff")
    request = len(frame).to_bytes(4, "big") + frame
    world.receive(peer, request)
    peer.mute(10)
    world.receive(peer, request)
    peer.send_answer(0, [b"answer"])
    assert world.handled == [0]
    assert peer._is_reading is False
    assert peer.core.unsent_bytes == MUTED_BYTES
    peer.unmute()
    assert world.handled == [0, 1]
    assert bool(peer._is_reading)
    assert peer.core.unsent_bytes == 0
    peer.unmute()
    assert peer.core.unsent_bytes == 0
