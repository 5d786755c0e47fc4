"""Permits for few at a time: whose turn it is, who gives up, and none is lost (I-42)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.runtime.fair_permits import FairPermits, TooManyWait
from millstream.runtime.randomness import SeededRandomness

COUNT, WAITING = 2, 6


class Work:
    """Takes permits; each is held until the test ends it."""

    def __init__(self) -> None:
        self.permits: FairPermits[str] = FairPermits(COUNT, waiting_max=WAITING)
        self.held = 0
        self.begun: list[str] = []
        self.holders: list[asyncio.Event] = []

    async def do(self, name: str) -> None:
        async with self.permits.permit(name[0]):
            self.begun.append(name)
            self.holders.append(end := asyncio.Event())
            self.held += 1
            assert self.held <= COUNT
            try:
                await end.wait()
            finally:
                self.held -= 1

    async def start(self, *names: str) -> list["asyncio.Task[None]"]:
        tasks = [asyncio.ensure_future(self.do(one)) for one in names]
        await self.settle()
        return tasks

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end_one(self) -> None:
        self.holders.pop(0).set()
        await self.settle()

    async def end_all(self) -> None:
        while self.holders:
            await self.end_one()


def play(story: Callable[[Work], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Work())

    asyncio.run(main())


def test_keys_take_turns_and_each_has_its_own_order() -> None:
    async def story(work: Work) -> None:
        await work.start("a1", "a2", "a3", "a4", "a5", "b1", "c1")
        await work.end_all()
        assert work.begun[:4] in (["a1", "a2", "a3", "b1"], ["a1", "a2", "b1", "c1"])
        assert [one for one in work.begun if one[0] == "a"] == ["a1", "a2", "a3", "a4", "a5"]
        assert sorted(work.begun) == ["a1", "a2", "a3", "a4", "a5", "b1", "c1"]

    play(story)


def test_beyond_the_limit_the_oldest_of_the_key_with_the_most_gives_up() -> None:
    async def story(work: Work) -> None:
        tasks = await work.start("x1", "x2", "b1", "a1", "a2", "a3", "a4", "c1")
        (late,) = await work.start("d1")
        assert [one.done() for one in tasks] == [False] * 3 + [True] + [False] * 4
        with pytest.raises(TooManyWait):
            tasks[3].result()
        await work.end_all()
        assert late.done()
        assert sorted(work.begun) == ["a2", "a3", "a4", "b1", "c1", "d1", "x1", "x2"]

    play(story)


def test_who_is_cancelled_takes_no_permit_with_him() -> None:
    """Also in the moment in which it is given."""

    async def story(work: Work) -> None:
        tasks = await work.start("a1", "a2", "a3", "b1", "b2", "c1")
        tasks[4].cancel()
        work.holders[0].set()
        await asyncio.sleep(0)  # a1 has its end; what waits may have its permit, or not yet
        for one in tasks[2:4]:
            one.cancel()
        await work.settle()
        await work.end_all()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert work.permits._free == COUNT
        assert work.permits._waiting == {}
        assert work.permits._waiting_count == 0

    play(story)


@pytest.mark.parametrize("seed", range(30))
def test_no_permit_is_lost_or_given_twice(seed: int) -> None:
    """At random, to be repeated with the number in the name of the test."""
    chance = SeededRandomness(seed)

    async def story(work: Work) -> None:
        tasks: list[asyncio.Task[None]] = []
        for number in range(200):
            match chance.integer(0, 4):
                case 0 | 1:
                    name = f"{'abc'[chance.integer(0, 3)]}{number}"
                    tasks.append(asyncio.ensure_future(work.do(name)))
                case 2 if work.holders:
                    work.holders.pop(0).set()
                case _ if tasks:
                    tasks[chance.integer(0, len(tasks))].cancel()
            if chance.chance(0.5):
                await asyncio.sleep(0)
        await work.settle()
        while work.holders:
            await work.end_all()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in found} <= {type(None), TooManyWait, asyncio.CancelledError}
        assert work.permits._free == COUNT
        assert work.permits._waiting_count == len(work.permits._waiting) == 0

    play(story)
