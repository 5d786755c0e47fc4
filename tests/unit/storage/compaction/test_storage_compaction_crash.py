"""The swap under kills, power losses, truncations, retention and deletion between any two steps."""

import pytest

from kits.storage.compaction_kit import (
    COMPACT,
    ROOT,
    Bench,
    filled,
    full_clean_result,
    sim_disk,
    state_of,
)
from millstream.model.ids import Offset
from millstream.runtime.disk import remove_tree
from millstream.storage import names
from millstream.storage.compaction.log_cleaning import CleaningEnd
from millstream.storage.log.reader import Isolation
from millstream.testing.log_kit import PARTITION
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.crash_states import crash_states
from millstream.testing.sim.disk import SimDisk

GROUPS = 3


def step_count() -> int:
    bench = filled()
    bench.cleaner.run_once()
    return len(bench.background.run_all())


STEPS = step_count()


def after(jobs: int) -> Bench:
    """A log in the middle of a cleaning."""
    bench = filled()
    bench.cleaner.run_once()
    for _ in range(jobs):
        assert bench.background.run_next() is not None
    return bench


BEFORE = filled().records()
AFTER = full_clean_result()


def check_content(bench: Bench, what: str) -> None:
    """Old or new content per segment, nothing else, nothing twice; indexes and files sound."""
    found = bench.records()
    assert set(AFTER) <= set(found) <= set(BEFORE) | set(AFTER), what
    committed = bench.state(Isolation.COMMITTED)
    assert committed == state_of(AFTER), what
    bench.check()
    assert not bench.strange_files(), what


def test_the_story_has_all_steps() -> None:
    bench = filled()
    bench.cleaner.run_once()
    ran = bench.background.run_all()
    swap = ["write", "swap", "swap", "swap", "swap"]
    assert ran == ["map keys", *swap * GROUPS, "write"]
    assert bench.reports[0].end is CleaningEnd.CLEANED
    assert len(AFTER) < len(BEFORE)


@pytest.mark.parametrize("jobs", range(STEPS + 1))
def test_killed_between_any_two_steps(jobs: int) -> None:
    bench = after(jobs)
    disk = sim_disk(bench)
    disk.kill()
    again = Bench(disk.after_kill(), clock=bench.clock)
    assert again.log.log_end == bench.log.log_end
    check_content(again, f"killed after {jobs} jobs")
    if jobs < STEPS:
        again.settle_watermarks()
        again.clean()
    assert again.records() == AFTER or set(again.records()) <= set(AFTER)


@pytest.mark.slow
def test_power_lost_at_any_moment() -> None:
    bench = filled()
    disk = sim_disk(bench)
    recording = disk.record()
    bench.cleaner.run_once()
    bench.background.run_all()
    assert bench.reports[0].end is CleaningEnd.CLEANED
    count = 0
    for state in crash_states(recording, limit=400, seed=11):
        again = Bench(state.disk, clock=ManualClock())
        assert again.log.log_end == bench.log.log_end, state.description
        check_content(again, state.description)
        count += 1
    assert count > 200


def with_worthless_segment() -> Bench:
    """Two groups; the first ends with a segment of which nothing is needed any more."""
    bench = Bench(SimDisk(directories=[ROOT]))
    bench.put(a="1")
    bench.put(a="2")
    bench.seal()
    bench.put(b="1")
    bench.seal()
    bench.put(b="2".ljust(1900, "."))
    bench.seal()
    return bench


@pytest.mark.parametrize("jobs", range(12))
def test_a_segment_that_came_to_nothing_leaves_no_hole_and_does_not_come_back(jobs: int) -> None:
    """The stored recovery point is old, so recovery checks for holes between the segments."""
    bench = with_worthless_segment()
    bench.cleaner.run_once()
    for _ in range(jobs):
        bench.background.run_next()
    live = bench.records()
    disk = sim_disk(bench)
    disk.kill()
    again = Bench(disk.after_kill(), clock=bench.clock)
    assert again.log.log_end == bench.log.log_end
    assert again.records() == live, "old or new as the process saw it last, never a mixture"
    again.check()


