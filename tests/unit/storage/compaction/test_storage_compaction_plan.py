"""When a log is cleaned and how far: lags, dirty ratio, stable offset, choice among logs."""

from dataclasses import replace

import pytest

from kits.storage.compaction_kit import COMPACT, Bench, StepBackground, flush_now
from millstream.model.ids import Offset, TimestampMs, TopicPartition
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.compaction.cleaner import Cleaner
from millstream.storage.compaction.plan import (
    CleaningRules,
    LogFacts,
    SegmentFacts,
    find_dirty,
    is_worth_cleaning,
)
from millstream.storage.config import FOREVER
from millstream.testing.log_kit import PARTITION, open_log
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk

NOW = TimestampMs(1_000_000)
RULES = CleaningRules(dirty_ratio_min=0.5, lag_min_ms=0, lag_max_ms=FOREVER)


def facts(
    *segments: tuple[int, int],
    active: int = 100,
    first_dirty_offset: int = 0,
    limit: int = 1000,
    start: int = 0,
) -> LogFacts:
    closed = [SegmentFacts(Offset(base), size) for base, size in segments]
    return LogFacts(
        closed, Offset(active), Offset(start), Offset(limit), Offset(first_dirty_offset)
    )


def test_everything_closed_is_dirty_at_first() -> None:
    dirty = find_dirty(facts((0, 10), (50, 30)), RULES, NOW)
    assert (dirty.first_dirty_offset, dirty.end_offset) == (0, 100)
    assert (dirty.clean_bytes, dirty.dirty_bytes, dirty.ratio) == (0, 40, 1.0)


def test_the_ratio_weighs_dirty_against_all_that_is_cleanable() -> None:
    dirty = find_dirty(facts((0, 30), (50, 10), first_dirty_offset=50), RULES, NOW)
    assert (dirty.clean_bytes, dirty.dirty_bytes, dirty.ratio) == (30, 10, 0.25)
    assert not is_worth_cleaning(dirty, RULES)
    assert is_worth_cleaning(dirty, RULES._replace(dirty_ratio_min=0.249))
    assert not is_worth_cleaning(dirty, RULES._replace(dirty_ratio_min=0.25)), "as in Kafka"


def test_nothing_is_cleaned_past_the_last_stable_offset() -> None:
    """I-07. Whole segments only: the one with the limit inside stays."""
    log = facts((0, 10), (50, 10), (80, 10))
    assert find_dirty(log._replace(limit=Offset(80)), RULES, NOW).end_offset == 80
    assert find_dirty(log._replace(limit=Offset(79)), RULES, NOW).end_offset == 50
    assert find_dirty(log._replace(limit=Offset(10)), RULES, NOW).dirty_bytes == 0


def test_a_log_without_closed_segments_has_nothing_to_clean() -> None:
    assert not is_worth_cleaning(find_dirty(facts(active=0), RULES, NOW), RULES)
    ratio_zero = RULES._replace(dirty_ratio_min=0.0)
    done = facts((0, 10), first_dirty_offset=100)
    assert not is_worth_cleaning(find_dirty(done, ratio_zero, NOW), ratio_zero)


def test_min_lag_stops_at_the_first_young_segment() -> None:
    rules = RULES._replace(lag_min_ms=1000)
    segments = [
        SegmentFacts(Offset(0), 10, largest_timestamp_ms=TimestampMs(NOW - 1000)),
        SegmentFacts(Offset(10), 10, largest_timestamp_ms=TimestampMs(NOW - 999)),
        SegmentFacts(Offset(20), 10, largest_timestamp_ms=TimestampMs(NOW - 5000)),
    ]
    log = facts()._replace(closed=segments)
    assert find_dirty(log, rules, NOW).end_offset == 10


def test_max_lag_makes_a_little_dirt_worth_it() -> None:
    rules = RULES._replace(lag_max_ms=1000)
    old = SegmentFacts(Offset(50), 1, first_timestamp_ms=TimestampMs(NOW - 1001))
    log = facts(first_dirty_offset=50)._replace(closed=[SegmentFacts(Offset(0), 1000), old])
    assert is_worth_cleaning(find_dirty(log, rules, NOW), rules)
    younger = old._replace(first_timestamp_ms=TimestampMs(NOW - 1000))
    log = log._replace(closed=[SegmentFacts(Offset(0), 1000), younger])
    assert not is_worth_cleaning(find_dirty(log, rules, NOW), rules)


def test_a_checkpoint_below_the_log_start_begins_at_the_start() -> None:
    dirty = find_dirty(facts((40, 10), start=45, first_dirty_offset=3), RULES, NOW)
    assert (dirty.first_dirty_offset, dirty.dirty_bytes) == (45, 10)


# -- with a real log


