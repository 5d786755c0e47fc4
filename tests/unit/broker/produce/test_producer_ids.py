"""Producer ids: none is handed out twice, whatever happens to the blocks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from millstream.broker.produce.producer_ids import PREFETCH_BELOW, NoProducerIds, ProducerIds
from millstream.model.errors import DiskFull, OperatingError
from millstream.model.invariant import InvariantViolated

BLOCK = 1000


class Controller:
    """Gives blocks as the real one does: noted as spent before they are handed over."""

    def __init__(self, first: int = 0) -> None:
        self.spent_below = first
        self.requests = 0
        self.failures: list[OperatingError] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def allocate_producer_id_block(self) -> range:
        self.requests += 1
        start = self.spent_below
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        self.spent_below = start + BLOCK
        return range(start, start + BLOCK)


class Tasks:
    """What the broker's task group does, with the tasks at hand."""

    def __init__(self) -> None:
        self.all: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.all.append(asyncio.get_running_loop().create_task(work, name=name))

    async def drain(self) -> None:
        await asyncio.gather(*self.all)


def test_ids_are_unique_and_ascending_over_blocks() -> None:
    async def story() -> None:
        tasks = Tasks()
        ids = ProducerIds(Controller(), tasks.spawn)
        given = [await ids.next() for _ in range(2 * BLOCK + 5)]
        assert given == list(range(2 * BLOCK + 5))
        await tasks.drain()

    asyncio.run(story())


def test_next_block_is_there_before_the_first_is_used_up() -> None:
    async def story() -> None:
        tasks, controller = Tasks(), Controller()
        ids = ProducerIds(controller, tasks.spawn)
        await ids.next()
        while ids.left_count >= PREFETCH_BELOW:
            assert ids.try_next() is not None
        await tasks.drain()
        assert ids.left_count >= BLOCK
        assert controller.requests == 2

    asyncio.run(story())


def test_many_who_wait_share_one_question() -> None:
    async def story() -> None:
        tasks, controller = Tasks(), Controller()
        controller.gate.clear()
        ids = ProducerIds(controller, tasks.spawn)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(ids.next()) for _ in range(50)]
            await asyncio.sleep(0)
            controller.gate.set()
        assert sorted(task.result() for task in waiting) == list(range(50))
        assert controller.requests == 1
        await tasks.drain()

    asyncio.run(story())


def test_who_comes_later_does_not_overtake() -> None:
    async def story() -> None:
        tasks, controller = Tasks(), Controller()
        controller.gate.clear()
        ids = ProducerIds(controller, tasks.spawn)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ids.next())
            await asyncio.sleep(0)
            assert ids.try_next() is None
            controller.gate.set()
        assert first.result() == 0
        await tasks.drain()

    asyncio.run(story())


def test_a_refused_block_fails_those_who_wait_and_nobody_later() -> None:
    async def story() -> None:
        tasks, controller = Tasks(), Controller()
        controller.failures.append(DiskFull("/a"))
        ids = ProducerIds(controller, tasks.spawn)
        with pytest.raises(DiskFull):
            await ids.next()
        assert await ids.next() == 0
        await tasks.drain()

    asyncio.run(story())


def test_a_client_that_went_away_costs_no_id_of_others() -> None:
    async def story() -> None:
        tasks, controller = Tasks(), Controller()
        controller.gate.clear()
        ids = ProducerIds(controller, tasks.spawn)
        gone = asyncio.get_running_loop().create_task(ids.next())
        stays = asyncio.get_running_loop().create_task(ids.next())
        await asyncio.sleep(0)
        gone.cancel()
        controller.gate.set()
        assert await stays == 0
        await tasks.drain()

    asyncio.run(story())


def test_after_a_kill_the_rest_of_the_block_is_never_used() -> None:
    """The controller's note outlives the process; what was left of the block does not."""

    async def story() -> None:
        tasks, controller = Tasks(), Controller()
        before = [await ProducerIds(controller, tasks.spawn).next() for _ in range(1)]
        after = ProducerIds(controller, tasks.spawn)
        later = [await after.next() for _ in range(3)]
        assert not set(before) & set(later)
        assert min(later) >= BLOCK
        await tasks.drain()

    asyncio.run(story())


@pytest.mark.parametrize(
    "second",
    [range(1000), range(999, 1999), range(0), range(1000, 3000, 2), range(2**63 - 5, 2**63 + 5)],
)
def test_a_block_that_may_repeat_ids_is_refused(second: range) -> None:
    class Wrong(Controller):
        async def allocate_producer_id_block(self) -> range:
            self.requests += 1
            return range(1000) if self.requests == 1 else second

    async def story() -> None:
        tasks = Tasks()
        ids = ProducerIds(Wrong(), tasks.spawn)
        for number in range(BLOCK):
            assert await ids.next() == number
        with pytest.raises(NoProducerIds):
            await ids.next()
        await tasks.drain()

    asyncio.run(story())


def test_an_id_that_was_handed_out_stops_the_process() -> None:
    ids = ProducerIds(Controller(), lambda work, _: work.close())
    ids._blocks.append(range(5, 7))
    ids._handed_out_below = 6
    with pytest.raises(InvariantViolated, match="I-20"):
        ids.try_next()


def test_a_broker_that_stops_leaves_nobody_waiting() -> None:
    async def story() -> None:
        tasks, controller = Tasks(), Controller()
        controller.gate.clear()
        ids = ProducerIds(controller, tasks.spawn)
        waiting = asyncio.get_running_loop().create_task(ids.next())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks.all[0].cancel()
        with pytest.raises(NoProducerIds):
            await waiting

    asyncio.run(story())
