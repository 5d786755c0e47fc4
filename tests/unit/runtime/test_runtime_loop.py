"""A loop that serves a carrier where it waits must still be a loop: nothing else waits longer."""

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from millstream.kernels.epoll_shell import CONNECTIONS_READY, LOOP_READY
from millstream.model.invariant import InvariantViolated
from millstream.runtime import fatal
from millstream.runtime.loop import DirectLoop, DirectSelector

TIMEOUT_S = 20.0
"""The loop has no timer but this: what does not wake it comes so late."""


class PairCarrier:
    """A carrier of one connection; `handle` takes one byte of it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self._epoll = select.epoll()
        self._epoll.register(self.ours, select.EPOLLIN)
        self.handled = 0
        self.then: Callable[[], None] = lambda: None

    def watch_loop(self, descriptor: int) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)

    def wait(self, timeout_ms: int) -> int:
        found = 0
        for descriptor, _ in self._epoll.poll(timeout_ms / 1000 if timeout_ms >= 0 else -1):
            found |= CONNECTIONS_READY if descriptor == self.ours.fileno() else LOOP_READY
        return found

    def handle(self) -> None:
        self.ours.recv(1)
        self.handled += 1
        self.then()

    def close(self) -> None:
        self._epoll.close()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def loop() -> Iterator[DirectLoop]:
    found = DirectLoop()
    yield found
    found.close()


@pytest.fixture
def carrier(loop: DirectLoop) -> Iterator[PairCarrier]:
    found = PairCarrier()
    assert loop.serve(found, found.handle)
    yield found
    loop.stop_serving()
    found.close()


def finish(loop: DirectLoop, done: asyncio.Future[None]) -> None:
    start_s = loop.time()
    loop.run_until_complete(asyncio.wait_for(done, TIMEOUT_S))
    assert loop.time() - start_s < TIMEOUT_S / 2


def send_when_idle(loop: DirectLoop, carrier: PairCarrier, data: bytes) -> None:
    """When the loop has nothing to do but to wait."""
    loop.call_later(0.01, carrier.theirs.send, data)


def stop_after(loop: DirectLoop, carrier: PairCarrier, count: int) -> None:
    carrier.then = lambda: loop.stop() if carrier.handled == count else None


def test_what_comes_for_the_carrier_takes_no_turn_of_the_loop(
    loop: DirectLoop, carrier: PairCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    select_now = DirectSelector.select

    def count(selector: DirectSelector, timeout: float | None = None) -> object:
        nonlocal turns
        turns += 1
        return select_now(selector, timeout)

    monkeypatch.setattr(DirectSelector, "select", count)
    carrier.theirs.send(bytes(100))
    stop_after(loop, carrier, 100)
    loop.run_forever()
    assert (carrier.handled, turns) == (100, 1)


def test_a_callback_that_handling_scheduled_runs_next(
    loop: DirectLoop, carrier: PairCarrier
) -> None:
    """Also while the poller has more: nothing else would wake the loop."""
    done = loop.create_future()
    handled: list[int] = []

    def note() -> None:
        handled.append(carrier.handled)
        done.set_result(None)

    def then() -> None:
        if carrier.handled == 1:
            loop.call_soon(note)

    carrier.then = then
    send_when_idle(loop, carrier, bytes(50))
    finish(loop, done)
    assert handled[0] <= 2  # the loop polls once more before it runs what is ready


def test_a_timer_that_handling_set_ends_the_wait(loop: DirectLoop, carrier: PairCarrier) -> None:
    done = loop.create_future()

    def then() -> None:
        loop.call_later(0.01, done.set_result, None)

    carrier.then = then
    send_when_idle(loop, carrier, b"x")
    finish(loop, done)


class Busy:
    """A carrier that always has something."""

    def __init__(self, carrier: PairCarrier) -> None:
        self._carrier = carrier
        carrier.theirs.send(b"x")
        carrier.then = lambda: (carrier.theirs.send(b"x"), None)[1]


def test_timers_are_on_time_beside_a_carrier_that_is_never_idle(
    loop: DirectLoop, carrier: PairCarrier
) -> None:
    done = loop.create_future()
    Busy(carrier)
    loop.call_later(0.02, done.set_result, None)
    finish(loop, done)
    assert carrier.handled > 1


def test_other_descriptors_have_their_turn_beside_a_carrier_that_is_never_idle(
    loop: DirectLoop, carrier: PairCarrier
) -> None:
    done = loop.create_future()
    ours, theirs = socket.socketpair()

    def read() -> None:
        loop.remove_reader(ours)
        done.set_result(None)

    with ours, theirs:
        Busy(carrier)
        loop.add_reader(ours, read)
        loop.call_later(0.01, theirs.send, b"x")
        finish(loop, done)


def test_another_thread_can_give_it_work(loop: DirectLoop, carrier: PairCarrier) -> None:
    done = loop.create_future()
    thread = threading.Timer(0.01, loop.call_soon_threadsafe, [done.set_result, None])
    thread.start()
    finish(loop, done)
    thread.join()
    assert carrier.handled == 0


def test_signals_reach_their_handlers(loop: DirectLoop, carrier: PairCarrier) -> None:
    done = loop.create_future()
    loop.add_signal_handler(signal.SIGUSR1, done.set_result, None)
    carrier.then = lambda: os.kill(os.getpid(), signal.SIGUSR1)
    send_when_idle(loop, carrier, b"x")
    finish(loop, done)
    loop.remove_signal_handler(signal.SIGUSR1)


def test_an_error_is_reported_and_the_carrier_goes_on(
    loop: DirectLoop, carrier: PairCarrier
) -> None:
    seen: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))

    def then() -> None:
        if carrier.handled == 1:
            raise ValueError("planted")
        loop.stop()

    carrier.then = then
    carrier.theirs.send(b"xx")
    loop.run_forever()
    assert [str(error) for error in seen] == ["planted"]
    assert carrier.handled == 2


def test_a_broken_invariant_ends_the_process(loop: DirectLoop, carrier: PairCarrier) -> None:
    """I-42's kind of failure: what follows may be written to disk."""
    seen: list[BaseException] = []

    def violated(error: BaseException) -> None:
        seen.append(error)
        loop.stop()

    def then() -> None:
        raise InvariantViolated("planted")

    fatal.install(loop, on_violation=violated)
    carrier.then = then
    carrier.theirs.send(b"x")
    loop.run_forever()
    assert len(seen) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_loop(
    loop: DirectLoop, carrier: PairCarrier, kind: type[BaseException]
) -> None:
    def then() -> None:
        raise kind

    carrier.then = then
    carrier.theirs.send(b"x")
    with pytest.raises(kind):
        loop.run_forever()


def test_there_is_place_for_one_carrier(loop: DirectLoop, carrier: PairCarrier) -> None:
    second = PairCarrier()
    assert not loop.serve(second, second.handle)
    loop.stop_serving()
    assert loop.serve(second, second.handle)
    second.theirs.send(b"x")
    stop_after(loop, second, 1)
    loop.run_forever()
    assert (carrier.handled, second.handled) == (0, 1)
    loop.stop_serving()
    second.close()


def test_a_carrier_may_be_left_while_it_is_served(loop: DirectLoop, carrier: PairCarrier) -> None:
    done = loop.create_future()
    carrier.then = loop.stop_serving
    send_when_idle(loop, carrier, b"xx")
    loop.call_later(0.05, done.set_result, None)
    finish(loop, done)
    assert carrier.handled == 1