def test_min_compaction_lag_keeps_young_records() -> None:
    bench = Bench(config=replace(COMPACT, min_compaction_lag_ms=5000))
    bench.put(a="1")
    bench.put(a="2")
    bench.seal()
    bench.clock.advance(4999)
    assert bench.is_clean()
    bench.clock.advance(1)
    bench.clean()
    assert bench.values() == [(b"a", b"2")]


def test_max_compaction_lag_cleans_and_rolls_in_time() -> None:
    config = replace(COMPACT, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
    bench = Bench(config=config)
    for number in range(10):
        bench.put(**{f"k{number}": "x" * 100})
    bench.seal()
    assert bench.is_clean(), "nothing is dirtier than all of it"
    bench.clock.advance(5001)
    bench.clean()
    bench.put(a="1")
    bench.put(a="2")
    bench.clock.advance(5001)
    bench.put(late="1")
    bench.settle_watermarks()
    assert len(bench.log.segments.closed) == 2, "the old active segment was rolled"
    bench.clean()
    assert (b"a", b"1") not in bench.values()


def test_an_open_transaction_holds_cleaning_back() -> None:
    bench = Bench()
    bench.put(a="1")
    bench.put(a="2")
    bench.seal()
    bench.in_transaction([(b"a", b"3")], producer_id=1, sequence=0)
    bench.seal()
    bench.put(a="4")
    bench.seal()
    bench.clean()
    assert bench.values() == [(b"a", b"2"), (b"a", b"3"), (b"a", b"4")]
    assert bench.is_clean()


def test_what_is_not_replicated_is_not_cleaned() -> None:
    bench = Bench()
    bench.put(a="1")
    bench.put(a="2")
    bench.log.roll()
    bench.log.flush()
    bench.store_recovery_point()
    assert bench.is_clean()
    bench.log.set_high_watermark(Offset(1))
    assert bench.is_clean()
    bench.log.set_high_watermark(Offset(2))
    assert not bench.is_clean()


def test_the_checkpoint_survives_a_restart_and_follows_a_truncation() -> None:
    bench = Bench()
    for number in range(6):
        bench.put(**{f"k{number}": "x" * 300})
        bench.put(**{f"k{number}": "y" * 300})
    bench.seal()
    bench.clean()
    assert bench.log.first_dirty_offset == 12
    bench.opened.owner.store(names.CLEANER_OFFSETS, {PARTITION: bench.log.first_dirty_offset})
    bench = bench.reopened()
    assert bench.log.first_dirty_offset == 12
    end = bench.log.truncate_to(Offset(7), is_unclean=True)
    assert bench.log.first_dirty_offset == end
    assert bench.opened.owner.stored(names.CLEANER_OFFSETS, PARTITION) == end


def test_a_checkpoint_beyond_the_log_end_is_not_believed_later() -> None:
    """Else what is written there next would pass for clean, and its tombstones would go alone."""
    bench = Bench()
    bench.put(a="1")
    bench.opened.owner.store(names.CLEANER_OFFSETS, {PARTITION: Offset(50)})
    bench = bench.reopened()
    assert bench.log.first_dirty_offset == 1
    assert bench.opened.owner.stored(names.CLEANER_OFFSETS, PARTITION) == 1


@pytest.mark.parametrize("dirtier", [0, 1])
def test_the_dirtiest_log_comes_first(dirtier: int) -> None:
    disk, clock = SimDisk(directories=["/d0", "/d1"]), ManualClock()
    benches = []
    for number in range(2):
        bench = Bench(disk, root=f"/d{number}", clock=clock, partition=TopicPartition("t", number))
        bench.put(a="x" * 100)
        bench.seal()
        bench.cleaner.run_once()
        bench.background.run_all()
        bench.put(a="y" * (200 if number == dirtier else 50))
        bench.seal()
        benches.append(bench)
    background = StepBackground()
    cleaner = Cleaner(
        [bench.log for bench in benches],
        clock=clock,
        randomness=SeededRandomness(1),
        background=background,
        flush=flush_now,
    )
    cleaner.run_once()
    assert benches[dirtier].log.maintenance is not None
    assert benches[1 - dirtier].log.maintenance is None
    background.run_all()
    assert all(bench.log.first_dirty_offset == 2 for bench in benches), (
        "the other one follows by itself"
    )


def test_logs_that_are_not_compacted_are_left_alone() -> None:
    disk, clock = SimDisk(directories=["/data"]), ManualClock()
    opened = open_log(disk, clock, replace(COMPACT, cleanup_compact=False))
    bench = Bench(SimDisk(directories=["/data"]))
    cleaner = Cleaner(
        [opened.log],
        clock=clock,
        randomness=SeededRandomness(1),
        background=bench.background,
        flush=flush_now,
    )
    assert cleaner.run_once() is None
