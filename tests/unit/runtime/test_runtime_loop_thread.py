"""An event loop in a thread: results, errors, time-outs, interrupts, stops and forks."""

import asyncio
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kits.process.forked import holds_in_child
from kits.process.waiting_for import until
from millstream.model.invariant import InvariantViolated
from millstream.runtime.loop_thread import ForkSafeLock, LoopEnded, LoopThread

NO_FORK_WARNING = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.stop()
    assert not made.is_alive


async def number(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def failing() -> None:
    raise KeyError("here")


def test_results_come_back_from_any_thread(thread: LoopThread) -> None:
    found: list[int] = []
    callers = [
        threading.Thread(target=lambda at=at: found.append(thread.run(number(at))))
        for at in range(20)
    ]
    for one in callers:
        one.start()
    for one in callers:
        one.join(10)
    assert sorted(found) == list(range(20))


def test_an_error_keeps_its_type_and_its_trace(thread: LoopThread) -> None:
    with pytest.raises(KeyError) as caught:
        thread.run(failing())
    frames = [one.name for one in traceback.extract_tb(caught.value.__traceback__)]
    assert "failing" in frames
    with pytest.raises(InvariantViolated):
        thread.run(violating())


async def violating() -> None:
    raise InvariantViolated("I-99 test")


def test_what_takes_too_long_is_cancelled(thread: LoopThread) -> None:
    ended = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        thread.run(slow(), 0.05)
    assert ended.wait(10)


def test_a_stop_lets_nobody_wait() -> None:
    thread = LoopThread("test")
    outcomes: list[str] = []

    def wait() -> None:
        try:
            thread.run(asyncio.sleep(3600), 60)
        except LoopEnded:
            outcomes.append("ended")

    callers = [threading.Thread(target=wait) for _ in range(5)]
    for one in callers:
        one.start()
    until(lambda: thread.run(count_tasks()) > 5, "all wait")
    thread.stop()
    for one in callers:
        one.join(10)
    assert outcomes == ["ended"] * 5
    assert not thread.is_alive
    with pytest.raises(LoopEnded):
        thread.run(number(1))


def test_who_comes_while_the_loop_ends_does_not_wait_either() -> None:
    """Work that arrives when the tasks are already being cancelled never becomes one of them."""
    thread = LoopThread("test")
    ending, go_on = threading.Event(), threading.Event()
    outcomes: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ending.set()
            go_on.wait(10)

    def begin(work: Callable[[], Coroutine[Any, Any, None]]) -> threading.Thread:
        def wait() -> None:
            try:
                thread.run(work(), 20)
            except LoopEnded:
                outcomes.append("ended")

        caller = threading.Thread(target=wait)
        caller.start()
        return caller

    first = begin(slow_to_end)
    until(lambda: thread.run(count_tasks()) > 1, "it waits")
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    assert ending.wait(10)
    late = begin(lambda: asyncio.sleep(3600))
    until(lambda: len(thread._waiting) == 2, "the late one has come")
    go_on.set()
    for one in (first, late, stopping):
        one.join(10)
        assert not one.is_alive()
    assert outcomes == ["ended"]  # the first one came to its own end


async def count_tasks() -> int:
    return len(asyncio.all_tasks())


def test_a_loop_does_not_wait_for_itself(thread: LoopThread) -> None:
    async def inside() -> None:
        work = number(1)
        try:
            thread.run(work)
        finally:
            work.close()

    with pytest.raises(InvariantViolated, match="wait for itself"):
        thread.run(inside())


@NO_FORK_WARNING
def test_a_child_knows_that_the_loop_is_not_its_own(thread: LoopThread) -> None:
    assert holds_in_child(lambda: not thread.is_ours and not thread.is_alive)
    assert thread.run(number(3)) == 3


@NO_FORK_WARNING
def test_a_child_finds_a_lock_free_that_was_held() -> None:
    lock = ForkSafeLock()

    def take() -> bool:
        with lock:
            return True

    with lock:
        assert holds_in_child(take)


@pytest.mark.parametrize("ending", ["", "sys.exit(3)"])
def test_the_interpreter_ends_although_a_name_is_being_resolved(ending: str) -> None:
    script = f"""
import asyncio, socket, sys, threading
from millstream.runtime.loop_thread import LoopThread
asked = threading.Event()
def stuck(*arguments, **options):
    asked.set()
    threading.Event().wait()
socket.getaddrinfo = stuck
thread = LoopThread("test")
async def connect():
    await asyncio.get_running_loop().create_connection(asyncio.Protocol, "name.example", 1)
try:
    thread.run(connect(), 0.1)
except TimeoutError:
    print("gave up", asked.is_set())
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.returncode) == ("gave up True\n", 3 if ending else 0)


def test_names_are_resolved(thread: LoopThread) -> None:
    async def addresses(name: str) -> list[object]:
        return list(await asyncio.get_running_loop().getaddrinfo(name, 9092))

    assert thread.run(addresses("localhost"), 20)
    with pytest.raises(OSError, match=r"."):
        thread.run(addresses("no.such.host.invalid"), 20)
