"""Descriptors: bounded, shared by all segments, and safe while one is held."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, ROOT, Story, batch_of
from millstream.model.errors import TooManyOpenFiles
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs
from millstream.model.invariant import InvariantViolated
from millstream.runtime.os_disk import OsDisk
from millstream.storage import names
from millstream.storage.log.base import LogContext
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.storage.segments.files import OpenFiles
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, open_log, read_all
from millstream.testing.record_batches import read_records
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.disk_faults import DiskFault


def pool_of(count: int, *, open_max: int) -> tuple[OpenFiles, list[str], SimDisk]:
    disk = SimDisk(directories=[ROOT])
    paths = [f"{ROOT}/{number}" for number in range(count)]
    for path in paths:
        with disk.open_write(path) as file:
            file.write_at(0, path.encode())
    return OpenFiles(disk, open_max=open_max), paths, disk


def test_no_more_than_the_limit_stay_open() -> None:
    """I-37."""
    pool, paths, _ = pool_of(20, open_max=4)
    handles = [pool.file(path) for path in paths]
    assert pool.open_count == 0
    for _ in range(3):
        for handle in handles:
            assert handle.open().read_at(0, 99) == handle.path.encode()
            assert pool.open_count <= 4


def test_a_pinned_file_survives_the_rush_for_descriptors() -> None:
    pool, paths, _ = pool_of(20, open_max=3)
    handles = [pool.file(path) for path in paths]
    pinned = handles[0].pin()
    for handle in handles[1:]:
        handle.open()
    assert pinned.read_at(0, 99) == paths[0].encode()
    handles[0].unpin()
    for handle in handles[1:]:
        handle.open()
    with pytest.raises(OSError, match="Bad file descriptor"):
        pinned.read_at(0, 1)


def test_pins_may_pass_the_limit_and_fall_below_it_again() -> None:
    pool, paths, _ = pool_of(9, open_max=3)
    handles = [pool.file(path) for path in paths]
    for handle in handles:
        handle.pin()
    assert pool.open_count == 9
    for handle in handles:
        handle.unpin()
    pool.file(paths[0]).open()
    assert pool.open_count <= 3


def test_a_file_that_leaves_is_closed_with_its_last_pin() -> None:
    pool, paths, disk = pool_of(1, open_max=3)
    handle = pool.file(paths[0])
    file = handle.pin()
    handle.pin()
    handle.forget()
    disk.remove(paths[0])
    handle.unpin()
    assert file.read_at(0, 99) == paths[0].encode()
    handle.unpin()
    assert pool.open_count == 0


def test_unpinning_twice_is_our_bug() -> None:
    pool, paths, _ = pool_of(1, open_max=3)
    handle = pool.file(paths[0])
    handle.pin()
    handle.unpin()
    with pytest.raises(InvariantViolated):
        handle.unpin()


def test_a_vanished_segment_does_not_come_back_empty() -> None:
    pool, paths, disk = pool_of(1, open_max=3)
    disk.remove(paths[0])
    with pytest.raises(FileNotFoundError):
        pool.file(paths[0]).open()
    assert not disk.exists(paths[0])


def test_when_the_process_runs_out_of_descriptors_ours_are_given_back() -> None:
    pool, paths, disk = pool_of(6, open_max=100)
    for path in paths[:5]:
        pool.file(path).open()
    disk.faults.plan(DiskFault(operation="open", errno=errno.EMFILE, times=3))
    assert pool.file(paths[5]).open().read_at(0, 99) == paths[5].encode()
    assert pool.open_count == 3


# -- a log on few descriptors


def limited(story: Story, open_max: int) -> Log:
    """The story's log again, with so few descriptors that everything must share."""
    story.store_checkpoints()
    story.opened.close()
    story.open(is_clean=True)
    story.log.context.files._open_max = open_max
    return story.log


