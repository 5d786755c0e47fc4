"""I-34: requests of one client do not keep others waiting, however many it sends at once.

Handlers take time here; an iteration of the event loop has only so much of it for all.
"""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from millstream.broker.net.exchange import REQUESTS_PER_TURN_MAX, Exchange
from millstream.broker.net.peer import Cause, ClientPeer
from millstream.broker.requests.context import RequestFacts
from millstream.kernels.connection import Connection
from millstream.kernels.epoll_shell import REQUESTS, EpollShell
from millstream.kernels.slots import SlotTable
from millstream.model.ids import BrokerId
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import ITERATION_SERVING_S, MIB, TASK_SERVING_S
from millstream.observe.api_counters import ApiCounters
from millstream.testing.sim.clock import ManualClock
from millstream.wire.api_keys import ApiKey
from millstream.wire.headers import encode_request_header

REQUEST_MS = 1
PER_ITERATION = round(ITERATION_SERVING_S * 1000 / REQUEST_MS)
HEADER = encode_request_header(ApiKey.HEARTBEAT, 0, 7, "c")
FRAME = len(HEADER).to_bytes(4, "big") + HEADER


class Peer(ClientPeer):
    """A connection that is read from a socket; answers go nowhere."""

    world: "World"
    client: socket.socket
    takes_answers = True

    def send_queue(self) -> bool:
        if self.takes_answers:
            self._queue.clear()
        return self.takes_answers

    def pause_reading(self) -> None:
        self._is_reading = False
        self.world.epoll.watch(self.core, reading=False, writing=False)

    def resume_reading(self) -> None:
        self._is_reading = True
        self.world.epoll.watch(self.core, reading=True, writing=False)

    def close_carrier(self) -> None:
        self.world.epoll.forget(self.core)

    @property
    def is_read_from(self) -> bool:
        return self._is_reading


