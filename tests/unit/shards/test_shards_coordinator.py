"""The coordinator's shell: what it writes, when it answers, and that nothing is told too early."""

from typing import Any

import pytest

from kits.shards.shard_shell_kit import (
    TIMEOUT_MS,
    Bench,
    FakeLog,
    FakeSettings,
    RecordingSink,
    commit_of,
    group_entry,
    led,
    run_pending,
    writing,
)
from millstream.groups.errors import UnknownMember
from millstream.model.errors import DiskFull
from millstream.shards.effects import Reply, Write
from millstream.shards.errors import CoordinatorLoading, NotCoordinator
from millstream.testing.sim import virtual_loop

# -- answers ---------------------------------------------------------------------------------------


def test_reply_is_sent_at_once() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        assert bench.submit("hello").answers == ["hello"]
        assert log.batches == []

    led(story)


def test_refusal_raised_by_the_machine_is_an_answer() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        sink = RecordingSink()

        def decide(*_: Any, **__: Any) -> None:
            raise UnknownMember

        bench.coordinator.submit(0, decide, sink.caller, None, is_gathered=False)
        assert sink.outcomes == ["UnknownMember"]

    led(story)


def test_fault_of_the_machine_reaches_who_asked_and_effects_are_not_lost() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        sink, other = RecordingSink(), RecordingSink()

        def decide(shard: Any, *_: Any, **__: Any) -> None:
            shard.outbox.reply(other.caller, "yours")
            raise KeyError("a fault")

        with pytest.raises(KeyError):
            bench.coordinator.submit(0, decide, sink.caller, None, is_gathered=False)
        assert other.answers == ["yours"]

    led(story)


def test_answer_waits_for_the_high_watermark() -> None:
    """I-29. The log has it, the followers do not: nobody hears of it."""

    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        sink = bench.submit(writing(group_entry()))
        assert bench.shard.calls == [("appended", 0, 1)]
        assert sink.answers == []
        log.advance()
        assert sink.answers == ["done"]
        assert bench.shard.calls[1:] == [("committed", 1), ("written", 1)]

    led(story)


def test_answers_come_in_the_order_of_the_log_and_only_as_far_as_it_counts() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        first = bench.submit(writing(group_entry(), group_entry("h")))
        second = bench.submit(writing(group_entry("i")))
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
        bench.submit(writing(group_entry()))
        sink = bench.submit(writing(answer="stable"))
        assert sink.answers == []
        log.advance()
        assert sink.answers == ["stable"]
        assert len(log.batches) == 1

    led(story)


def test_refused_write_is_answered_with_the_error_and_told_to_the_machine() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.refuses = DiskFull("full")
        sink = bench.submit(writing(group_entry()))
        assert sink.outcomes == ["DiskFull"]
        assert bench.shard.calls == [("refused", "DiskFull")]
        log.refuses = None
        assert bench.submit(writing(group_entry())).outcomes == ["done"]

    led(story)


def test_write_that_takes_too_long_is_given_up_but_not_forgotten() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        sink = bench.submit(writing(group_entry()))
        bench.pass_ms(TIMEOUT_MS - 1)
        assert sink.answers == []
        bench.pass_ms(1)
        assert sink.outcomes == ["CoordinatorNotAvailable"]
        assert bench.coordinator.counts.writes_timed_out == 1
        log.advance()
        assert sink.outcomes == ["CoordinatorNotAvailable"]
        assert ("written", 1) in bench.shard.calls

    led(story)


def test_effects_of_a_written_are_taken_too() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        late = RecordingSink()
        bench.shard.written_callback = lambda write: (
            bench.shard.outbox.reply(late.caller, "late") if len(write.entries) == 2 else None
        )
        bench.submit(writing(group_entry(), group_entry("h")))
        assert late.answers == ["late"]

    led(story)