def test_aborted_records_behind_the_map_stay_hidden_after_a_power_loss() -> None:
    """I-23. The list of aborted transactions must arrive together with the segment."""
    bench = Bench(SimDisk(directories=[ROOT]), key_map_bytes=24 * 4)
    bench.put(a="1", b="1", c="1")
    bench.put(a="2", b="2", c="2")
    bench.put(e="1")
    bench.in_transaction([(b"d", b"aborted")], producer_id=1, sequence=0)
    bench.end_transaction(producer_id=1, is_commit=False)
    bench.seal()
    bench.opened.owner.store(names.RECOVERY_POINTS, {PARTITION: bench.log.recovery_start})
    bench.opened.owner.store(names.HIGH_WATERMARKS, {PARTITION: bench.log.high_watermark})
    expected = bench.state(Isolation.COMMITTED)
    recording = sim_disk(bench).record()
    bench.cleaner.run_once()
    bench.background.run_all()
    assert len(bench.reports) > 1
    for state in crash_states(recording, limit=300, seed=5):
        again = Bench(state.disk, clock=ManualClock())
        assert again.state(Isolation.COMMITTED) == expected, state.description


@pytest.mark.parametrize("jobs", range(STEPS))
def test_appends_and_reads_go_on_between_steps(jobs: int) -> None:
    bench = after(jobs)
    for number in range(30):
        bench.put(k1=f"during{number}".ljust(200, "."))
    assert len(bench.log.segments.closed) > 1
    in_between = bench.records()
    assert set(AFTER) - set(BEFORE) == set()
    assert set(AFTER) <= set(in_between)
    bench.background.run_all()
    assert bench.reports[0].end is CleaningEnd.CLEANED
    bench.check()
    assert bench.state()[b"k1"] == b"during29".ljust(200, b".")
    bench.settle_watermarks()
    bench.clean()
    expected = {**state_of(AFTER), b"k1": b"during29".ljust(200, b".")}
    assert bench.state() == expected


@pytest.mark.slow
@pytest.mark.parametrize("end", [10, 25])
@pytest.mark.parametrize("jobs", range(STEPS))
def test_a_truncation_between_steps_is_not_undone(jobs: int, end: int) -> None:
    """I-08, I-11. Neither the running process nor the next one may see what was cut off."""
    bench = after(jobs)
    recording = sim_disk(bench).record()
    new_end = bench.log.truncate_to(Offset(end), is_unclean=True)
    sim_disk(bench).mark("truncated")
    found = bench.records()
    bench.background.run_all()
    assert bench.reports[0].end in (CleaningEnd.VOID, CleaningEnd.CLEANED)
    assert bench.records() == found
    assert not bench.strange_files()
    bench.check()
    for state in crash_states(recording, limit=16, seed=jobs):
        again = Bench(state.disk, clock=ManualClock())
        if state.synced_mark is not None:
            assert again.log.log_end == new_end, state.description
        else:
            assert new_end <= again.log.log_end <= bench_end(), state.description
        below = [one for one in again.records() if one.offset < new_end]
        assert {one for one in AFTER if one.offset < new_end} <= set(below), state.description
        again.check()
    bench.put(k9="after the truncation")
    bench.seal()
    bench.clean()
    assert bench.state()[b"k9"] == b"after the truncation"


def bench_end() -> int:
    return BEFORE[-1].offset + 1


def crash_copy(bench: Bench) -> SimDisk:
    """The disk as a power loss right now would leave it, with nothing unsynced kept."""
    return next(crash_states(sim_disk(bench).record(), limit=8, seed=1)).disk


