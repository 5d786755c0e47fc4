"""The coordinator's shell: what it writes, when it answers, and that nothing is told too early."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from group_shell_kit import (
    TIMEOUT_MS,
    Asker,
    Bench,
    FakeLog,
    FakeSettings,
    commit_of,
    writing,
)
from millstream.groups.effects import Reply, Write
from millstream.groups.errors import CoordinatorLoading, NotCoordinator, UnknownMember
from millstream.groups.records.entries import Entry, decode_batches
from millstream.groups.records.keys import ConsumerGroupKey
from millstream.groups.records.values import ConsumerGroupMetadataValue
from millstream.model.errors import BatchTooLarge, DiskFull
from millstream.model.ids import GroupId
from millstream.testing import virtual_loop

Story = Callable[[Bench, FakeLog], Coroutine[Any, Any, None]]


def group_entry(group: str = "g", epoch: int = 1) -> Entry:
    """Of a kind that does not wait for others."""
    return Entry(ConsumerGroupKey(GroupId(group)), ConsumerGroupMetadataValue(epoch=epoch))


def led(story: Story, settings: FakeSettings | None = None) -> None:
    """Tell the story with one partition that is led and loaded."""

    async def main() -> None:
        bench, log = Bench(settings), FakeLog()
        log.watch_leadership(bench.coordinator)
        await settled()
        assert bench.shard.told == [("committed", 0), "loaded"]
        bench.shard.told.clear()
        await story(bench, log)

    virtual_loop.run(main)


async def settled() -> None:
    """Until steps that were begun are done."""
    for _ in range(50):
        await asyncio.sleep(0)


# -- answers ---------------------------------------------------------------------------------------


def test_reply_is_sent_at_once() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        assert bench.ask("hello").answers == ["hello"]
        assert log.batches == []

    led(story)


def test_refusal_raised_by_the_machine_is_an_answer() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        asker = Asker()

        def decide(*_: Any) -> None:
            raise UnknownMember

        bench.coordinator.ask(0, decide, asker.caller, None)
        assert asker.told == ["UnknownMember"]

    led(story)


def test_fault_of_the_machine_reaches_who_asked_and_effects_are_not_lost() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        asker, other = Asker(), Asker()

        def decide(shard: Any, *_: Any) -> None:
            shard.outbox.reply(other.caller, "yours")
            raise KeyError("a fault")

        with pytest.raises(KeyError):
            bench.coordinator.ask(0, decide, asker.caller, None)
        assert other.answers == ["yours"]

    led(story)


def test_answer_waits_for_the_high_watermark() -> None:
    """I-29. The log has it, the followers do not: nobody hears of it."""

    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        asker = bench.ask(writing(group_entry()))
        assert bench.shard.told == [("appended", 0, 1)]
        assert asker.answers == []
        log.advance()
        assert asker.answers == ["done"]
        assert bench.shard.told[1:] == [("committed", 1), ("written", 1)]

    led(story)


def test_answers_come_in_the_order_of_the_log_and_only_as_far_as_it_counts() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        first = bench.ask(writing(group_entry(), group_entry("h")))
        second = bench.ask(writing(group_entry("i")))
        log.advance(1)
        assert (first.answers, second.answers) == ([], [])
        log.advance(2)
        assert (first.answers, second.answers) == (["done"], [])
        log.advance(3)
        assert second.answers == ["done"]

    led(story)


def test_write_without_entries_waits_for_what_was_written_before() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        bench.ask(writing(group_entry()))
        asker = bench.ask(writing(answer="stable"))
        assert asker.answers == []
        log.advance()
        assert asker.answers == ["stable"]
        assert len(log.batches) == 1

    led(story)


def test_refused_write_is_answered_with_the_error_and_told_to_the_machine() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.refuses = DiskFull("full")
        asker = bench.ask(writing(group_entry()))
        assert asker.told == ["DiskFull"]
        assert bench.shard.told == [("refused", "DiskFull")]
        log.refuses = None
        assert bench.ask(writing(group_entry())).told == ["done"]

    led(story)


def test_write_that_takes_too_long_is_given_up_but_not_forgotten() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        asker = bench.ask(writing(group_entry()))
        bench.pass_ms(TIMEOUT_MS - 1)
        assert asker.answers == []
        bench.pass_ms(1)
        assert asker.told == ["CoordinatorNotAvailable"]
        assert bench.coordinator.counts.writes_timed_out == 1
        log.advance()
        assert asker.told == ["CoordinatorNotAvailable"]
        assert ("written", 1) in bench.shard.told

    led(story)


def test_effects_of_a_written_are_taken_too() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        late = Asker()
        bench.shard.on_written = lambda write: (
            bench.shard.outbox.reply(late.caller, "late") if len(write.entries) == 2 else None
        )
        bench.ask(writing(group_entry(), group_entry("h")))
        assert late.answers == ["late"]

    led(story)


def test_next_request_of_who_is_answered_finds_the_machine_at_rest() -> None:
    """A connection may have the next request ready; it is served inside of the answer."""

    async def story(bench: Bench, log: FakeLog) -> None:
        later: list[Asker] = []
        ends: list[int] = []
        first = Asker()

        def go_on() -> None:
            ends.append(log.log_end)
            later.append(bench.ask(writing(group_entry("h"), answer="second")))

        first.then = go_on

        def decide(shard: Any, caller: Any, *_: Any) -> None:
            shard.outbox.reply(caller, "first")
            shard.outbox.write(Write((group_entry(),)))

        bench.coordinator.ask(0, decide, first.caller, None)
        (second,) = later
        assert second.answers == ["second"]
        assert ends == [1]  # what the first had to write was in the log before
        told = [one for one in bench.shard.told if one[0] == "appended"]
        assert told == [("appended", 0, 1), ("appended", 1, 1)]

    led(story)


def test_asker_that_cannot_be_told_does_not_stop_the_others() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        def fail() -> None:
            raise RuntimeError("broken connection")

        log.is_held = True
        bad, good = bench.ask(writing(group_entry())), bench.ask(writing(group_entry("h")))
        bad.then = fail
        log.advance()
        assert good.answers == ["done"]

    led(story)


# -- commits that are gathered ---------------------------------------------------------------------


def test_commits_of_one_turn_are_one_batch() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        askers = [
            bench.ask(writing(commit_of(f"g{number}", number)), keeps_gathered=True)
            for number in range(5)
        ]
        assert log.batches == []
        bench.timers.run_due()
        assert [(first, end) for first, end, _ in log.batches] == [(0, 5)]
        assert [one.answers for one in askers] == [["done"]] * 5
        assert [one for one in bench.shard.told if one[0] == "appended"] == [
            ("appended", number, 1) for number in range(5)
        ]

    led(story)


def test_commits_of_all_shards_are_written_at_the_end_of_one_turn() -> None:
    """Nobody is answered before everything of the turn is in the logs."""

    async def story(bench: Bench, log: FakeLog) -> None:
        other = FakeLog(1)
        other.watch_leadership(bench.coordinator)
        await settled()
        ends: list[tuple[int, int]] = []
        askers = []
        for number in range(4):
            entry = commit_of(f"g{number}", number)
            asker = bench.ask(writing(entry), index=number % 2, keeps_gathered=True)
            asker.then = lambda: ends.append((log.log_end, other.log_end))
            askers.append(asker)
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
        await settled()
        append = log.append_now

        def fail(*_: Any, **__: Any) -> Any:
            raise KeyError("a fault")

        log.append_now = fail  # type: ignore[method-assign]
        first = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        second = bench.ask(writing(commit_of("h", 1)), index=1, keeps_gathered=True)
        bench.timers.run_due()
        assert first.told == ["CoordinatorNotAvailable"]
        assert second.answers == ["done"]
        log.append_now = append  # type: ignore[method-assign]
        third = bench.ask(writing(commit_of("g", 2)), keeps_gathered=True)
        bench.timers.run_due()
        assert third.answers == ["done"]

    led(story)


def test_deadline_that_came_with_a_gathered_commit_is_kept() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 10
        bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        bench.timers.run_due()
        bench.shard.told.clear()
        bench.pass_ms(10)
        assert bench.shard.told == [("tick", 10)]

    led(story)


def test_deadline_does_not_wait_for_the_linger() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 10
        bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        bench.pass_ms(10)
        assert ("tick", 10) in bench.shard.told

    led(story, FakeSettings(append_linger_ms=1_000))


def test_commit_behind_one_that_waits_for_followers_waits_too() -> None:
    """I-29. Answers come in the order of the log, whatever the high watermark is by then."""

    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        first = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        bench.timers.run_due()
        second = bench.ask(writing(commit_of("h", 2)), keeps_gathered=True)
        bench.timers.run_due()
        assert (first.answers, second.answers) == ([], [])
        log.advance(1)
        assert (first.answers, second.answers) == (["done"], [])
        assert ("committed", 2) not in bench.shard.told
        log.advance(2)
        assert (first.answers, second.answers) == (["done"], ["done"])
        assert bench.shard.told == [
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
        first = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        first.then = lambda: order.append("first")
        bench.timers.run_due()
        log.is_held = False
        second = bench.ask(writing(commit_of("h", 2)), keeps_gathered=True)
        second.then = lambda: order.append("second")
        bench.timers.run_due()
        assert order == ["first", "second"]

    led(story)


def test_what_counts_when_the_log_has_it_is_told_in_the_same_order() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        askers = [bench.ask(writing(commit_of("g", one)), keeps_gathered=True) for one in range(2)]
        bench.timers.run_due()
        assert [one.answers for one in askers] == [["done"]] * 2
        assert bench.shard.told == [
            ("appended", 0, 1),
            ("appended", 1, 1),
            ("committed", 2),
            ("written", 1),
            ("written", 1),
        ]

    led(story)


def test_gathered_commits_are_written_before_the_machine_decides_anything_else() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        commit = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        assert commit.answers == []
        seen: list[int] = []

        def decide(shard: Any, *_: Any) -> None:
            seen.append(log.log_end)

        bench.coordinator.ask(0, decide, Asker().caller, None)
        assert seen == [1]
        assert commit.answers == ["done"]

    led(story)


def test_reads_leave_commits_gathered() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        bench.ask("read", keeps_gathered=True)
        assert log.batches == []
        bench.timers.run_due()
        assert len(log.batches) == 1

    led(story)


def test_without_linger_each_commit_is_written_at_once() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        assert bench.ask(writing(commit_of("g", 1)), keeps_gathered=True).answers == ["done"]

    led(story, FakeSettings(append_linger_ms=0))


def test_linger_is_waited_for() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        asker = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        bench.pass_ms(6)
        assert asker.answers == []
        bench.pass_ms(1)
        assert asker.answers == ["done"]

    led(story, FakeSettings(append_linger_ms=7))


def test_what_is_too_large_together_is_written_one_by_one() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.size_max = 150
        log.too_large = lambda size: BatchTooLarge(size_bytes=size, limit_bytes=150)
        small = [bench.ask(writing(commit_of("g", one)), keeps_gathered=True) for one in range(3)]
        large = bench.ask(writing(commit_of("g" * 200, 9)), keeps_gathered=True)
        bench.timers.run_due()
        assert [one.told for one in small] == [["done"]] * 3
        assert large.told == ["BatchTooLarge"]
        assert len(log.batches) == 3

    led(story)


def test_refused_batch_refuses_every_commit_in_it() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        askers = [bench.ask(writing(commit_of("g", one)), keeps_gathered=True) for one in range(3)]
        log.refuses = DiskFull("full")
        bench.timers.run_due()
        assert [one.told for one in askers] == [["DiskFull"]] * 3

    led(story)


def test_what_is_written_can_be_read() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.ask(writing(commit_of("g", 41), commit_of("g", 42, partition=1)))
        bench.timers.run_due()
        (batch,) = [batch for _, _, batch in log.batches]
        found = [decoded.what for decoded in decode_batches(batch)]
        assert found == [commit_of("g", 41), commit_of("g", 42, partition=1)]

    led(story)


# -- leadership ------------------------------------------------------------------------------------


def test_lost_leadership_is_told_to_everybody_who_waits() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        written = bench.ask(writing(group_entry()))
        gathered = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        joining = Asker()
        bench.shard.waiting = [joining]
        log.lose()
        for one in (written, gathered, joining):
            assert one.told == ["NotCoordinator"]
        with pytest.raises(NotCoordinator):
            bench.ask("late")
        bench.pass_ms(10 * TIMEOUT_MS)
        log.advance()
        assert (written.told, gathered.told) == (["NotCoordinator"], ["NotCoordinator"])
        assert len(log.batches) == 1

    led(story)


def test_leadership_lost_inside_of_an_append_ends_it_well() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        def lose_then_fail(_: int) -> DiskFull:
            log.lose()
            return DiskFull("full")

        log.size_max, log.too_large = 0, lose_then_fail
        asker = bench.ask(writing(group_entry()))
        assert asker.told in (["NotCoordinator"], ["DiskFull"])

    led(story)


def test_leadership_lost_while_other_shards_are_written_is_told() -> None:
    """The directory of both fails with the second write: the first may count or not."""

    async def story(bench: Bench, log: FakeLog) -> None:
        other = FakeLog(1)
        other.watch_leadership(bench.coordinator)
        await settled()
        first = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        second = bench.ask(writing(commit_of("h", 1)), index=1, keeps_gathered=True)
        machine = bench.shards[0]
        machine.told.clear()
        append = other.append_now

        def lose(*arguments: Any, **options: Any) -> Any:
            log.lose()
            return append(*arguments, **options)

        other.append_now = lose  # type: ignore[method-assign]
        bench.timers.run_due()
        assert log.log_end == 1
        assert (first.told, second.told) == (["NotCoordinator"], ["done"])
        assert machine.told == ["unloaded"]

    led(story)


def test_other_partition_is_somebody_elses() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        with pytest.raises(NotCoordinator):
            bench.ask("x", index=1)

    led(story)


def test_new_epoch_of_the_same_leader_keeps_the_groups() -> None:
    """Nobody else can have written, and members that wait must not join anew for nothing."""

    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        asker = bench.ask(writing(group_entry()))
        bench.coordinator.leadership_gained(log, log.leader_epoch)
        assert len(bench.shards) == 1
        log.advance()
        assert asker.answers == ["done"]

    led(story)


def test_what_is_said_of_another_log_of_the_partition_is_not_of_this_one() -> None:
    """A topic deleted and made anew, or a leadership that came back: two logs, one name."""

    async def story(bench: Bench, log: FakeLog) -> None:
        again = FakeLog()
        again.put(commit_of("g", 7))
        again.watch_leadership(bench.coordinator)
        await settled()
        assert bench.shard.applied == [(0, 7)]
        bench.coordinator.leadership_lost(log)
        bench.coordinator.high_watermark_moved(log)
        assert bench.ask("still").answers == ["still"]
        assert bench.coordinator.get(0).log is again

    led(story)


def test_leadership_gained_anew_loads_anew() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.ask(writing(commit_of("g", 7)))
        bench.timers.run_due()
        log.lose()
        again = FakeLog()
        again.put(commit_of("g", 7))
        again.watch_leadership(bench.coordinator)
        with pytest.raises(CoordinatorLoading):
            bench.ask("early")
        await settled()
        assert bench.shard.applied == [(0, 7)]
        assert bench.ask("now").answers == ["now"]

    led(story)


# -- time ------------------------------------------------------------------------------------------


def test_machine_is_called_when_its_time_has_come_and_not_before() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 250
        bench.ask("arm")
        bench.pass_ms(249)
        assert bench.shard.told == []
        bench.pass_ms(1)
        assert bench.shard.told == [("tick", 250)]

    led(story)


def test_timer_that_rings_too_early_does_nothing() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 100
        bench.ask("arm")
        bench.shard.deadline_ms = 300  # a heartbeat moved it
        bench.ask("moved")
        bench.pass_ms(100)
        assert bench.shard.told == []
        bench.pass_ms(200)
        assert bench.shard.told == [("tick", 300)]

    led(story)


def test_one_timer_serves_all_shards() -> None:
    async def main() -> None:
        bench = Bench()
        logs = [FakeLog(index) for index in range(3)]
        for log in logs:
            log.watch_leadership(bench.coordinator)
        await settled()
        for number, shard in enumerate(bench.shards):
            shard.told.clear()
            shard.deadline_ms = 100 * (number + 1)
            bench.ask("arm", index=shard.index)
        assert len([one for one in bench.timers.timers if not one.is_cancelled]) == 1
        for _ in range(3):
            bench.pass_ms(100)
        assert [shard.told for shard in bench.shards] == [
            [("tick", 100)],
            [("tick", 200)],
            [("tick", 300)],
        ]

    virtual_loop.run(main)


def test_shard_whose_turn_fails_does_not_stop_the_others_and_is_not_called_for_ever() -> None:
    async def main() -> None:
        bench = Bench()
        for index in range(2):
            FakeLog(index).watch_leadership(bench.coordinator)
        await settled()
        bad, good = bench.shards

        def fail() -> None:
            bad.deadline_ms = 100
            raise KeyError("a fault")

        bad.on_tick = fail
        for shard in bench.shards:
            shard.told.clear()
            shard.deadline_ms = 100
            bench.ask("arm", index=shard.index)
        bench.pass_ms(100)
        assert (bad.told, good.told) == ([("tick", 100)], [("tick", 100)])
        bench.pass_ms(500)
        assert bad.told == [("tick", 100)]
        bench.pass_ms(500)
        assert bad.told == [("tick", 100), ("tick", 1100)]

    virtual_loop.run(main)


def test_expired_offsets_are_looked_for_by_the_clock_and_step_by_step() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.pass_ms(999)
        assert bench.shard.expirations == 0
        bench.shard.has_more = True
        bench.clock.advance(1)
        for _ in range(3):
            for timer in list(bench.timers.timers):
                if not timer.is_cancelled:
                    bench.timers.timers.remove(timer)
                    timer.callback(*timer.arguments)
        assert bench.shard.expirations == 3
        bench.shard.has_more = False
        bench.timers.run_due()
        assert bench.shard.expirations == 4

    led(story, FakeSettings(offsets_retention_check_interval_ms=1000))


def test_stopped_coordinator_rings_no_timer() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 10
        bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        bench.coordinator.stop()
        bench.pass_ms(1_000_000)
        assert bench.shard.told == []
        assert log.batches == []

    led(story)


# -- topics ----------------------------------------------------------------------------------------


def test_changed_topics_are_told_to_shards_that_serve() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        commit = bench.ask(writing(commit_of("g", 1)), keeps_gathered=True)
        for _ in bench.coordinator.topics_changed({"a", "b"}, ["b"]):
            pass
        assert commit.answers == ["done"]
        assert bench.shard.told[-2:] == [("topics", ["a", "b"]), ("deleted", ["b"])]
        bench.timers.run_due()
        assert bench.shard.expirations == 1

    led(story)


def test_reply_in_a_write_may_be_for_others_too() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        others = [Asker(), Asker()]
        replies = tuple(Reply(one, "all") for one in others)
        bench.ask(Write((group_entry(),), replies))
        assert [one.answers for one in others] == [["all"], ["all"]]

    led(story)
