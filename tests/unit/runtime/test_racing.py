"""The first work to end ends the others, and nothing of them is left or lost."""

import asyncio

import pytest

from millstream.runtime.task_race import Wake, run_until_first, until
from millstream.testing.sim.virtual_loop import run


class Violation(BaseException):
    """As InvariantViolated, which ends a simulated run wherever it is raised."""


async def _after(seconds: float, ended: list[str], name: str) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:
        ended.append(name)


def test_the_others_are_cancelled_and_waited_for() -> None:
    async def story() -> None:
        ended: list[str] = []
        assert await run_until_first(_after(2, ended, "slow"), _after(1, ended, "quick")) == 1
        assert ended == ["quick", "slow"]

    run(story)


def test_an_error_is_raised_and_a_violation_before_all() -> None:
    async def fail(error: BaseException) -> None:
        raise error

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise Violation("late")

    async def story() -> None:
        with pytest.raises(ValueError, match="first"):
            await run_until_first(fail(ValueError("first")), asyncio.sleep(10))
        with pytest.raises(Violation, match="late"):
            await run_until_first(fail(ValueError("first")), fail_when_cancelled())

    run(story)


def test_who_is_cancelled_leaves_nothing_running() -> None:
    async def story() -> None:
        ended: list[str] = []
        task = asyncio.ensure_future(
            run_until_first(_after(5, ended, "one"), _after(5, ended, "two"))
        )
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["one", "two"]

    run(story)


def test_until_tells_whether_the_work_came_to_its_end() -> None:
    async def story() -> None:
        stop, ended = asyncio.Event(), list[str]()
        assert await until(stop, _after(1, ended, "whole"))
        asyncio.get_running_loop().call_later(1, stop.set)
        assert not await until(stop, _after(5, ended, "given up"))
        assert ended == ["whole", "given up"]

    run(story)


def test_a_watch_wakes() -> None:
    async def story() -> None:
        wake = Wake()
        wake(object())
        await wake.wait()

    run(story)
