"""What goes wrong during a cleaning, how fast it may run, and real threads."""

import asyncio
import errno
import math
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from kits.storage.compaction_kit import (
    COMPACT,
    ROOT,
    Bench,
    StepBackground,
    filled,
    flush_now,
    full_clean_result,
    sim_disk,
    state_of,
)
from millstream.kernels.compression import Codec
from millstream.model.errors import CorruptRecords
from millstream.model.ids import BrokerEpoch, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.runtime.background import ThreadBackground
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.compaction.cleaner import Cleaner, CleanerLimits
from millstream.storage.compaction.log_cleaning import CleaningEnd, CleaningReport
from millstream.storage.compaction.source import OutputLimits, Pacing, Source, group_sources, walk
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.storage.throttle import CancelFlag, CleaningCancelled, Throttle
from millstream.testing.log_kit import PARTITION, read_all
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.disk_faults import DiskFault


def run(bench: Bench) -> CleaningReport:
    bench.cleaner.run_once()
    bench.background.run_all()
    return bench.reports[0]


def test_a_corrupt_batch_makes_one_log_uncleanable_and_the_others_go_on() -> None:
    disk, clock = SimDisk(directories=["/d0", "/d1"]), ManualClock()
    other = TopicPartition("other", 0)
    bad = Bench(disk, root="/d0", clock=clock)
    good = Bench(disk, root="/d1", clock=clock, partition=other)
    for bench in (bad, good):
        bench.put(a="1")
        bench.put(a="2")
        bench.seal()
    file = bad.log.segments.at(Offset(0)).log.open()
    file.write_at(65, b"\xff")
    background = StepBackground()
    cleaner = Cleaner(
        [bad.log, good.log],
        clock=clock,
        randomness=SeededRandomness(1),
        background=background,
        flush=flush_now,
    )
    reports: list[CleaningReport] = []
    cleaner.on_report = reports.append
    cleaner.run_once()
    background.run_all()
    assert [report.end for report in reports] == [CleaningEnd.CORRUPT, CleaningEnd.CLEANED]
    assert "CRC" in cleaner.uncleanable[PARTITION]
    assert good.values() == [(b"a", b"2")]
    assert not bad.strange_files()
    assert bad.opened.owner.failure is None
    bad.put(b="still writable")
    assert cleaner.run_once() is None


def test_a_full_disk_only_postpones() -> None:
    bench = filled()
    fault = DiskFault(operation="write", errno=errno.ENOSPC, path_part=".cleaned", times=None)
    sim_disk(bench).faults.plan(fault)
    assert run(bench).end is CleaningEnd.DISK_FULL
    assert not bench.strange_files()
    assert bench.opened.owner.failure is None
    assert bench.records() == filled().records()
    sim_disk(bench).faults.heal()
    assert bench.cleaner.run_once() is None, "not at once again"
    bench.clock.advance(60_000)
    bench.clean()
    assert bench.values()[-1] == (b"active", b"1")


@pytest.mark.parametrize(
    ("operation", "path_part"),
    [
        ("read", ".log"),
        ("sync", ".log.cleaned"),
        ("sync", ".timeindex.cleaned"),
        ("rename", ".index.cleaned"),
        ("rename", ".log.swap"),
        ("rename", ".deleted"),
        ("sync_directory", ""),
    ],
)
def test_any_other_disk_error_takes_the_directory_offline(operation: str, path_part: str) -> None:
    bench = filled()
    fault = DiskFault(operation=operation, errno=errno.EIO, path_part=path_part)  # type: ignore[arg-type]
    sim_disk(bench).faults.plan(fault)
    assert run(bench).end is CleaningEnd.FAILED
    assert bench.opened.owner.failure is not None
    sim_disk(bench).faults.heal()
    sim_disk(bench).kill()
    again = Bench(sim_disk(bench).after_kill(), clock=bench.clock)
    assert set(full_clean_result()) <= set(again.records())
    again.check()


def test_a_batch_that_may_not_be_decompressed_is_named() -> None:
    bench = Bench()
    bench.append([(b"a", b"x" * 5000)], codec=Codec.GZIP)
    bench.seal()
    bench.log.config = replace(COMPACT, decompressed_batch_bytes_max=1000)
    assert run(bench).end is CleaningEnd.CORRUPT
    assert "decompresses to more" in bench.cleaner.uncleanable[PARTITION]


