"""Compaction where it once went wrong: stopped, starved of descriptors, or told strange times."""

import errno
from dataclasses import replace

import pytest
from crc32c import crc32c

from kits.storage.compaction_kit import (
    COMPACT,
    RETENTION_MS,
    ROOT,
    Bench,
    StepBackground,
    filled,
    flush_now,
    full_clean_result,
    sim_disk,
)
from millstream.model.errors import InvalidRecords
from millstream.model.ids import LeaderEpoch, Offset, TopicPartition
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.compaction.cleaner import Cleaner
from millstream.storage.compaction.log_cleaning import CleaningEnd, CleaningReport
from millstream.storage.log.reader import Isolation
from millstream.testing.log_kit import PARTITION
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.crash_states import crash_states
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.disk_faults import DiskFault, DiskOperation

INT64_MIN = -(2**63)
AFTER = full_clean_result()


def step_count() -> int:
    bench = filled()
    bench.cleaner.run_once()
    return len(bench.background.run_all())


STEPS = step_count()


def after(jobs: int) -> Bench:
    bench = filled()
    bench.cleaner.run_once()
    for _ in range(jobs):
        assert bench.background.run_next() is not None
    return bench


def in_swap() -> Bench:
    """The first new segment has its place in memory; the old files are there under their names."""
    bench = filled()
    bench.cleaner.run_once()
    while not any(name.endswith(".log.swap") for name in bench.files()):
        bench.background.run_next()
    return bench


# -- stopped


@pytest.mark.parametrize("end", [3, 10, 25])
@pytest.mark.parametrize("jobs", range(STEPS))
def test_a_truncation_after_the_cleaner_stopped_is_not_undone(jobs: int, end: int) -> None:
    bench = after(jobs)
    bench.cleaner.stop()
    new_end = bench.log.truncate_to(Offset(end), is_unclean=True)
    found = bench.records()
    bench.background.run_all()
    assert bench.cleaner.in_progress is None
    again = bench.reopened(is_clean=True)
    assert again.log.log_end == new_end
    assert again.records() == found
    again.check()


def test_a_stop_that_cannot_settle_leaves_it_to_the_truncation() -> None:
    bench = in_swap()
    sim_disk(bench).faults.fail_next("sync_directory", errno.EMFILE)
    bench.cleaner.stop()
    bench.background.run_all()
    assert bench.opened.owner.failure is None
    new_end = bench.log.truncate_to(Offset(3), is_unclean=True)
    again = bench.reopened(is_clean=True)
    assert again.log.log_end == new_end
    again.check()


def test_a_stop_on_a_failed_disk_takes_the_directory_offline() -> None:
    bench = in_swap()
    sim_disk(bench).faults.fail_next("sync_directory", errno.EIO)
    bench.cleaner.stop()
    assert bench.opened.owner.failure is not None
    bench.background.run_all()
    assert bench.reports[-1].end is CleaningEnd.ABANDONED
    sim_disk(bench).kill()
    again = Bench(sim_disk(bench).after_kill(), clock=bench.clock)
    assert set(AFTER) <= set(again.records())
    again.check()


def test_a_stopped_cleaner_submits_nothing_more() -> None:
    """The background is closed next, and takes nothing from then on."""
    for jobs in range(STEPS):
        bench = after(jobs)
        bench.cleaner.stop()
        bench.background.run_next()
        assert not bench.background.queue, jobs
        assert bench.reports[-1].end is CleaningEnd.ABANDONED


# -- without free descriptors


@pytest.mark.parametrize(
    ("operation", "path_part"),
    [("open", ".txnindex"), ("open", "0.log"), ("open", ".log.cleaned"), ("open", ".index")],
)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_missing_descriptors_only_postpone(
    operation: DiskOperation, path_part: str, number: int
) -> None:
    bench = filled()
    bench.cleaner.run_once()
    sim_disk(bench).faults.fail_next(operation, number, path_part=path_part)
    bench.background.run_all()
    assert bench.reports[0].end is CleaningEnd.NO_DESCRIPTORS
    assert bench.opened.owner.failure is None
    assert not bench.strange_files()
    assert bench.cleaner.run_once() is None, "not at once again"
    bench.clock.advance(60_000)
    bench.clean()
    assert bench.records() == AFTER


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_a_log_that_could_not_be_weighed_is_postponed(number: int) -> None:
    bench = filled()
    bench.settle_watermarks()
    bench.log.config = replace(COMPACT, min_compaction_lag_ms=1)
    again = bench.reopened(is_clean=True)
    again.settle_watermarks()
    again.clock.advance(10)
    sim_disk(again).faults.fail_next("open", number)
    assert again.cleaner.run_once() is None
    assert again.opened.owner.failure is None
    assert again.cleaner.run_once() is None, "not at once again"
    again.clock.advance(60_000)
    again.clean()


@pytest.mark.parametrize("step", range(4))
def test_a_swap_without_descriptors_goes_on_later(step: int) -> None:
    bench = in_swap()
    for _ in range(step):
        bench.background.run_next()
    sim_disk(bench).faults.fail_next("sync_directory", errno.EMFILE)
    bench.background.run_all()
    assert bench.opened.owner.failure is None
    assert bench.cleaner.in_progress == PARTITION
    bench.cleaner.run_once()
    bench.background.run_all()
    assert bench.reports[0].end is CleaningEnd.CLEANED
    assert bench.records() == AFTER
    assert not bench.strange_files()


# -- a full disk