@pytest.mark.parametrize("jobs", range(STEPS))
def test_the_log_starts_anew_between_steps(jobs: int) -> None:
    bench = after(jobs)
    bench.log.truncate_fully(Offset(500))
    bench.background.run_all()
    assert bench.records() == []
    assert not bench.strange_files()
    bench.put(a="1")
    again = Bench(crash_copy_after_flush(bench), clock=bench.clock)
    assert (again.log.log_start, again.log.log_end) == (500, 501)
    again.check()


def crash_copy_after_flush(bench: Bench) -> SimDisk:
    bench.log.flush()
    return crash_copy(bench)


@pytest.mark.parametrize("start", [7, 20, 38])
@pytest.mark.parametrize("jobs", range(STEPS))
def test_retention_between_steps_takes_what_it_wants(jobs: int, start: int) -> None:
    bench = after(jobs)
    bench.log.advance_log_start(Offset(start))
    bench.opened.owner.store(names.LOG_STARTS, {PARTITION: Offset(start)})
    bench.log.remove_segments_below_start()
    bench.background.run_all()
    assert bench.reports[0].end in (CleaningEnd.VOID, CleaningEnd.CLEANED)
    assert not bench.strange_files()
    bench.check()
    visible = [one for one in AFTER if one.offset >= start]
    assert set(visible) <= set(bench.records())
    assert bench.opened.owner.failure is None
    again = bench.reopened(is_clean=False)
    assert set(visible) <= set(again.records())
    again.check()


@pytest.mark.parametrize("jobs", range(STEPS))
def test_a_log_deleted_between_steps_is_left_alone(jobs: int) -> None:
    bench = after(jobs)
    bench.log.release()
    doomed = f"{ROOT}/gone-delete"
    bench.disk.rename(bench.log.context.directory, doomed)
    files = bench.disk.list_directory(doomed)
    bench.background.run_all()
    assert bench.reports[-1].end is CleaningEnd.ABANDONED
    assert bench.disk.list_directory(doomed) == files
    assert not bench.disk.exists(bench.log.context.directory)
    assert bench.opened.owner.failure is None
    remove_tree(bench.disk, doomed)


@pytest.mark.parametrize("jobs", range(STEPS))
def test_a_clean_stop_between_steps(jobs: int) -> None:
    bench = after(jobs)
    bench.cleaner.stop()
    bench.background.run_all()
    assert bench.reports[-1].end is CleaningEnd.ABANDONED
    again = bench.reopened(is_clean=True)
    check_content(again, f"stopped after {jobs} jobs")


def test_a_pinned_file_stays_readable_through_the_swap() -> None:
    bench = filled()
    result = bench.log.read(Offset(0), size_max=1 << 20, isolation=Isolation.HIGH_WATERMARK)
    pinned = result.data.file
    assert pinned is not None
    expected = result.data.read()
    file = pinned.pin()
    bench.clean()
    assert file.read_at(result.data.position, result.data.size_bytes) == expected
    pinned.unpin()


def test_replaced_files_go_after_the_delay() -> None:
    bench = filled()
    bench.clean()
    assert any(name.endswith(names.DELETED) for name in bench.files())
    bench.clock.advance(COMPACT.file_delete_delay_ms)
    bench.opened.owner.delete_due(bench.clock.monotonic_s())
    assert not any(name.endswith(names.DELETED) for name in bench.files())
    kept = [name for name in bench.files() if name.endswith(names.SNAPSHOT)]
    bases = {f"{segment.base_offset:020d}.snapshot" for segment in bench.log.segments}
    assert set(kept) <= bases, "snapshots of merged segments are gone too"


def test_steps_are_resumed_when_the_background_was_full() -> None:
    bench = filled()
    bench.cleaner.run_once()
    while not bench.reports:
        bench.background.room = 0
        bench.background.run_next()
        assert not bench.background.queue
        bench.background.room = 1
        bench.cleaner.run_once()
    assert bench.reports[0].end is CleaningEnd.CLEANED
    assert bench.records() == AFTER
