"""Loading a partition of the offsets topic: nobody is answered before all of it is known (I-30)."""

import asyncio
from collections.abc import Callable

import pytest

from kits.shards.shard_shell_kit import Bench, FakeLog, FakeSettings, commit_of, writing
from millstream.model.errors import StorageFailed
from millstream.shards.errors import CoordinatorLoading, NotCoordinator
from millstream.shards.led_shard import LedShard
from millstream.testing.sim import virtual_loop


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come about")


def is_loading(bench: Bench, index: int = 0) -> bool:
    try:
        bench.coordinator.get(index)
    except CoordinatorLoading:
        return True
    return False


def filled(count: int, *, index: int = 0, per_batch: int = 10) -> FakeLog:
    log = FakeLog(index)
    for start in range(0, count, per_batch):
        log.put(*(commit_of(f"g{one}", one) for one in range(start, min(count, start + per_batch))))
    return log


def load_whole(buffer_bytes: int) -> None:
    async def main() -> None:
        bench, log = Bench(FakeSettings(load_bytes_max=buffer_bytes)), filled(1000)
        log.watch_leadership(bench.coordinator)
        while is_loading(bench):
            assert "loaded" not in bench.shard.calls
            await asyncio.sleep(0)
        assert bench.shard.applied == [(one, one) for one in range(1000)]
        assert bench.shard.calls == [("committed", 1000), "loaded"]
        assert bench.coordinator.counts.records_loaded == 1000
        assert log.file.pins == 0

    virtual_loop.run(main)


@pytest.mark.parametrize("buffer_bytes", [1, 500, 2**20])
def test_everything_is_applied_in_order_before_anybody_is_served(buffer_bytes: int) -> None:
    load_whole(buffer_bytes)


def test_planted_shard_that_serves_while_it_loads_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bug of bugs here: offsets answered as if there were none."""
    monkeypatch.setattr(LedShard, "check_active", lambda _: None)
    with pytest.raises(AssertionError):
        load_whole(2**20)


def test_others_have_their_turn_while_it_is_loaded() -> None:
    async def main() -> None:
        bench, log = Bench(), filled(1000)
        log.watch_leadership(bench.coordinator)
        rounds = 0
        while is_loading(bench):
            rounds += 1
            await asyncio.sleep(0)
        assert rounds >= 2

    virtual_loop.run(main)


def test_what_does_not_count_yet_is_waited_for() -> None:
    """The last leader's tail may be lost again: offsets from it must not be answered."""

    async def main() -> None:
        bench, log = Bench(), filled(20)
        log.is_held = True
        log.put(commit_of("late", 99))
        log.watch_leadership(bench.coordinator)
        await until(lambda: len(bench.shard.applied) == 21)
        for _ in range(20):
            await asyncio.sleep(0)
        assert is_loading(bench)
        log.advance(20)
        assert is_loading(bench)
        assert bench.shard.calls == [("committed", 20)]  # and may be answered with once it serves
        log.advance(21)
        assert not is_loading(bench)
        assert bench.shard.calls == [("committed", 20), ("committed", 21), "loaded"]

    virtual_loop.run(main)


def test_leadership_lost_while_loading_drops_the_load() -> None:
    async def main() -> None:
        bench, log = Bench(), filled(5000)
        log.watch_leadership(bench.coordinator)
        await until(lambda: bool(bench.shard.applied))
        log.lose()
        with pytest.raises(NotCoordinator):
            bench.coordinator.get(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(bench.shard.applied) < 5000
        assert "loaded" not in bench.shard.calls
        assert log.file.pins == 0

    virtual_loop.run(main)


def test_load_that_ends_after_the_leadership_came_back_is_not_taken_for_the_new_one() -> None:
    async def main() -> None:
        bench, old, new = Bench(), filled(3000), filled(3001)
        old.watch_leadership(bench.coordinator)
        await until(lambda: len(bench.shards[0].applied) >= 500)
        old.lose()
        new.watch_leadership(bench.coordinator)
        await until(lambda: not is_loading(bench))
        first, second = bench.shards
        assert "loaded" not in first.calls
        assert len(second.applied) == 3001
        assert bench.coordinator.get(0).log is new

    virtual_loop.run(main)


def test_few_are_loaded_at_once_and_all_in_the_end() -> None:
    async def main() -> None:
        bench = Bench()
        logs = [filled(300, index=index) for index in range(12)]
        for log in logs:
            log.watch_leadership(bench.coordinator)
        assert bench.coordinator.loading_count == 12
        most = 0
        while bench.coordinator.loading_count:
            begun = [one for one in bench.shards if one.applied and "loaded" not in one.calls]
            most = max(most, len(begun))
            await asyncio.sleep(0)
        assert 1 < most <= 4
        assert all(len(one.applied) == 300 for one in bench.shards)

    virtual_loop.run(main)


def test_load_that_fails_is_tried_again_from_the_beginning() -> None:
    async def main() -> None:
        bench, log = Bench(), filled(50)
        log.read_fails = StorageFailed("/d", "input/output error")
        log.watch_leadership(bench.coordinator)
        await until(lambda: bench.coordinator.counts.load_failures == 1)
        assert is_loading(bench)
        log.read_fails = None
        bench.pass_ms(1000)
        await until(lambda: not is_loading(bench))
        assert len(bench.shards) == 2
        assert len(bench.shards[1].applied) == 50
        assert log.file.pins == 0

    virtual_loop.run(main)


def test_failed_load_of_a_lost_partition_is_not_tried_again() -> None:
    async def main() -> None:
        bench, log = Bench(), filled(50)
        log.read_fails = StorageFailed("/d", "input/output error")
        log.watch_leadership(bench.coordinator)
        await until(lambda: bench.coordinator.counts.load_failures == 1)
        log.lose()
        bench.pass_ms(5000)
        assert len(bench.shards) == 1

    virtual_loop.run(main)


def test_commit_of_the_time_after_the_load_is_not_read_twice() -> None:
    async def main() -> None:
        bench, log = Bench(), filled(10)
        log.watch_leadership(bench.coordinator)
        await until(lambda: not is_loading(bench))
        bench.submit(writing(commit_of("g", 77)))
        bench.timers.run_due()
        assert len(bench.shard.applied) == 10
        assert ("appended", 10, 1) in bench.shard.calls

    virtual_loop.run(main)


def test_topics_that_are_deleted_while_it_loads_are_told_when_all_is_known() -> None:
    """Their offsets would be those of the next topics with the same names, and never expire."""

    async def main() -> None:
        bench, log = Bench(FakeSettings(load_bytes_max=500)), filled(1000)
        log.watch_leadership(bench.coordinator)
        assert is_loading(bench)
        for _ in bench.groups.topics_changed_steps({"a", "b", "c"}, ["b", "a"]):
            pass
        log.read_fails = StorageFailed("/d", "input/output error")
        await until(lambda: bench.coordinator.counts.load_failures == 1)
        log.read_fails = None
        bench.pass_ms(1_000)
        for _ in bench.groups.topics_changed_steps({"d"}, ["d"]):
            pass
        await until(lambda: not is_loading(bench))
        deleted = [("deleted", ["a", "b"]), ("deleted", ["d"])]
        assert bench.shard.calls == [("committed", 1000), "loaded", *deleted]

    virtual_loop.run(main)
