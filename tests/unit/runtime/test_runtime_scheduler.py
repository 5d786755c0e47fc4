"""Cooperative scheduling: everything else waits for one step at most."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from millstream.model.invariant import InvariantViolated
from millstream.runtime.background import (
    WORKERS_DEFAULT,
    BackgroundFullError,
    Outcome,
    ThreadBackground,
)
from millstream.runtime.scheduler import (
    Computation,
    CooperativeScheduler,
    StepGenerator,
    UnfinishedSteps,
    YieldCounter,
    chunked,
    run_blocking,
    run_first_step,
    run_on_loop,
)
from millstream.testing.sim import virtual_loop
from millstream.testing.sim.background import InlineBackground


def counting(count: int, seen: list[str], name: str = "") -> StepGenerator[int]:
    """One step for each number."""
    for number in range(count):
        seen.append(f"{name}{number}")
        yield None
    return count


def yielding(*works: Any) -> StepGenerator[list[Any]]:
    """What each work gave, or raised."""
    results: list[Any] = []
    for work in works:
        try:
            results.append((yield work))
        except ValueError as error:
            results.append(str(error))
    return results


def broken() -> None:
    raise ValueError("broken")


def test_run_whole_does_everything_on_the_spot() -> None:
    seen: list[str] = []
    assert run_blocking(counting(3, seen)) == 3
    assert seen == ["0", "1", "2"]
    assert run_blocking(yielding(lambda: 5, broken, None)) == [5, "broken", None]


def test_an_error_of_the_steps_is_the_callers() -> None:
    def failing() -> StepGenerator[None]:
        yield broken

    with pytest.raises(ValueError, match="broken"):
        run_blocking(failing())
    with pytest.raises(ValueError, match="broken"):
        virtual_loop.run(
            lambda: CooperativeScheduler(InlineBackground()).run(failing(), name="failing")
        )


def test_what_ends_in_its_first_turn_needs_no_other() -> None:
    seen: list[str] = []
    assert run_first_step(counting(0, seen)) == 0
    unfinished = run_first_step(counting(2, seen))
    assert isinstance(unfinished, UnfinishedSteps)
    assert seen == ["0"]
    assert (
        virtual_loop.run(
            lambda: CooperativeScheduler(InlineBackground()).resume(unfinished, name="rest")
        )
        == 2
    )
    assert seen == ["0", "1"]


def test_one_step_of_all_works_in_each_round_of_the_loop() -> None:
    """However many large requests there are, a small one waits for one step."""
    seen: list[str] = []
    rounds: list[int] = []

    async def work() -> None:
        scheduler = CooperativeScheduler(InlineBackground())
        works = [
            asyncio.create_task(scheduler.run(counting(5, seen, name), name=name), name=name)
            for name in "abc"
        ]
        while not all(one.done() for one in works):
            before = len(seen)
            await asyncio.sleep(0)
            rounds.append(len(seen) - before)

    virtual_loop.run(work)
    assert max(rounds) == 1
    assert seen[:6] == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_blocking_work_runs_elsewhere_and_its_error_comes_back() -> None:
    async def work() -> list[Any]:
        scheduler = CooperativeScheduler(InlineBackground())
        assert not scheduler.is_busy
        return await scheduler.run(yielding(lambda: 5, broken), name="work")

    assert virtual_loop.run(work) == [5, "broken"]


class CrowdedBackground(InlineBackground):
    """Has no room at first."""

    refusals = 3

    def submit(self, work: Any, on_done: Any, *, name: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise BackgroundFullError("full")
        super().submit(work, on_done, name=name)


def test_without_room_in_the_background_work_waits() -> None:
    background = CrowdedBackground()
    scheduler = CooperativeScheduler(background)
    assert virtual_loop.run(lambda: scheduler.run(yielding(lambda: 5), name="work")) == [5]
    assert not background.refusals


class SilentBackground(InlineBackground):
    """Never reports the outcome of the work."""

    last: Callable[[], None]

    def submit(self, work: Any, on_done: Any, *, name: str) -> None:
        del name
        self.last = lambda: on_done(Outcome(work()))


def test_steps_that_are_given_up_are_closed() -> None:
    """Whatever they hold, a pinned file for one, is given back."""
    closed: list[str] = []

    def holding() -> StepGenerator[None]:
        try:
            yield lambda: None
        finally:
            closed.append("closed")

    async def work() -> None:
        background = SilentBackground()
        scheduler = CooperativeScheduler(background)
        task = asyncio.create_task(scheduler.run(holding(), name="work"), name="work")
        await asyncio.sleep(1)
        assert scheduler.is_busy
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        background.last()  # late, when nothing waits for it any more
        assert not scheduler.is_busy

    virtual_loop.run(work)
    assert closed == ["closed"]


def test_coroutines_take_steps_without_another_thread() -> None:
    seen: list[str] = []
    assert virtual_loop.run(lambda: run_on_loop(counting(3, seen))) == 3
    with pytest.raises(InvariantViolated):
        virtual_loop.run(lambda: run_on_loop(yielding(lambda: 5)))


def test_pace_and_parts() -> None:
    pace = YieldCounter(3)
    assert [pace.is_due() for _ in range(7)] == [False, False, True] * 2 + [False]
    assert pace.is_due(100)
    assert [list(part) for part in chunked(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert list(chunked([], 2)) == []


def test_large_requests_leave_threads_for_the_others() -> None:
    """However many wait: work with a scheduler of its own gets a thread at once."""
    release = threading.Event()

    async def scenario() -> None:
        background = ThreadBackground(asyncio.get_running_loop())
        requests = CooperativeScheduler(background, worker_jobs_max=WORKERS_DEFAULT - 1)
        heavy = [
            asyncio.create_task(requests.in_worker_thread(release.wait, name="heavy"))
            for _ in range(3 * WORKERS_DEFAULT)
        ]
        await asyncio.sleep(0)  # all of them submit before the other
        try:
            async with asyncio.timeout(5):
                assert (
                    await CooperativeScheduler(background).in_worker_thread(
                        lambda: "done", name="light"
                    )
                    == "done"
                )
        finally:
            release.set()
        assert all(await asyncio.gather(*heavy))
        assert await background.close(timeout_s=30) == []

    asyncio.run(scenario())


def test_a_stop_ends_computations_and_lets_other_jobs_finish() -> None:
    """A computation is needed by no one any more; a write to the disk must be finished."""
    may_end = threading.Event()
    computed: list[str] = []

    async def main() -> None:
        background, computing = (ThreadBackground(asyncio.get_running_loop()) for _ in range(2))
        scheduler = CooperativeScheduler(background, computing=computing)
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def compute(name: str) -> None:
            computed.append(name)
            loop.call_soon_threadsafe(begun.set)
            may_end.wait(60)

        heavy = loop.create_task(
            scheduler.in_worker_thread(Computation(compute, "first"), name="first")
        )
        job = loop.create_task(scheduler.in_worker_thread(lambda: may_end.wait(60), name="job"))
        await begun.wait()
        scheduler.stop()
        with pytest.raises(asyncio.CancelledError):
            await heavy
        with pytest.raises(asyncio.CancelledError):
            await scheduler.in_worker_thread(Computation(compute, "second"), name="second")
        assert await computing.close(timeout_s=0) == ["first"]
        assert not job.done()
        may_end.set()
        assert await job is True
        assert await background.close(timeout_s=20) == []

    asyncio.run(main())
    assert computed == ["first"]