def test_a_file_cut_under_the_cleaner_is_an_error_not_an_endless_walk() -> None:
    """The truncation that did it voids the cleaning; its thread must come back to learn that."""
    bench = Bench()
    bench.put(a="1")
    size_bytes = bench.log.segments.active.size_bytes
    bench.put(a="2")
    bench.seal()
    segment = bench.log.segments.at(Offset(0))
    source = Source(Offset(0), Offset(2), segment.size_bytes, segment.log.path)
    segment.log.open().truncate(size_bytes)
    pacing = Pacing(Throttle(bench.clock), CancelFlag())
    with pytest.raises(CorruptRecords, match="ends too soon"):
        list(walk(bench.disk, source, pacing))


# -- pace


def test_the_throttle_keeps_reading_and_writing_under_the_limit() -> None:
    bench = filled()
    bench.cleaner.throttle.bytes_per_s = 1000.0
    start_s = bench.clock.monotonic_s()
    stats = run(bench).stats
    moved = 2 * stats.bytes_read + stats.bytes_written
    assert bench.clock.monotonic_s() - start_s >= moved / 1000
    assert bench.clock.monotonic_s() - start_s < 1.1 * moved / 1000 + 1


def test_unused_time_is_not_saved_up() -> None:
    clock, throttle, waits = paced(100.0)
    clock.advance(1_000_000)
    throttle.spend(50, CancelFlag())
    assert sum(waits) == pytest.approx(0.5)


def paced(bytes_per_s: float) -> tuple[ManualClock, Throttle, list[float]]:
    """A throttle whose pauses take no time, and how long they would have been."""
    clock, waits = ManualClock(), list[float]()

    def pause(_: CancelFlag, seconds: float) -> None:
        waits.append(seconds)
        clock.advance(round(seconds * 1000))

    return clock, Throttle(clock, bytes_per_s=bytes_per_s, pause=pause), waits


def test_a_changed_rate_counts_for_the_pause_that_has_begun() -> None:
    """At a byte a second it would have been forever."""
    clock, waits = ManualClock(), list[float]()

    def pause(_: CancelFlag, seconds: float) -> None:
        waits.append(seconds)
        clock.advance(round(seconds * 1000))
        throttle.bytes_per_s = 1000.0

    throttle = Throttle(clock, bytes_per_s=1.0, pause=pause)
    throttle.spend(2000, CancelFlag())
    assert 2.0 <= sum(waits) <= 2.3


def test_a_rate_of_nothing_lets_nothing_through_until_it_is_raised() -> None:
    clock, waits = ManualClock(), list[float]()

    def pause(_: CancelFlag, seconds: float) -> None:
        waits.append(seconds)
        clock.advance(round(seconds * 1000))
        throttle.bytes_per_s = math.inf if len(waits) == 10 else 0

    throttle = Throttle(clock, bytes_per_s=0, pause=pause)
    throttle.spend(1, CancelFlag())
    assert len(waits) == 10


def test_what_could_not_wait_is_waited_for_by_the_next() -> None:
    _, throttle, waits = paced(100.0)
    throttle.note(100)
    assert not waits
    throttle.spend(100, CancelFlag())
    assert sum(waits) == pytest.approx(2.0)


def test_a_cancelled_cleaning_does_not_sit_out_its_pause() -> None:
    flag = CancelFlag()
    throttle = Throttle(ManualClock(), bytes_per_s=1.0, pause=lambda flag, _: flag.set())
    with pytest.raises(CleaningCancelled):
        throttle.spend(10**9, flag)
    flag.wait(10**6)  # set: returns at once


def test_without_a_limit_nothing_waits() -> None:
    def never(_: CancelFlag, __: float) -> None:
        raise AssertionError

    Throttle(ManualClock(), bytes_per_s=math.inf, pause=never).spend(10**12, CancelFlag())


# -- groups


