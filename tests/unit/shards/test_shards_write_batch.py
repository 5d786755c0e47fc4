"""Commits that arrive together: gathered until a wake-up ends, written as one batch."""

from typing import Any

from kits.shards.shard_shell_kit import (
    Bench,
    FakeLog,
    FakeSettings,
    RecordingSink,
    commit_of,
    led,
    run_pending,
    writing,
)
from millstream.groups.records.entries import decode_batches
from millstream.model.errors import BatchTooLarge, DiskFull


def test_commits_of_one_turn_are_one_batch() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        askers = [
            bench.submit(writing(commit_of(f"g{number}", number)), is_gathered=True)
            for number in range(5)
        ]
        assert log.batches == []
        bench.timers.run_due()
        assert [(first, end) for first, end, _ in log.batches] == [(0, 5)]
        assert [one.answers for one in askers] == [["done"]] * 5
        assert [one for one in bench.shard.calls if one[0] == "appended"] == [
            ("appended", number, 1) for number in range(5)
        ]

    led(story)


def test_commits_of_all_shards_are_written_at_the_end_of_one_turn() -> None:
    """Nobody is answered before everything of the turn is in the logs."""

    async def story(bench: Bench, log: FakeLog) -> None:
        other = FakeLog(1)
        other.watch_leadership(bench.coordinator)
        await run_pending()
        ends: list[tuple[int, int]] = []
        askers = []
        for number in range(4):
            entry = commit_of(f"g{number}", number)
            sink = bench.submit(writing(entry), index=number % 2, is_gathered=True)
            sink.then = lambda: ends.append((log.log_end, other.log_end))
            askers.append(sink)
        writes = [one for one in bench.timers.timers if one.due_s <= bench.clock.monotonic_s()]
        assert len(writes) == 1
        bench.timers.run_due()
        assert [len(one.batches) for one in (log, other)] == [1, 1]
        assert [one.answers for one in askers] == [["done"]] * 4
        assert ends == [(2, 2)] * 4

    led(story)


def test_fault_in_the_write_of_one_shard_does_not_stop_the_others() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        other = FakeLog(1)
        other.watch_leadership(bench.coordinator)
        await run_pending()
        append = log.append_now

        def fail(*_: Any, **__: Any) -> Any:
            raise KeyError("a fault")

        log.append_now = fail  # type: ignore[method-assign]
        first = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        second = bench.submit(writing(commit_of("h", 1)), index=1, is_gathered=True)
        bench.timers.run_due()
        assert first.outcomes == ["CoordinatorNotAvailable"]
        assert second.answers == ["done"]
        log.append_now = append  # type: ignore[method-assign]
        third = bench.submit(writing(commit_of("g", 2)), is_gathered=True)
        bench.timers.run_due()
        assert third.answers == ["done"]

    led(story)


def test_deadline_that_came_with_a_gathered_commit_is_kept() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 10
        bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        bench.timers.run_due()
        bench.shard.calls.clear()
        bench.pass_ms(10)
        assert bench.shard.calls == [("tick", 10)]

    led(story)


def test_deadline_does_not_wait_for_the_linger() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 10
        bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        bench.pass_ms(10)
        assert ("tick", 10) in bench.shard.calls

    led(story, FakeSettings(append_linger_ms=1_000))


def test_commit_behind_one_that_waits_for_followers_waits_too() -> None:
    """I-29. Answers come in the order of the log, whatever the high watermark is by then."""

    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        first = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        bench.timers.run_due()
        second = bench.submit(writing(commit_of("h", 2)), is_gathered=True)
        bench.timers.run_due()
        assert (first.answers, second.answers) == ([], [])
        log.advance(1)
        assert (first.answers, second.answers) == (["done"], [])
        assert ("committed", 2) not in bench.shard.calls
        log.advance(2)
        assert (first.answers, second.answers) == (["done"], ["done"])
        assert bench.shard.calls == [
            ("appended", 0, 1),
            ("appended", 1, 1),
            ("committed", 1),
            ("written", 1),
            ("committed", 2),
            ("written", 1),
        ]

    led(story)


