"""I-37: connections wait for memory; where there is none, who holds most for longest is closed."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from millstream.broker.net.exchange import Exchange, ExchangeHooks
from millstream.broker.net.held_memory import CONNECTION_BYTES, RETURN_INTERVAL_S
from millstream.broker.net.peer import MUTED_BYTES, Cause, ClientPeer
from millstream.broker.requests.request_memory import COUNTED_BYTES_MIN, RequestMemory
from millstream.kernels.connection import Connection
from millstream.kernels.slots import SlotTable
from millstream.model.ids import BrokerId
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import ITERATION_SERVING_S, KIB, MIB, REQUEST_MEMORY_WAIT_S
from millstream.observe.api_counters import ApiCounters
from millstream.testing.sim.clock import ManualClock

BUDGET = 16 * MIB
CLIENTS = BUDGET * 3 // 4
"""What large requests of clients may use."""
FRAME = bytes.fromhex("0012 0000 00000001 ffff")


class Peer(ClientPeer):
    """A connection that is fed by hand."""

    takes_answers = True
    is_gone = False

    def send_queue(self) -> bool:
        if self.takes_answers:
            self._queue.clear()
        return self.takes_answers

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def has_left(self) -> bool:
        return self.is_gone

    def close_carrier(self) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.table = SlotTable(violation=InvariantViolated)
        self.handled: list[int] = []
        self.ended: list[ClientPeer] = []
        self.peers: list[Peer] = []
        self.soon: list[Callable[[], None]] = []
        self.returned_count = 0
        self.charges = False
        """Whether what is received is charged, or only what a test charges."""
        self.memory = RequestMemory(BUDGET)
        self.exchange = Exchange(
            self.table,
            cast(Any, self),
            self.clock,
            ApiCounters(),
            self.ended.append,
            call_soon=self.soon.append,
            hooks=ExchangeHooks(memory=self.memory, return_memory=self._return_memory),
        )

    def _return_memory(self) -> None:
        self.returned_count += 1

    def handle(self, peer: ClientPeer, facts: Any, body: memoryview) -> None:
        """In place of dispatch."""

        def go_on() -> None:
            self.handled.append(facts.number)

        if self.charges:
            peer.charge(facts.number, kept_bytes=len(body), more_bytes=0, go_on=go_on)
        else:
            go_on()

    def connect(self, address: str = "h") -> Peer:
        core = Connection(self.table, frame_bytes_max=100 * MIB, in_flight_max=10)
        number = len(self.peers)
        peer = Peer(self.exchange, core, listener="L", client_host=address, number=number)
        self.peers.append(peer)
        return peer

    def receive(self, peer: Peer, data: bytes) -> int:
        """As far as it is read; returns how much that was."""
        self.exchange.begin()
        at = 0
        while at < len(data) and peer._is_reading and peer.is_open:
            room = peer.core.get_buffer(60 * KIB)
            size = min(len(room), 60 * KIB, len(data) - at)
            room[:size] = data[at : at + size]
            self.exchange.on_received(peer, size)
            at += size
        self.exchange.finish()
        self.run()
        return at

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def hold(self, peer: Peer, size: int) -> int:
        """The beginning of a frame that is never finished."""
        return self.receive(peer, (90 * MIB).to_bytes(4, "big") + bytes(size - 4))

    def charge(self, peer: Peer, number: int, more: int, *, kept: int = 0) -> bool:
        """As dispatch does it; whether it is served at once."""
        before = len(self.handled)
        self.charge_again(peer, number, more, kept=kept, had_turn=False)
        return len(self.handled) > before

    def charge_again(
        self, peer: Peer, number: int, more: int, *, kept: int = 0, had_turn: bool = True
    ) -> None:
        """It turned out to take more."""

        def go_on() -> None:
            self.handled.append(number)

        peer.charge(number, kept_bytes=kept, more_bytes=more, go_on=go_on, had_turn=had_turn)

    def work_on(self, peer: Peer, number: int, size: int) -> None:
        """A request of so many bytes is being worked on in a task."""
        self.serve(peer)
        peer.charge(number, kept_bytes=size, more_bytes=0, go_on=lambda: peer.hold(number))

    def serve(self, peer: Peer) -> None:
        """A request arrives and is not answered yet."""
        self.receive(peer, len(FRAME).to_bytes(4, "big") + FRAME)

    def sweep(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.clock.advance(1_000)
            self.exchange.begin()
            self.exchange.held.sweep(one for one in self.peers if one not in self.ended)
            self.exchange.finish()
            self.run()


@pytest.fixture
def world() -> World:
    return World()


# -- input -----------------------------------------------------------------------------------------


def test_beyond_the_share_of_clients_nothing_more_of_a_large_request_is_read(world: World) -> None:
    first, second = world.connect(), world.connect()
    assert world.hold(first, 4 * MIB) == 4 * MIB
    assert world.hold(second, 8 * MIB) < 8 * MIB
    assert second.is_open
    assert second.is_muted
    assert world.memory.used_bytes <= BUDGET


def test_it_is_read_on_as_soon_as_there_is_memory(world: World) -> None:
    first, second = world.connect(), world.connect()
    world.hold(first, 8 * MIB)
    world.hold(second, 8 * MIB)
    first.abort("gone", Cause.CLIENT)
    world.run()
    assert not second.is_muted
    assert bool(second._is_reading)


def test_small_requests_are_read_while_large_ones_wait(world: World) -> None:
    first, second, honest = world.connect(), world.connect(), world.connect()
    world.hold(first, 8 * MIB)
    world.hold(second, 8 * MIB)
    assert world.hold(honest, 900 * KIB) == 900 * KIB
    assert not honest.is_muted


def test_who_holds_most_for_longest_makes_room_where_nobody_gets_on(world: World) -> None:
    """Slow attackers each have less than an honest client that is sending."""
    slow = [world.connect() for _ in range(6)]
    for peer in slow:
        world.hold(peer, 2 * MIB - 64 * KIB)
    for _ in range(60):
        world.clock.advance(1_000)
        for peer in slow:
            world.receive(peer, b"x")  # a byte now and then makes no request younger
    honest = world.connect()
    assert world.hold(honest, 3 * MIB) < 3 * MIB
    world.sweep()
    assert honest.is_open
    assert not honest.is_muted
    assert world.ended
    assert set(world.ended) < set(slow)
    assert {one.close_cause for one in world.ended} == {Cause.MEMORY}


def test_who_waits_too_long_is_closed(world: World) -> None:
    first, second = world.connect(), world.connect()
    world.work_on(first, 0, CLIENTS)  # served for very long
    world.hold(second, 8 * MIB)
    world.sweep(int(REQUEST_MEMORY_WAIT_S) + 1)
    assert world.ended == [second]


def test_what_is_finished_is_not_held(world: World) -> None:
    for _ in range(30):
        peer = world.connect()
        frame = FRAME + bytes(MIB)
        world.receive(peer, len(frame).to_bytes(4, "big") + frame)
    assert world.memory.used_bytes == 0
    assert not world.ended
    assert len(world.handled) == 30


def test_the_buffer_of_a_large_request_that_was_served_is_returned_at_once(world: World) -> None:
    """Many connections that each send one and stay would have them all until the sweep."""
    peer = world.connect()
    world.charges = True
    frame = FRAME + bytes(MIB)
    world.receive(peer, len(frame).to_bytes(4, "big") + frame)
    assert world.handled == [0]
    assert peer.core.buffer_bytes == 0


def test_small_leftovers_are_counted_by_the_sweep(world: World) -> None:
    peer = world.connect()
    world.hold(peer, COUNTED_BYTES_MIN - 1)
    assert world.memory.used_bytes == 0
    world.sweep()
    assert world.memory.used_bytes == COUNTED_BYTES_MIN - 1 + CONNECTION_BYTES
    world.receive(peer, b"xx")
    assert peer.account.input_bytes == peer.core.resident_bytes > COUNTED_BYTES_MIN


def test_very_many_connections_with_little_each_are_closed_too(world: World) -> None:
    peers = [world.connect() for _ in range(500)]
    for peer in peers:
        world.receive(peer, b"0")
    world.sweep()
    assert 0 < len(world.ended) < 100
    assert world.memory.used_bytes <= BUDGET


# -- requests that are served ----------------------------------------------------------------------


def test_a_request_waits_for_memory_and_is_served_when_another_is_answered(world: World) -> None:
    first, second = world.connect(), world.connect()
    for peer in (first, second):
        world.serve(peer)
    assert world.charge(first, 0, 0, kept=9 * MIB)
    assert not world.charge(second, 0, 4 * MIB, kept=MIB)
    assert bool(second.is_muted)
    before = len(world.handled)
    first.send_answer(0, [b"answer"])
    world.run()
    assert len(world.handled) == before + 1
    assert not second.is_muted
    assert world.memory.used_bytes == second.account.request_bytes == 5 * MIB
    second.send_answer(0, [b"answer"])
    assert world.memory.used_bytes == 0


def test_what_is_estimated_never_shuts_a_request_out(world: World) -> None:
    """Whatever it might take at the most: one that is alone is served."""
    peer, other = world.connect(), world.connect()
    world.hold(other, MIB)
    world.serve(peer)
    assert world.charge(peer, 0, 100 * CLIENTS, kept=MIB)
    assert peer.is_open
    assert world.memory.used_bytes <= CLIENTS


def test_the_bytes_of_requests_that_wait_count(world: World) -> None:
    """Many that wait each have a body: it is in memory, whether they are served or not."""
    holder = world.connect("holder")
    world.work_on(holder, 0, 8 * MIB)
    peers = [world.connect(str(index)) for index in range(20)]
    for peer in peers:
        world.serve(peer)
        assert not world.charge(peer, 0, 4 * MIB, kept=MIB)
    world.run()
    assert world.memory.used_bytes <= BUDGET
    assert 0 < len(world.ended) < 20


def test_a_request_that_waits_makes_room_for_the_one_whose_turn_it_is(world: World) -> None:
    """Their own bytes are all there is: none of them could ever go on."""
    first = world.connect("first")
    world.work_on(first, 0, 8 * MIB)
    peers = [world.connect(str(index)) for index in range(4)]
    for peer in peers:
        world.serve(peer)
        assert not world.charge(peer, 0, 9 * MIB, kept=MIB)
    first.let_go(0)
    first.send_answer(0, [b"answer"])
    world.sweep(9)
    assert 0 < len(world.ended) < 3
    assert set(world.ended) < set(peers[1:])
    assert {one.close_cause for one in world.ended} == {Cause.MEMORY}
    assert not peers[0].is_muted


def test_a_request_that_turns_out_to_take_more_does_not_wait_with_what_it_has(
    world: World,
) -> None:
    """Six that each had the half of what they need would wait for each other for ever."""
    first = world.connect("first")
    world.work_on(first, 0, 11 * MIB)
    peers = [world.connect(str(index)) for index in range(6)]
    for peer in peers:
        world.serve(peer)
        peer.charge(
            0,
            kept_bytes=10 * KIB,
            more_bytes=2 * MIB,
            go_on=lambda peer=peer: world.charge_again(peer, 0, 6 * MIB, kept=10 * KIB),  # type: ignore[misc]
        )
    world.handled.clear()
    first.let_go(0)
    first.send_answer(0, [b"answer"])
    world.run()
    assert peers[5].account.waiters[0].size_bytes == 2 * MIB  # it had no turn yet
    for _ in peers:
        assert world.handled
        for peer in peers:
            if peer.account.request_bytes > 2 * MIB:
                peer.send_answer(0, [b"answer"])
        world.run()
    assert len(world.handled) == 6
    assert not world.ended
    assert world.memory.used_bytes == 0


def test_the_memory_of_a_closed_connection_is_free_when_its_request_is_done(world: World) -> None:
    """A task works on it, whether the connection is muted meanwhile or not."""
    peer = world.connect()
    world.work_on(peer, 0, 5 * MIB)
    world.serve(peer)
    assert world.charge(peer, 1, MIB)
    peer.abort("gone", Cause.CLIENT)
    assert world.memory.used_bytes == 5 * MIB
    peer.let_go(0)
    assert world.memory.used_bytes == 0


def test_a_connection_that_ends_while_it_waits_is_forgotten(world: World) -> None:
    first, second = world.connect(), world.connect()
    for peer in (first, second):
        world.serve(peer)
    assert world.charge(first, 0, 0, kept=9 * MIB)
    assert not world.charge(second, 0, 5 * MIB)
    second.abort("gone", Cause.CLIENT)
    assert world.memory.waiting_count == 0
    assert world.memory.used_bytes == 9 * MIB


def test_a_connection_that_has_ended_waits_for_nothing(world: World) -> None:
    """It ends while its request is decoded, which then asks for more: others would wait for it."""
    first, gone, honest = world.connect(), world.connect(), world.connect()
    world.work_on(first, 0, 8 * MIB)
    world.work_on(gone, 0, 10 * KIB)
    gone.abort("gone", Cause.CLIENT)
    world.charge_again(gone, 0, 6 * MIB, kept=10 * KIB)
    gone.let_go(0)
    world.serve(honest)
    assert world.charge(honest, 0, 2 * MIB)
    assert world.memory.waiting_count == 0


def test_a_broker_is_served_while_clients_wait(world: World) -> None:
    first, broker = world.connect(), world.connect()
    broker.prove(BrokerId(2))
    world.work_on(first, 0, CLIENTS)
    world.serve(broker)
    world.hold(world.connect(), 4 * MIB)
    assert world.charge(broker, 0, 2 * MIB)
    world.sweep(20)
    assert broker.is_open


def test_a_broker_that_waits_is_not_closed(world: World) -> None:
    first, broker = world.connect(), world.connect()
    broker.prove(BrokerId(2))
    world.work_on(first, 0, CLIENTS)
    world.serve(broker)
    assert not world.charge(broker, 0, 6 * MIB)
    world.sweep(int(REQUEST_MEMORY_WAIT_S) + 2)
    assert broker.is_open
    first.let_go(0)
    first.send_answer(0, [b"answer"])
    world.run()
    assert not broker.is_muted


def test_requests_that_waited_for_memory_take_the_time_of_an_iteration(world: World) -> None:
    first = world.connect("first")
    world.work_on(first, 0, 10 * MIB)
    served: list[int] = []

    def take_long() -> None:
        served.append(1)
        world.clock.advance(int(2 * ITERATION_SERVING_S * 1000))

    for index in range(3):
        peer = world.connect(str(index))
        world.serve(peer)
        peer.charge(0, kept_bytes=10 * KIB, more_bytes=2 * MIB, go_on=take_long)
    assert served == []
    first.let_go(0)
    first.send_answer(0, [b"answer"])
    assert len(served) <= 1
    while world.soon:
        before = len(served)
        world.soon.pop(0)()
        assert len(served) <= before + 1
    assert len(served) == 3


# -- who is closed ---------------------------------------------------------------------------------


def test_requests_that_wait_for_records_are_closed_before_honest_uploads(world: World) -> None:
    """What they keep is held by their connections, though no byte of it is input or an answer."""
    dropped: list[int] = []
    attackers = [world.connect("attacker") for _ in range(6)]
    for index, peer in enumerate(attackers):
        world.serve(peer)
        peer.park(0, 2 * MIB, lambda index=index: dropped.append(index))  # type: ignore[misc]
    honest = world.connect("honest")
    assert world.hold(honest, 3 * MIB) < 3 * MIB
    world.sweep(2)
    assert honest.is_open
    assert not honest.is_muted
    assert 0 < len(dropped) == len(world.ended)
    assert set(world.ended) <= set(attackers)


def test_nobody_is_closed_for_what_is_being_served(world: World) -> None:
    """It would free nothing: the requests that are in memory end by themselves."""
    server, holder, waiting = world.connect("a"), world.connect("b"), world.connect("c")
    world.work_on(server, 0, CLIENTS - MIB)
    world.hold(holder, 500 * KIB)
    world.serve(waiting)
    assert not world.charge(waiting, 0, 4 * MIB)
    world.sweep(5)
    assert not world.ended


def test_very_many_small_requests_in_flight_are_closed_before_honest_uploads(world: World) -> None:
    early = [world.connect("honest") for _ in range(5)]
    for peer in early:
        world.hold(peer, 100 * KIB)
    attackers = [world.connect("attacker") for _ in range(322)]
    for peer in attackers:
        for _ in range(10):
            world.serve(peer)
    world.sweep()
    late = world.connect("honest")
    world.hold(late, 300 * KIB)
    world.sweep(3)
    assert late.is_open
    assert not late.is_muted
    assert all(peer.is_open for peer in early)
    assert world.ended
    assert world.memory.used_bytes <= BUDGET


def test_an_upload_is_not_closed_for_one_that_wants_much_more(world: World) -> None:
    uploads = [world.connect(str(index)) for index in range(8)]
    for peer in uploads:
        world.hold(peer, 900 * KIB)
    greedy = world.connect("greedy")
    world.serve(greedy)
    assert not world.charge(greedy, 0, CLIENTS)
    world.sweep(3)
    assert not world.ended


def test_room_for_brokers_is_made_at_anybodys_cost(world: World) -> None:
    upload, broker = world.connect("a"), world.connect("b")
    broker.prove(BrokerId(2))
    world.work_on(world.connect("c"), 0, 9 * MIB)
    world.hold(upload, 2 * MIB)
    world.serve(broker)
    assert not world.charge(broker, 0, 6 * MIB)
    world.sweep(2)
    assert world.ended == [upload]
    assert not broker.is_muted


# -- answers ---------------------------------------------------------------------------------------


def test_answers_that_are_not_taken_count_and_the_worst_is_closed(world: World) -> None:
    peers = [world.connect() for _ in range(9)]
    for index, peer in enumerate(peers):
        world.serve(peer)
        peer.takes_answers = False
        peer.send_answer(0, [bytes(2 * MIB - 8 + index)])
        world.run()
    assert world.ended == [peers[-1]]
    assert world.memory.used_bytes <= BUDGET
    peers[0].takes_answers = True
    peers[0].flush()
    assert peers[0].account.answer_bytes == 0


def test_answers_that_wait_for_an_earlier_one_count(world: World) -> None:
    """The first request may wait for days."""
    peers = [world.connect(str(index)) for index in range(20)]
    for peer in peers:
        world.serve(peer)
        world.serve(peer)
        peer.send_answer(1, [bytes(2 * MIB)])
        world.run()
    assert world.memory.used_bytes <= BUDGET
    assert len(world.ended) >= 12
    last = peers[-1]
    if last.is_open:
        last.send_answer(0, [b"answer"])
        world.run()
        assert last.account.answer_bytes == 0


def test_what_waits_for_a_client_that_is_gone_is_dropped(world: World) -> None:
    """It is not read from, so its end is not noticed otherwise."""
    gone, reading = world.connect(), world.connect()
    for peer in (gone, reading):
        for _ in range(10):  # as many as may be in flight
            world.serve(peer)
        peer.send_answer(1, [bytes(MIB)])
        world.run()
    assert gone.is_blocked
    world.sweep()
    assert not world.ended
    gone.is_gone = True
    world.sweep()
    assert world.ended == [gone]
    assert gone.close_cause is Cause.CLIENT


def test_answers_that_are_taken_at_once_are_not_counted(world: World) -> None:
    peer = world.connect()
    world.serve(peer)
    peer.send_answer(0, [bytes(20 * MIB)])
    assert world.memory.used_bytes == 0
    assert not world.ended


# -- muting ----------------------------------------------------------------------------------------


def test_a_muted_connection_is_not_served_until_it_may_speak(world: World) -> None:
    """Not what is in its buffer, not when answers leave meanwhile, not twice at once."""
    peer = world.connect()
    request = len(FRAME).to_bytes(4, "big") + FRAME
    world.receive(peer, request)
    peer.mute()
    peer.core.get_buffer(100)[: len(request)] = request
    world.exchange.on_received(peer, len(request))
    peer.send_answer(0, [b"answer"])
    world.run()
    assert world.handled == [0]
    assert peer._is_reading is False
    assert peer.core.unsent_bytes == MUTED_BYTES
    peer.unmute()
    world.run()
    assert world.handled == [0, 1]
    assert bool(peer._is_reading)
    assert peer.core.unsent_bytes == 0
    peer.unmute()
    assert peer.core.unsent_bytes == 0


def test_who_is_muted_for_two_reasons_waits_for_both(world: World) -> None:
    peer = world.connect()
    peer.mute()
    peer.mute()
    peer.unmute()
    assert peer.is_muted
    assert peer.core.unsent_bytes == MUTED_BYTES
    peer.unmute()
    assert peer.core.unsent_bytes == 0
    assert bool(peer._is_reading)


def test_memory_is_returned_once_after_much_was_released(world: World) -> None:
    """Released blocks that share the heap with others stay resident until then."""
    holder = world.connect()
    world.hold(holder, 4 * MIB)
    world.sweep(10)
    assert world.returned_count == 0
    holder.abort("gone", Cause.PROTOCOL)
    world.sweep()
    assert world.returned_count == 1
    world.sweep(10)
    assert world.returned_count == 1


def test_memory_is_not_returned_after_little_or_too_often(world: World) -> None:
    for size, expected in ((100 * KIB, 0), (4 * MIB, 1), (4 * MIB, 1)):
        holder = world.connect()
        world.hold(holder, size)
        holder.abort("gone", Cause.PROTOCOL)
        world.sweep(1 if expected else 10)
        assert world.returned_count == expected
    world.sweep(10)
    assert world.returned_count == 2


def test_time_passes_for_a_sweep_although_no_client_sends_anything(world: World) -> None:
    """What requests released is returned on a broker that has nothing to do, too."""
    holder = world.connect()
    world.hold(holder, 4 * MIB)
    holder.abort("gone", Cause.CLIENT)
    world.run()
    assert world.returned_count == 0
    world.clock.advance(int(RETURN_INTERVAL_S * 1000))
    world.exchange.held.sweep([])
    assert world.returned_count == 1