@pytest.mark.parametrize("jobs", range(STEPS))
def test_make_room_during_a_cleaning_leaves_no_hole(jobs: int) -> None:
    bench = after(jobs)
    bench.log.advance_log_start(Offset(24))
    recording = sim_disk(bench).record()
    assert bench.log.make_room() > 0
    found = bench.records()
    for state in crash_states(recording, limit=24, seed=jobs):
        again = Bench(state.disk, clock=ManualClock())
        bases = [segment.base_offset for segment in again.log.segments]
        all_offsets = {one.offset for one in again.records()}
        lowest = min(all_offsets)
        expected = {one.offset for one in AFTER if one.offset >= lowest}
        assert expected <= all_offsets, (state.description, bases)
    bench.background.run_all()
    assert bench.records() == found
    assert not bench.strange_files()
    assert bench.opened.owner.failure is None


def test_make_room_without_descriptors_does_not_lose_the_swap() -> None:
    bench = in_swap()
    bench.log.advance_log_start(Offset(24))
    sim_disk(bench).faults.fail_next("sync_directory", errno.EMFILE)
    with pytest.raises(OSError, match="open files"):
        bench.log.make_room()
    bench.background.run_all()
    assert bench.reports[0].end is CleaningEnd.VOID
    assert not bench.strange_files()
    assert bench.opened.owner.failure is None
    assert bench.log.make_room() > 0
    bench.check()


def test_an_abort_that_found_no_room_in_the_list_is_not_forgotten() -> None:
    """I-23. The marker is kept for records behind the map: readers still need it."""
    bench = Bench(SimDisk(directories=[ROOT]), key_map_bytes=24 * 4)
    bench.put(a="1", b="1", c="1")
    bench.put(a="2", b="2", c="2")
    bench.put(e="1")
    bench.in_transaction([(b"d", b"aborted")], producer_id=1, sequence=0)
    bench.end_transaction(producer_id=1, is_commit=False)
    bench.seal()
    expected = bench.state(Isolation.COMMITTED)
    fault = DiskFault(operation="write", errno=errno.ENOSPC, path_part=".txnindex", times=None)
    bench.cleaner.run_once()
    sim_disk(bench).faults.plan(fault)
    bench.background.run_all()
    assert bench.reports[0].end is CleaningEnd.DISK_FULL
    assert bench.state(Isolation.COMMITTED) == expected
    sim_disk(bench).faults.heal()
    bench.clock.advance(60_000)
    bench.clean()
    assert bench.state(Isolation.COMMITTED) == expected


# -- damage


def test_a_log_too_damaged_to_be_weighed_does_not_keep_others_from_their_turn() -> None:
    disk, clock = SimDisk(directories=["/d0", "/d1"]), ManualClock()
    config = replace(COMPACT, min_compaction_lag_ms=1)
    other = TopicPartition("other", 0)
    benches = [
        Bench(disk, config, root="/d0", clock=clock),
        Bench(disk, config, root="/d1", clock=clock, partition=other),
    ]
    for bench in benches:
        bench.put(a="1")
        bench.put(a="2")
        bench.seal()
    damaged, good = benches
    damaged = damaged.reopened(is_clean=True)
    damaged.settle_watermarks()
    clock.advance(10_000)
    segment = damaged.log.segments.at(Offset(0))
    with disk.open_write(segment.path(names.TIME_INDEX)) as file:
        file.truncate(5)
    with disk.open_write(segment.path(names.LOG)) as file:
        file.write_at(16, b"\x07")
    background, reports = StepBackground(), list[CleaningReport]()
    cleaner = Cleaner(
        [damaged.log, good.log],
        clock=clock,
        randomness=SeededRandomness(1),
        background=background,
        flush=flush_now,
    )
    cleaner.on_report = reports.append
    assert cleaner.run_once() == other
    background.run_all()
    assert [(one.partition, one.end) for one in reports] == [
        (PARTITION, CleaningEnd.CORRUPT),
        (other, CleaningEnd.CLEANED),
    ]
    assert list(cleaner.uncleanable) == [PARTITION]
    assert good.values() == [(b"a", b"2")]
    assert cleaner.run_once() is None
    assert len(reports) == 2, "reported once"


# -- strange times


@pytest.mark.parametrize("stamp", [INT64_MIN, INT64_MIN + 5, INT64_MIN + 2**41, -(2**62), -1, 5])
@pytest.mark.parametrize("retention_ms", [RETENTION_MS, 2**63 - 1])
def test_compaction_alters_no_timestamp(stamp: int, retention_ms: int) -> None:
    bench = Bench(config=replace(COMPACT, delete_retention_ms=retention_ms))
    bench.append([(b"k", None), (b"j", b"v"), (b"i", b"old")], timestamps=[stamp, stamp + 1, stamp])
    bench.seal()
    bench.put(i="new")
    bench.seal()
    before = bench.records()
    bench.clean()
    assert bench.records() == [one for one in before if one.value != b"old"]


# -- what clients may claim


def batch_with_horizon() -> bytearray:
    batch = bytearray(build_batch([(b"k", None)], BatchSpec()))
    batch[22] |= 0x40
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


def test_a_client_must_not_set_the_delete_horizon() -> None:
    """Its tombstones would be gone before slow readers had seen them."""
    bench = Bench()
    with pytest.raises(InvalidRecords, match="horizon"):
        bench.log.append_as_leader(batch_with_horizon(), leader_epoch=LeaderEpoch(0))
    assert bench.log.log_end == 0


def test_a_follower_takes_the_horizon_its_leader_set() -> None:
    bench = Bench()
    bench.log.append_as_follower(batch_with_horizon())
    assert bench.log.log_end == 1
