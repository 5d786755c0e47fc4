"""Work that an event-loop iteration does once at its end, for all of its requests."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from millstream.broker.net.exchange import REQUESTS_PER_TURN_MAX, Exchange
from millstream.broker.net.peer import ClientPeer
from millstream.broker.requests.context import RequestFacts
from millstream.kernels.connection import Connection
from millstream.kernels.slots import SlotTable
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import MIB
from millstream.observe.api_counters import ApiCounters
from millstream.testing.sim.clock import ManualClock
from millstream.wire.api_keys import ApiKey
from millstream.wire.headers import encode_request_header


class Peer(ClientPeer):
    """A connection that is fed by hand."""

    world: "World"

    def send_queue(self) -> bool:
        self.world.story.append(f"sent {b''.join(cast('Any', self._queue)).decode()}")
        self._queue.clear()
        return True

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def close_carrier(self) -> None:
        pass


class World:
    """Requests wait for the end of their iteration, where all are answered."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.soon: list[Callable[[], None]] = []
        self.table = SlotTable(violation=InvariantViolated)
        self.exchange = Exchange(
            self.table,
            cast(Any, self),
            ManualClock(),
            ApiCounters(),
            lambda _: None,
            call_soon=self.soon.append,
        )
        self.waiting: list[tuple[ClientPeer, int]] = []
        self.ends: list[Callable[[], None]] = [self.answer_all]

    def handle(self, peer: ClientPeer, facts: RequestFacts, body: memoryview) -> None:
        """In place of dispatch."""
        del body
        self.story.append(f"handled {peer.connection_id}")
        if not self.waiting:
            for work in self.ends:
                self.exchange.run_at_end(work)
        self.waiting.append((peer, facts.number))

    def answer_all(self) -> None:
        self.story.append("end")
        waiting, self.waiting = self.waiting, []
        for peer, number in waiting:
            peer.send_answer(number, [str(peer.connection_id).encode()])

    def connect(self, number: int) -> Peer:
        core = Connection(self.table, frame_bytes_max=MIB, in_flight_max=200)
        peer = Peer(self.exchange, core, listener="L", client_host="h", number=number)
        peer.world = self
        return peer

    def run_iteration(self, *peers: Peer, requests: int = 1) -> None:
        """Each has sent so many requests."""
        body = encode_request_header(ApiKey.HEARTBEAT, 0, 7, "c")
        frame = (len(body).to_bytes(4, "big") + body) * requests
        self.exchange.begin()
        for peer in peers:
            room = peer.core.get_buffer(len(frame))
            room[: len(frame)] = frame
            del room
            peer.core.received(len(frame))
            self.exchange.on_readable(peer)
        self.exchange.finish()


def test_work_is_done_once_after_all_requests_and_before_their_answers_leave() -> None:
    world = World()
    peers = [world.connect(number) for number in (1, 2, 3)]
    world.run_iteration(*peers)
    assert world.story[:4] == ["handled 1", "handled 2", "handled 3", "end"]
    assert sorted(world.story[4:]) == ["sent 1", "sent 2", "sent 3"]
    world.story.clear()
    world.run_iteration(peers[1])
    assert world.story == ["handled 2", "end", "sent 2"]
    assert world.soon == []


def test_work_that_fails_keeps_no_answer_back() -> None:
    world = World()

    def fail() -> None:
        raise KeyError("a fault")

    world.ends.insert(0, fail)
    world.run_iteration(world.connect(1))
    assert world.story == ["handled 1", "end", "sent 1"]


def test_broken_invariant_at_the_end_of_a_wake_up_is_not_kept_quiet() -> None:
    world = World()

    def fail() -> None:
        raise InvariantViolated

    world.ends.insert(0, fail)
    with pytest.raises(InvariantViolated):
        world.run_iteration(world.connect(1))


def test_work_outside_of_a_wake_up_is_done_soon() -> None:
    world = World()
    world.exchange.run_at_end(lambda: world.story.append("done"))
    assert world.story == []
    for work in world.soon:
        work()
    assert world.story == ["done"]


def test_work_that_is_given_while_work_is_done_is_not_forgotten() -> None:
    world = World()
    world.ends.append(lambda: world.exchange.run_at_end(lambda: world.story.append("more")))
    world.run_iteration(world.connect(1))
    while world.soon:
        world.soon.pop(0)()
    assert world.story == ["handled 1", "end", "sent 1", "more"]


def test_iteration_is_scheduled_once_whatever_needs_it() -> None:
    """Each one on top would schedule its own successor: callbacks would double under load."""
    world = World()
    world.ends.append(lambda: world.exchange.run_at_end(world.answer_all))
    peers = [world.connect(number) for number in range(1, 4)]
    requests = REQUESTS_PER_TURN_MAX * 8
    for _ in range(6):
        world.run_iteration(*peers, requests=requests)
        world.exchange.run_at_end(lambda: None)
        world.exchange.run_at_end(lambda: None)
        world.exchange.flush_ready()
        assert len(world.soon) == 1
    for _ in range(100):
        if not world.soon:
            break
        world.soon.pop()()
        assert len(world.soon) <= 1
    assert world.soon == []
    assert world.story.count("handled 1") == 6 * requests