@pytest.mark.parametrize("open_max", [1, 2, 3])
def test_one_descriptor_is_enough_for_everything(open_max: int) -> None:
    story = Story()
    story.fill(80)
    log = limited(story, open_max)
    story.replicate_all()
    assert len(story.values()) == 80
    found = log.find_timestamp(TimestampMs(NOW + 50))
    assert found is not None
    assert found.offset == 50
    story.fill(40)
    log.flush()
    log.truncate_to(Offset(70), is_unclean=True)
    assert len(story.values()) == 70
    story.log.context.files._open_max = open_max
    story.kill()
    assert len(story.values()) == 70


def test_without_a_free_descriptor_a_read_is_refused_and_the_directory_stays() -> None:
    """Too many connections must not take a healthy disk offline."""
    story = Story()
    story.fill(60)
    log = limited(story, 2)
    story.disk.faults.plan(DiskFault(operation="open", errno=errno.EMFILE, times=None))
    with pytest.raises(TooManyOpenFiles):
        log.read(Offset(0), size_max=100, isolation=Isolation.LOG_END)
    with pytest.raises(TooManyOpenFiles):
        log.find_timestamp(TimestampMs(NOW))
    assert story.opened.owner.failure is None
    story.disk.faults.heal()
    assert len(story.values()) == 60


def test_a_slice_being_sent_survives_retention_and_removal() -> None:
    """A file range keeps its segment open until the last byte left."""
    story = Story()
    story.fill(60)
    story.replicate_all()
    data = story.log.read(Offset(0), size_max=1500, isolation=Isolation.HIGH_WATERMARK).data
    assert data.file is not None
    file = data.file.pin()
    story.log.advance_log_start(Offset(60))
    story.opened.owner.store(names.LOG_STARTS, {PARTITION: Offset(60)})
    assert story.log.remove_segments_below_start() > 1
    story.clock.advance(10**9)
    story.opened.owner.delete_due(story.clock.monotonic_s())
    assert not story.disk.exists(f"{DIRECTORY}/{0:020d}.log")
    sent = file.read_at(data.position, data.size_bytes)
    assert [record.offset for record in read_records(sent)] == list(range(13))
    data.file.unpin()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_at(0, 1)


# -- the real thing


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """A process that may open 24 more files than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 25, hard))
    yield used + 25
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def many_segments(root: Path, count: int) -> Log:
    config = replace(SMALL_SEGMENTS, segment_bytes=200)
    opened = open_log(OsDisk(), ManualClock(), config, root=str(root))
    for number in range(count):
        opened.log.append_as_leader(
            batch_of(b"%040d" % number, stamps=[NOW]), leader_epoch=LeaderEpoch(0)
        )
    assert len(opened.log.segments) == count
    return opened.log


def test_a_thousand_segments_are_read_with_a_handful_of_descriptors(
    tmp_path: Path, few_descriptors: int
) -> None:
    """I-37, row 27 of the fault table: RLIMIT_NOFILE is far below the number of files."""
    log = many_segments(tmp_path, 1000)
    before = len(os.listdir("/proc/self/fd"))
    offsets = [record.offset for record in read_all(log)]
    assert offsets == list(range(1000))
    assert log.context.files.open_count <= 4
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_descriptors_taken_by_others_are_found_in_the_pool(
    tmp_path: Path, few_descriptors: int
) -> None:
    log = many_segments(tmp_path, 30)
    log.context.files._open_max = 1000
    for start in range(12):
        log.read(Offset(start), size_max=1, isolation=Isolation.LOG_END).data.read()
    taken: list[int] = []
    with suppress(OSError):
        while True:
            taken.append(os.open(tmp_path, os.O_RDONLY))
    try:
        # Descriptors of segments already open are given back for those that are not.
        data = log.read(Offset(0), size_max=1, isolation=Isolation.LOG_END).data.read()
        assert [record.offset for record in read_records(data)] == [0]
        log.segments.closed[25].log.open()
    finally:
        for number in taken:
            os.close(number)
    assert len(list(read_all(log))) == 30
    assert isinstance(log.context, LogContext)
    assert log.owner.failure is None