def test_groups_respect_offset_span_and_index_size() -> None:
    def source(base: int, end: int, size: int = 10) -> Source:
        return Source(Offset(base), Offset(end), size, "")

    limits = OutputLimits(segment_bytes=100, segment_index_bytes=10**6, index_interval_bytes=10)
    near = [source(0, 10), source(10, 20), source(20, 30)]
    assert [len(group) for group in group_sources(near, limits)] == [3]
    wide = [source(0, 10), source(10, 2**31), source(2**31, 2**31 + 1)]
    assert [len(group) for group in group_sources(wide, limits)] == [2, 1]
    small_index = limits._replace(segment_index_bytes=24)
    assert [len(group) for group in group_sources(near, small_index)] == [2, 1]
    heavy = [source(0, 10, 60), source(10, 20, 40), source(20, 30, 1)]
    assert [len(group) for group in group_sources(heavy, limits)] == [2, 1]


# -- the manager and real threads


def topic_id(randomness: SeededRandomness) -> TopicId:
    return TopicId(UUID(bytes=randomness.bytes(16)))


def test_appends_go_on_while_real_threads_clean(tmp_path: Path) -> None:
    async def scenario() -> None:
        randomness = SeededRandomness(3)
        background = ThreadBackground(asyncio.get_running_loop())
        dependencies = StorageDependencies(OsDisk(), SystemClock(), randomness, background)
        limits = CleanerLimits(key_map_bytes=64 * 1024)
        manager = LogManager(dependencies, [str(tmp_path)], cleaner_limits=limits)
        config = replace(COMPACT, segment_bytes=16 * 1024, file_delete_delay_ms=0)
        manager.start(lambda *_: config)
        log = manager.create(TopicPartition("t", 0), topic_id(randomness), config)
        expected: dict[bytes, bytes] = {}
        for number in range(600):
            pairs = [(b"k%d" % (number * n % 211), b"v%d" % number * 5) for n in range(1, 8)]
            log.append_as_leader(build_batch(pairs, BatchSpec()), leader_epoch=LeaderEpoch(0))
            expected.update(pairs)
            log.set_high_watermark(log.log_end)
            if number % 10 == 0:
                manager.flush_due()
                manager.store_checkpoints()
                manager.run_cleaner()
                manager.run_retention()
                await asyncio.sleep(0)
        reported, flushed = asyncio.Event(), asyncio.Event()
        manager.cleaner.on_report = lambda _: reported.set()
        manager.flush(log, lambda _: flushed.set())
        await flushed.wait()
        manager.store_checkpoints()
        # The first report may be of a cleaning that began before the flush.
        while log.first_dirty_offset < log.segments.active.base_offset:
            reported.clear()
            manager.run_cleaner()
            await reported.wait()
        manager.cleaner.stop()
        manager.store_checkpoints()
        assert await background.close(timeout_s=20) == []
        manager.close(broker_epoch=BrokerEpoch(1))
        inline = StepBackground()
        again = LogManager(
            StorageDependencies(OsDisk(), SystemClock(), randomness, inline), [str(tmp_path)]
        )
        again.start(lambda *_: config)
        log = again.get(TopicPartition("t", 0))
        assert log.first_dirty_offset > 1000
        assert state_of(read_all(log, size_max=1 << 20)) == expected
        again.close()

    asyncio.run(scenario())


def is_cleaning(manager: LogManager) -> bool:
    return manager.cleaner.in_progress == PARTITION


def test_the_manager_deletes_a_topic_under_the_cleaner() -> None:
    disk = SimDisk(directories=[ROOT])
    background = StepBackground()
    randomness = SeededRandomness(3)
    manager = LogManager(StorageDependencies(disk, ManualClock(), randomness, background), [ROOT])
    manager.start(lambda *_: COMPACT)
    for jobs in range(14):
        log = manager.create(PARTITION, topic_id(randomness), COMPACT)
        for number in range(30):
            pairs = [(b"k%d" % (number % 3), b"v" * 150)]
            log.append_as_leader(build_batch(pairs, BatchSpec()), leader_epoch=LeaderEpoch(0))
        log.set_high_watermark(log.log_end)
        log.flush()
        manager.store_checkpoints()
        manager.run_cleaner()
        assert is_cleaning(manager)
        for _ in range(jobs):
            background.run_next()
        manager.delete(PARTITION)
        log = manager.create(PARTITION, topic_id(randomness), COMPACT)
        background.run_all()
        assert not is_cleaning(manager)
        assert log.size_bytes == 0
        assert disk.list_directory(ROOT).count(str(PARTITION)) == 1
        names = disk.list_directory(f"{ROOT}/{PARTITION}")
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        manager.delete(PARTITION)
        background.run_all()
    manager.close()