def test_append_that_moves_the_high_watermark_past_older_writes_tells_those_first() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        order: list[str] = []
        log.is_held = True
        first = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        first.then = lambda: order.append("first")
        bench.timers.run_due()
        log.is_held = False
        second = bench.submit(writing(commit_of("h", 2)), is_gathered=True)
        second.then = lambda: order.append("second")
        bench.timers.run_due()
        assert order == ["first", "second"]

    led(story)


def test_what_counts_when_the_log_has_it_is_told_in_the_same_order() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        askers = [bench.submit(writing(commit_of("g", one)), is_gathered=True) for one in range(2)]
        bench.timers.run_due()
        assert [one.answers for one in askers] == [["done"]] * 2
        assert bench.shard.calls == [
            ("appended", 0, 1),
            ("appended", 1, 1),
            ("committed", 2),
            ("written", 1),
            ("written", 1),
        ]

    led(story)


def test_gathered_commits_are_written_before_the_machine_decides_anything_else() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        commit = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        assert commit.answers == []
        seen: list[int] = []

        def decide(shard: Any, *_: Any, **__: Any) -> None:
            seen.append(log.log_end)

        bench.coordinator.submit(0, decide, RecordingSink().caller, None, is_gathered=False)
        assert seen == [1]
        assert commit.answers == ["done"]

    led(story)


def test_reads_leave_commits_gathered() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        bench.submit("read", is_gathered=True)
        assert log.batches == []
        bench.timers.run_due()
        assert len(log.batches) == 1

    led(story)


def test_without_linger_each_commit_is_written_at_once() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        assert bench.submit(writing(commit_of("g", 1)), is_gathered=True).answers == ["done"]

    led(story, FakeSettings(append_linger_ms=0))


def test_linger_is_waited_for() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        sink = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        bench.pass_ms(6)
        assert sink.answers == []
        bench.pass_ms(1)
        assert sink.answers == ["done"]

    led(story, FakeSettings(append_linger_ms=7))


def test_what_is_too_large_together_is_written_one_by_one() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.size_max = 150
        log.too_large = lambda size: BatchTooLarge(size_bytes=size, limit_bytes=150)
        small = [bench.submit(writing(commit_of("g", one)), is_gathered=True) for one in range(3)]
        large = bench.submit(writing(commit_of("g" * 200, 9)), is_gathered=True)
        bench.timers.run_due()
        assert [one.outcomes for one in small] == [["done"]] * 3
        assert large.outcomes == ["BatchTooLarge"]
        assert len(log.batches) == 3

    led(story)


def test_what_cannot_be_written_is_no_fault_of_the_others() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        small = [bench.submit(writing(commit_of("g", one)), is_gathered=True) for one in range(2)]
        bad = bench.submit(writing(commit_of("g" * 40_000, 9)), is_gathered=True)
        bench.timers.run_due()
        assert [one.outcomes for one in small] == [["done"]] * 2
        assert bad.outcomes == ["InvalidEntries"]
        assert len(log.batches) == 2

    led(story)


def test_refused_batch_refuses_every_commit_in_it() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        askers = [bench.submit(writing(commit_of("g", one)), is_gathered=True) for one in range(3)]
        log.refuses = DiskFull("full")
        bench.timers.run_due()
        assert [one.outcomes for one in askers] == [["DiskFull"]] * 3

    led(story)


def test_what_is_written_can_be_read() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.submit(writing(commit_of("g", 41), commit_of("g", 42, partition=1)))
        bench.timers.run_due()
        (batch,) = [batch for _, _, batch in log.batches]
        found = [decoded.what for decoded in decode_batches(batch)]
        assert found == [commit_of("g", 41), commit_of("g", 42, partition=1)]

    led(story)