def test_next_request_of_who_is_answered_finds_the_machine_at_rest() -> None:
    """A connection may have the next request ready; it is served inside of the answer."""

    async def story(bench: Bench, log: FakeLog) -> None:
        later: list[RecordingSink] = []
        ends: list[int] = []
        first = RecordingSink()

        def go_on() -> None:
            ends.append(log.log_end)
            later.append(bench.submit(writing(group_entry("h"), answer="second")))

        first.then = go_on

        def decide(shard: Any, caller: Any, *_: Any, **__: Any) -> None:
            shard.outbox.reply(caller, "first")
            shard.outbox.write(Write((group_entry(),)))

        bench.coordinator.submit(0, decide, first.caller, None, is_gathered=False)
        (second,) = later
        assert second.answers == ["second"]
        assert ends == [1]  # what the first had to write was in the log before
        calls = [one for one in bench.shard.calls if one[0] == "appended"]
        assert calls == [("appended", 0, 1), ("appended", 1, 1)]

    led(story)


def test_asker_that_cannot_be_told_does_not_stop_the_others() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        def fail() -> None:
            raise RuntimeError("broken connection")

        log.is_held = True
        bad, good = bench.submit(writing(group_entry())), bench.submit(writing(group_entry("h")))
        bad.then = fail
        log.advance()
        assert good.answers == ["done"]

    led(story)


# -- leadership ------------------------------------------------------------------------------------


def test_lost_leadership_is_told_to_everybody_who_waits() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        written = bench.submit(writing(group_entry()))
        gathered = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        joining = RecordingSink()
        bench.shard.waiting = [joining]
        log.lose()
        for one in (written, gathered, joining):
            assert one.outcomes == ["NotCoordinator"]
        with pytest.raises(NotCoordinator):
            bench.submit("late")
        bench.pass_ms(10 * TIMEOUT_MS)
        log.advance()
        assert (written.outcomes, gathered.outcomes) == (["NotCoordinator"], ["NotCoordinator"])
        assert len(log.batches) == 1

    led(story)


def test_leadership_lost_inside_of_an_append_ends_it_well() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        def lose_then_fail(_: int) -> DiskFull:
            log.lose()
            return DiskFull("full")

        log.size_max, log.too_large = 0, lose_then_fail
        sink = bench.submit(writing(group_entry()))
        assert sink.outcomes in (["NotCoordinator"], ["DiskFull"])

    led(story)


def test_leadership_lost_while_other_shards_are_written_is_told() -> None:
    """The directory of both fails with the second write: the first may count or not."""

    async def story(bench: Bench, log: FakeLog) -> None:
        other = FakeLog(1)
        other.watch_leadership(bench.coordinator)
        await run_pending()
        first = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        second = bench.submit(writing(commit_of("h", 1)), index=1, is_gathered=True)
        machine = bench.shards[0]
        machine.calls.clear()
        append = other.append_now

        def lose(*arguments: Any, **options: Any) -> Any:
            log.lose()
            return append(*arguments, **options)

        other.append_now = lose  # type: ignore[method-assign]
        bench.timers.run_due()
        assert log.log_end == 1
        assert (first.outcomes, second.outcomes) == (["NotCoordinator"], ["done"])
        assert machine.calls == ["unloaded"]

    led(story)


def test_other_partition_is_somebody_elses() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        with pytest.raises(NotCoordinator):
            bench.submit("x", index=1)

    led(story)


def test_new_epoch_of_the_same_leader_keeps_the_groups() -> None:
    """Nobody else can have written, and members that wait must not join anew for nothing."""

    async def story(bench: Bench, log: FakeLog) -> None:
        log.is_held = True
        sink = bench.submit(writing(group_entry()))
        bench.coordinator.leadership_gained(log, log.leader_epoch)
        assert len(bench.shards) == 1
        log.advance()
        assert sink.answers == ["done"]

    led(story)


