"""The virtual loop: time jumps, order stays, nothing escapes and nothing hangs."""

import asyncio
import threading

import pytest

from millstream.model.invariant import InvariantViolated
from millstream.testing.sim.clock import ManualClock, SimClock
from millstream.testing.sim.trace import Trace
from millstream.testing.sim.virtual_loop import DeadlockError, VirtualLoop, run


def test_time_jumps_to_each_timer_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleeper("b", 7200.5), sleeper("a", 0.25), sleeper("c", 80_000))

    run(main)
    assert seen == [("a", 0.25), ("b", 7200.5), ("c", 80_000)]


def test_ready_callbacks_keep_the_order_asyncio_promises() -> None:
    seen: list[int] = []

    async def main() -> None:
        for number in range(100):
            asyncio.get_running_loop().call_soon(seen.append, number)
        await asyncio.sleep(0)

    run(main)
    assert seen == list(range(100))


def test_waiting_for_what_never_comes_is_an_error_that_names_the_tasks() -> None:
    async def main() -> None:
        task = asyncio.create_task(asyncio.Event().wait(), name="waits for nothing")
        await task

    with pytest.raises(DeadlockError, match=r"main, waits for nothing"):
        run(main)


def test_a_run_that_never_ends_is_stopped() -> None:
    async def main() -> None:
        for _ in range(1_000_000):
            await asyncio.sleep(1)

    with pytest.raises(DeadlockError, match="still running after 60"):
        run(main, time_limit_s=60)


def test_threads_and_sockets_are_refused_with_a_hint() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="Background seam"):
            await loop.run_in_executor(None, print)
        with pytest.raises(RuntimeError, match="Background seam"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="Network seam"):
            await loop.create_connection(asyncio.Protocol, "localhost", 1)
        with pytest.raises(RuntimeError, match="Network seam"):
            await loop.create_server(asyncio.Protocol, "localhost", 1)

    run(main)


def test_another_thread_cannot_call_in() -> None:
    refused: list[str] = []

    def call_in(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(print)
        except RuntimeError as error:
            refused.append(str(error))

    async def main() -> None:
        thread = threading.Thread(target=call_in, args=[asyncio.get_running_loop()])
        thread.start()
        thread.join()
        asyncio.get_running_loop().call_soon_threadsafe(refused.append, "own thread")
        await asyncio.sleep(0)

    run(main)
    assert refused == ["another thread called into the virtual loop", "own thread"]


def test_an_exception_in_a_callback_ends_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 // 0)
        await asyncio.sleep(1000)

    with pytest.raises(ZeroDivisionError):
        run(main)


def test_a_broken_invariant_in_a_task_nobody_awaits_ends_the_run() -> None:
    reached: list[str] = []

    async def broken() -> None:
        raise InvariantViolated("planted")

    async def main() -> None:
        task = asyncio.create_task(broken())
        await asyncio.sleep(1)
        reached.append(task.get_name())

    with pytest.raises(InvariantViolated, match="planted"):
        run(main)
    assert reached == []


def test_tasks_left_over_are_cancelled_oldest_first() -> None:
    cancelled: list[int] = []

    async def waits(number: int) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cancelled.append(number)

    async def main() -> None:
        tasks = [asyncio.create_task(waits(number)) for number in range(20)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)

    run(main)
    assert cancelled == list(range(20))


def test_time_outs_and_task_groups_work_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(5))
            group.create_task(asyncio.sleep(7))
        return asyncio.get_running_loop().time()

    assert run(main) == 37


def test_clocks() -> None:
    loop = VirtualLoop(Trace())
    clock = SimClock(loop, wall_start_ms=1000)

    async def main() -> None:
        await asyncio.sleep(2.5)
        clock.jump_wall(-10_000)

    loop.run_to_end(main())
    loop.close()
    assert (clock.monotonic_s(), clock.wall_ms()) == (2.5, 1000 + 2500 - 10_000)
    by_hand = ManualClock(wall_ms=5)
    by_hand.advance(1500)
    by_hand.jump_wall(-5)
    assert (by_hand.monotonic_s(), by_hand.wall_ms()) == (1.5, 1500)


def test_the_trace_folds_old_events_without_changing_its_meaning() -> None:
    traces = [Trace(), Trace()]
    for trace in traces:
        for number in range(10_000):
            trace.note("event", number)
    assert traces[0].digest() == traces[1].digest()
    assert len(traces[0]) == 10_000 > len(traces[0].events)
    traces[1].note("one more")
    assert traces[0].digest() != traces[1].digest()