class World:
    """Each request takes a millisecond and is answered at once."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.soon: list[Callable[[], None]] = []
        self.table = SlotTable(violation=InvariantViolated)
        self.exchange = Exchange(
            self.table,
            cast(Any, self),
            self.clock,
            ApiCounters(),
            lambda _: None,
            call_soon=self.soon.append,
        )
        self.epoll = EpollShell(self.table)
        self.sockets: list[socket.socket] = []
        self.handled: list[Peer] = []
        self.request_ms = REQUEST_MS
        self.tasks_per_request = 0
        self.ends = False
        """Whether each connection ends while its request is served."""
        self._number = 0

    def handle(self, peer: Peer, facts: RequestFacts, body: memoryview) -> None:
        """In place of dispatch."""
        del body
        self.clock.advance(self.request_ms)
        for _ in range(self.tasks_per_request):
            self.exchange.charge_task()
        self.handled.append(peer)
        if self.ends:
            peer.abort("gone", Cause.CLIENT)
        peer.send_answer(facts.number, [b"answer"])

    def connect(self, address: str = "busy", *, output_bytes_max: int = MIB) -> Peer:
        self._number += 1
        core = Connection(
            self.table,
            frame_bytes_max=MIB,
            in_flight_max=200,
            output_bytes_max=output_bytes_max,
        )
        peer = Peer(self.exchange, core, listener="L", client_host=address, number=self._number)
        peer.world = self
        peer.client, ours = socket.socketpair()
        self.sockets += [peer.client, ours]
        self.epoll.add(core, ours.fileno())
        return peer

    def receive(self, peers: list[Peer], *, requests: int = 1) -> list[Peer]:
        """One iteration in which each has sent so many; whose requests were handled in it."""
        before = len(self.handled)
        exchange = self.exchange
        for peer in peers:
            peer.client.sendall(FRAME * requests)
        exchange.begin()
        for core, flags, _ in self.epoll.read_ready(exchange.now_s, exchange.wall_ms):
            if flags & REQUESTS:
                exchange.on_readable(core.owner)
        exchange.finish()
        return self.handled[before:]

    def next_iteration(self) -> list[Peer]:
        """One without new input."""
        before = len(self.handled)
        self.soon.pop()()
        return self.handled[before:]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.epoll.close()
    for one in made.sockets:
        one.close()


def test_iteration_ends_when_its_time_is_over_and_the_rest_comes_later(world: World) -> None:
    peers = [world.connect() for _ in range(50)]
    assert len(world.receive(peers, requests=3)) == PER_ITERATION
    iterations = 1
    while world.soon:
        assert len(world.next_iteration()) <= PER_ITERATION + 1
        iterations += 1
    assert Counter(world.handled) == dict.fromkeys(peers, 3)
    assert iterations <= 3 * 50 / PER_ITERATION + 1


def test_who_sends_one_request_waits_for_no_pipeline(world: World) -> None:
    busy = [world.connect() for _ in range(50)]
    quiet, beside = world.connect("quiet"), world.connect("busy")
    world.receive(busy, requests=100)
    while not set(busy) <= set(world.handled):
        world.next_iteration()
    assert len(world.handled) <= len(busy) + PER_ITERATION  # a turn of each came first
    for _ in range(20):
        world.next_iteration()
        assert quiet in world.receive([quiet])
    for _ in range(3):  # one of the same address that wants no more than its share
        for _ in range(2 * len(busy) // PER_ITERATION):
            world.next_iteration()
        assert beside in world.receive([beside])


def test_addresses_have_equal_time_however_many_connections_they_have(world: World) -> None:
    many = [world.connect("many") for _ in range(40)]
    one = world.connect("one")
    world.receive([*many, one], requests=100)
    while world.handled.count(one) < 100:
        world.next_iteration()
    assert len(world.handled) <= 2 * (100 + REQUESTS_PER_TURN_MAX)


def test_connections_of_brokers_have_a_share_each(world: World) -> None:
    clients = [world.connect("same machine") for _ in range(10)]
    brokers = [world.connect("same machine") for _ in range(3)]
    for number, peer in enumerate(brokers):
        peer.prove(BrokerId(number))
    world.receive([*clients, *brokers], requests=100)
    while world.handled.count(brokers[0]) < 100:
        world.next_iteration()
    assert len(world.handled) <= 4 * (100 + REQUESTS_PER_TURN_MAX)


def test_who_waits_for_a_turn_is_not_read_from(world: World) -> None:
    peers = [world.connect() for _ in range(10)]
    world.receive(peers, requests=2)
    waiting = [peer for peer in peers if world.handled.count(peer) < 2]
    assert waiting
    assert not any(peer.is_read_from for peer in waiting)
    waiting[-1].client.sendall(FRAME[:3])
    while world.soon:
        world.next_iteration()
    assert all(peer.is_read_from for peer in peers)
    waiting[-1].client.sendall(FRAME[3:])
    assert world.receive([]) == [waiting[-1]]


def test_who_does_not_take_its_answers_is_neither_served_nor_read_from(world: World) -> None:
    deaf = world.connect(output_bytes_max=30)
    deaf.takes_answers = False
    world.receive([deaf], requests=100)
    while world.soon:
        world.next_iteration()
    served = len(world.handled)
    assert served <= REQUESTS_PER_TURN_MAX
    assert not deaf.is_read_from
    deaf.takes_answers = True
    world.exchange.on_output_ready(deaf)
    while world.soon:
        world.next_iteration()
    assert len(world.handled) == 100
    assert deaf.is_read_from


def test_answers_ready_between_iterations_give_nobody_a_turn(world: World) -> None:
    """There may be thousands of these before the loop looks at the sockets again."""
    busy = world.connect()
    world.receive([busy], requests=100)
    handled = len(world.handled)
    for _ in range(100):
        world.exchange.flush_ready()
        world.exchange.on_output_ready(busy)
    assert len(world.handled) == handled
    assert len(world.soon) == 1


def test_carriers_with_an_event_for_each_connection_share_one_iteration(world: World) -> None:
    peers = [world.connect() for _ in range(50)]
    for peer in peers:
        room = peer.core.get_buffer(len(FRAME))
        room[: len(FRAME)] = FRAME
        del room
        world.exchange.on_received(peer, len(FRAME))
    assert len(world.handled) == PER_ITERATION
    while world.soon:
        assert len(world.next_iteration()) <= PER_ITERATION + 1
    assert set(world.handled) == set(peers)


def test_connection_that_ends_while_it_waits_has_no_turn(world: World) -> None:
    peers = [world.connect() for _ in range(10)]
    world.receive(peers)
    gone = next(peer for peer in peers if peer not in world.handled)
    gone.abort("gone", Cause.CLIENT)
    while world.soon:
        world.next_iteration()
    assert set(world.handled) == {*peers} - {gone}


def test_connection_that_ends_in_its_own_turn_is_forgotten(world: World) -> None:
    peers = [world.connect() for _ in range(10)]
    world.ends = True
    world.receive(peers, requests=3)
    world.next_iteration()
    assert len(world.handled) < len(peers)
    waiting = world.exchange._waiting
    assert len(waiting) > 0
    for members in waiting._members.values():
        assert not set(members._charged) & set(world.handled)


def test_requests_that_go_on_as_tasks_are_charged_in_advance(world: World) -> None:
    """The loop runs all tasks of an iteration before the next: hundreds would be a stall."""
    world.request_ms = 0
    world.tasks_per_request = 1
    peers = [world.connect() for _ in range(50)]
    tasks_max = round(ITERATION_SERVING_S / TASK_SERVING_S)
    assert len(world.receive(peers, requests=10)) <= tasks_max + 1
    while world.soon:
        assert len(world.next_iteration()) <= tasks_max + 1
    assert Counter(world.handled) == dict.fromkeys(peers, 10)
