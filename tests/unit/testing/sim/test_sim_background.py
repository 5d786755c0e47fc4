"""Simulated background work: delayed, bounded, and lost when its process dies."""

import asyncio

import pytest

from millstream.model.invariant import InvariantViolated
from millstream.runtime.background import BackgroundFullError, Outcome, run_in_background
from millstream.testing.sim.background import InlineBackground, SimBackground
from millstream.testing.sim.world import SimWorld


def test_work_takes_virtual_time_and_answers_later() -> None:
    world = SimWorld(1)
    background = SimBackground(world.loop, world.randomness, world.trace, work_delay_s=(2.0, 3.0))

    async def main() -> None:
        done_at_s = await run_in_background(background, world.loop.time, name="time")
        assert 2.0 <= done_at_s <= 3.0
        assert world.loop.time() > done_at_s
        assert await background.close(timeout_s=1) == []

    world.run(main)


def test_workers_and_queue_are_bounded() -> None:
    world = SimWorld(1)
    background = SimBackground(
        world.loop,
        world.randomness,
        world.trace,
        workers=2,
        queued_max=4,
        work_delay_s=(1.0, 1.0),
    )
    done_at_s: list[float] = []

    async def main() -> None:
        for number in range(4):
            background.submit(
                lambda: done_at_s.append(world.loop.time()), lambda _: None, name=str(number)
            )
        with pytest.raises(BackgroundFullError):
            background.submit(lambda: None, lambda _: None, name="one more")
        assert await background.close(timeout_s=1.5) == ["2", "3"]
        await asyncio.sleep(1)
        assert done_at_s == [1.0, 1.0, 2.0, 2.0]

    world.run(main)


def test_errors_are_outcomes_but_a_broken_invariant_ends_the_run() -> None:
    def fails() -> None:
        raise OSError(5, "planted")

    def broken() -> None:
        raise InvariantViolated("planted")

    world = SimWorld(1)
    node = world.node("a")

    async def main() -> None:
        with pytest.raises(OSError, match="planted"):
            await run_in_background(node.background, fails, name="fails")
        node.background.submit(broken, lambda _: None, name="broken")
        await asyncio.sleep(10)

    with pytest.raises(InvariantViolated) as caught:
        world.run(main)
    assert "seed 1" in caught.value.__notes__[0]


def test_a_killed_process_neither_works_nor_hears() -> None:
    heard: list[Outcome[None]] = []
    worked: list[str] = []
    world = SimWorld(1)
    node = world.node("a")

    async def main() -> None:
        for number in range(20):
            node.background.submit(lambda: worked.append("x"), heard.append, name=str(number))
        await asyncio.sleep(0.004)
        count = len(worked)
        node.kill()
        await asyncio.sleep(10)
        assert 0 < count == len(worked) < 20
        assert len(heard) <= count

    world.run(main)


def test_inline_background_answers_on_the_spot() -> None:
    outcomes: list[Outcome[int]] = []
    InlineBackground().submit(lambda: 5, outcomes.append, name="five")
    assert outcomes[0].result() == 5