def test_what_is_said_of_another_log_of_the_partition_is_not_of_this_one() -> None:
    """A topic deleted and made anew, or a leadership that came back: two logs, one name."""

    async def story(bench: Bench, log: FakeLog) -> None:
        again = FakeLog()
        again.put(commit_of("g", 7))
        again.watch_leadership(bench.coordinator)
        await run_pending()
        assert bench.shard.applied == [(0, 7)]
        bench.coordinator.leadership_lost(log)
        bench.coordinator.high_watermark_moved(log)
        assert bench.submit("still").answers == ["still"]
        assert bench.coordinator.get(0).log is again

    led(story)


def test_leadership_gained_anew_loads_anew() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.submit(writing(commit_of("g", 7)))
        bench.timers.run_due()
        log.lose()
        again = FakeLog()
        again.put(commit_of("g", 7))
        again.watch_leadership(bench.coordinator)
        with pytest.raises(CoordinatorLoading):
            bench.submit("early")
        await run_pending()
        assert bench.shard.applied == [(0, 7)]
        assert bench.submit("now").answers == ["now"]

    led(story)


# -- time ------------------------------------------------------------------------------------------


def test_machine_is_called_when_its_time_has_come_and_not_before() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 250
        bench.submit("arm")
        bench.pass_ms(249)
        assert bench.shard.calls == []
        bench.pass_ms(1)
        assert bench.shard.calls == [("tick", 250)]

    led(story)


def test_timer_that_rings_too_early_does_nothing() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 100
        bench.submit("arm")
        bench.shard.deadline_ms = 300  # a heartbeat moved it
        bench.submit("moved")
        bench.pass_ms(100)
        assert bench.shard.calls == []
        bench.pass_ms(200)
        assert bench.shard.calls == [("tick", 300)]

    led(story)


def test_one_timer_serves_all_shards() -> None:
    async def main() -> None:
        bench = Bench()
        logs = [FakeLog(index) for index in range(3)]
        for log in logs:
            log.watch_leadership(bench.coordinator)
        await run_pending()
        for number, shard in enumerate(bench.shards):
            shard.calls.clear()
            shard.deadline_ms = 100 * (number + 1)
            bench.submit("arm", index=shard.index)
        assert len([one for one in bench.timers.timers if not one.is_cancelled]) == 1
        for _ in range(3):
            bench.pass_ms(100)
        assert [shard.calls for shard in bench.shards] == [
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
        await run_pending()
        bad, good = bench.shards

        def fail() -> None:
            bad.deadline_ms = 100
            raise KeyError("a fault")

        bad.on_tick = fail
        for shard in bench.shards:
            shard.calls.clear()
            shard.deadline_ms = 100
            bench.submit("arm", index=shard.index)
        bench.pass_ms(100)
        assert (bad.calls, good.calls) == ([("tick", 100)], [("tick", 100)])
        bench.pass_ms(500)
        assert bad.calls == [("tick", 100)]
        bench.pass_ms(500)
        assert bad.calls == [("tick", 100), ("tick", 1100)]

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

    led(story, FakeSettings(expire_interval_ms=1000))


def test_stopped_coordinator_rings_no_timer() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        bench.shard.deadline_ms = 10
        bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        bench.coordinator.stop()
        bench.pass_ms(1_000_000)
        assert bench.shard.calls == []
        assert log.batches == []

    led(story)


# -- topics ----------------------------------------------------------------------------------------


def test_changed_topics_are_told_to_shards_that_serve() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        commit = bench.submit(writing(commit_of("g", 1)), is_gathered=True)
        for _ in bench.groups.topics_changed_steps({"a", "b"}, ["b"]):
            pass
        assert commit.answers == ["done"]
        assert bench.shard.calls[-2:] == [("topics", ["a", "b"]), ("deleted", ["b"])]
        bench.timers.run_due()
        assert bench.shard.expirations == 1

    led(story)


def test_reply_in_a_write_may_be_for_others_too() -> None:
    async def story(bench: Bench, log: FakeLog) -> None:
        others = [RecordingSink(), RecordingSink()]
        replies = tuple(Reply(one, "all") for one in others)
        bench.submit(Write((group_entry(),), replies))
        assert [one.answers for one in others] == [["all"], ["all"]]

    led(story)
