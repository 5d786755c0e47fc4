"""Few descriptors: flushes hold a bounded number, and running out of them breaks nothing."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kits.storage.compaction_kit import StepBackground
from kits.storage.log_stories import ROOT, Story
from kits.storage.manager_stories import ONE, TOPIC_ID, TWO, Broker
from millstream.model.errors import DiskFull, OperatingError, StorageFailed, TooManyOpenFiles
from millstream.model.ids import Offset, TopicPartition
from millstream.model.limits import OPEN_FILES_MAX
from millstream.storage import names
from millstream.storage.directories.checkpoints import read_offsets
from millstream.storage.flush import (
    SEGMENTS_PER_FLUSH_MAX,
    SMALL_FILES_AT_ONCE_MAX,
    GroupCommit,
)
from millstream.storage.manager.log_manager import NewPartition
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS
from millstream.testing.sim.crash_fates import keep_all, keep_none
from millstream.testing.sim.disk import SimDisk, SimFile
from millstream.testing.sim.disk_faults import DiskFault, DiskOperation, os_error
from millstream.testing.sim.durability import FateChooser

FlushResults = list[OperatingError | None]

TINY_SEGMENTS = SMALL_SEGMENTS.__class__(
    segment_bytes=300, index_interval_bytes=100, file_delete_delay_ms=0, retention_ms=-1
)
"""Two or three batches each."""

FEW = SEGMENTS_PER_FLUSH_MAX + SMALL_FILES_AT_ONCE_MAX + 8
"""What the flush of one log may hold open, with a few for other uses."""


class Peak:
    """The largest number of files that were open at once."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    seen = Peak()
    original = SimDisk._opened

    def opened(disk: SimDisk, path: str, *, is_writable: bool) -> SimFile:
        file = original(disk, path, is_writable=is_writable)
        seen.count = max(seen.count, len(disk._handles))
        return file

    monkeypatch.setattr(SimDisk, "_opened", opened)
    return seen


def long_log_without_a_recovery_point(segments: int = 200) -> Story:
    """Everything must be synced again, as after a damaged checkpoint."""
    story = Story(TINY_SEGMENTS)
    while len(story.log.segments) < segments:
        story.fill(1)
    story.kill()
    assert story.log.recovery_point == 0
    return story


@contextmanager
def no_descriptor(
    disk: SimDisk,
    operation: DiskOperation,
    path_part: str,
    *,
    number: int = errno.EMFILE,
    times: int | None = None,
) -> Iterator[None]:
    """Files or directories cannot be opened. Nothing was synced then, so no sync failed either."""
    if operation != "sync_directory":
        disk.faults.plan(
            DiskFault(operation=operation, errno=number, path_part=path_part, times=times)
        )
        yield
        disk.faults.heal()
        return
    left = [times if times is not None else 1000]
    original = SimDisk.sync_directory

    def sync_directory(self: SimDisk, path: str) -> None:
        if path_part in path and left[0]:
            left[0] -= 1
            raise os_error(number, path)
        original(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimDisk, "sync_directory", sync_directory)
        yield
    assert left[0] < (times or 1000), "it must have been met"


# -- bounded


def test_a_log_of_many_segments_is_flushed_with_few_files_open(peak: Peak) -> None:
    story = long_log_without_a_recovery_point()
    peak.count = 0
    story.log.flush()
    assert peak.count <= FEW
    assert story.log.recovery_point == story.log.log_end
    assert story.log.begin_flush() is None
    count = len(story.values())
    story.store_checkpoints()
    story.lose_power()
    assert len(story.values()) == count


def test_a_log_of_many_segments_is_closed_with_few_files_open(peak: Peak) -> None:
    story = long_log_without_a_recovery_point()
    end = story.log.log_end
    peak.count = 0
    story.restart()
    assert peak.count <= FEW
    assert story.opened.report.recovered_segments == 0
    assert story.log.log_end == end


def test_who_waits_for_many_segments_is_told_after_the_last() -> None:
    """I-01: the rounds in between are not visible."""
    story = long_log_without_a_recovery_point()
    background = StepBackground()
    commit = GroupCommit(story.opened.owner, background)
    results: FlushResults = []
    commit.request(story.log, results.append)
    points = []
    while background.run_next() is not None:
        points.append(story.log.recovery_point)
        assert results == ([None] if story.log.recovery_point == story.log.log_end else [])
    assert len(points) == -(-len(story.log.segments) // SEGMENTS_PER_FLUSH_MAX)
    assert points == sorted(set(points))
    assert results == [None]
    story.lose_power()
    assert story.log.log_end == points[-1]


def test_a_failure_in_a_later_round_is_told() -> None:
    story = long_log_without_a_recovery_point()
    background = StepBackground()
    commit = GroupCommit(story.opened.owner, background)
    results: FlushResults = []
    commit.request(story.log, results.append)
    background.run_next()
    story.disk.faults.fail_next("sync", path_part=".log")
    background.run_all()
    assert [type(one) for one in results] == [StorageFailed]


def test_a_job_that_covers_a_part_trusts_no_more_than_that() -> None:
    """Power goes between two rounds: what the checkpoint says is there is there."""
    story = long_log_without_a_recovery_point()
    background = StepBackground()
    GroupCommit(story.opened.owner, background).request(story.log, lambda _: None)
    background.run_next()
    point = story.log.recovery_point
    assert 0 < point < story.log.log_end
    story.store_checkpoints()
    story.lose_power()
    assert story.log.log_end >= point
    assert len(story.values()) == story.log.log_end


def many(broker: Broker, count: int) -> list[TopicPartition]:
    partitions = [TopicPartition("many", number) for number in range(count)]
    wanted = [NewPartition(one, TOPIC_ID, broker.config) for one in partitions]
    broker.manager.create_many(wanted)
    for one in partitions:
        broker.put(one, b"a")
    return partitions


def test_many_logs_due_at_once_are_flushed_in_groups(peak: Peak) -> None:
    background = StepBackground()
    config = SMALL_SEGMENTS.__class__(flush_messages=1)
    broker = Broker(config=config, background=background)
    partitions = many(broker, 700)
    peak.count = 0
    broker.manager.flush_due()
    assert broker.manager.files.open_count <= OPEN_FILES_MAX
    background.run_all()
    assert peak.count <= OPEN_FILES_MAX + FEW
    assert all(broker.manager.get(one).recovery_point == 1 for one in partitions)


def test_many_long_logs_are_closed_with_few_files_open(peak: Peak) -> None:
    broker = Broker(config=TINY_SEGMENTS)
    partitions = many(broker, 10)
    for one in partitions:
        broker.fill(one, 160)
    peak.count = 0
    broker.stop()
    assert peak.count <= OPEN_FILES_MAX + FEW
    broker.start()
    assert broker.report.unclean_directories == []
    assert all(len(broker.values(one)) == 161 for one in partitions)


def test_a_group_that_runs_out_of_descriptors_goes_on_with_what_it_has() -> None:
    background = StepBackground()
    broker = Broker(background=background)
    broker.create(ONE, TWO)
    results: FlushResults = []
    broker.put(ONE, b"a")
    broker.put(TWO, b"b")
    broker.manager.files.close()
    broker.restart()
    broker.put(ONE, b"a")
    broker.put(TWO, b"b")
    shortage = DiskFault(operation="open", errno=errno.EMFILE, path_part="events-1", times=None)
    background.room = 0
    broker.manager.flush(broker.manager.get(ONE), results.append)
    broker.manager.flush(broker.manager.get(TWO), results.append)
    for segment in broker.manager.get(TWO).segments:
        segment.log._close()
    broker.disk.faults.plan(shortage)
    background.room = 100
    broker.manager.flush_due()
    background.run_next()
    assert results[0] is None
    assert [type(one) for one in results[1:]] == [TooManyOpenFiles]
    assert broker.manager.offline_partitions == []


# -- refused, not failed

SHORTAGES: list[tuple[DiskOperation, str]] = [
    ("open", "index"),
    ("open", "snapshot"),
    ("open", names.LEADER_EPOCHS),
    ("sync_directory", "events-0"),
]


def flush_now(story: Story) -> OperatingError | None:
    try:
        story.log.flush()
    except OperatingError as error:
        return error
    return None


def flush_in_group(story: Story) -> OperatingError | None:
    background = StepBackground()
    results: FlushResults = []
    GroupCommit(story.opened.owner, background).request(story.log, results.append)
    background.run_all()
    assert len(results) == 1
    return results[0]


@pytest.mark.parametrize("flush", [flush_now, flush_in_group])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(("operation", "path_part"), SHORTAGES)
def test_a_flush_without_descriptors_is_refused_and_works_later(
    operation: DiskOperation,
    path_part: str,
    number: int,
    flush: Callable[[Story], OperatingError | None],
) -> None:
    story = Story()
    story.fill(60)
    with no_descriptor(story.disk, operation, path_part, number=number):
        assert isinstance(flush(story), TooManyOpenFiles)
    assert story.opened.owner.failure is None
    assert story.log.recovery_point == 0
    story.fill(1)
    assert flush(story) is None
    assert story.log.recovery_point == 61
    story.lose_power()
    assert len(story.values()) == 61
    assert story.log.latest_epoch == 0


@pytest.mark.parametrize("flush", [flush_now, flush_in_group])
@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_a_failure_whatever_the_reason(
    operation: DiskOperation, number: int, flush: Callable[[Story], OperatingError | None]
) -> None:
    """A full disk may be found out by the sync, and the pages are gone then."""
    story = Story()
    story.fill(3)
    story.log.flush()
    story.log.roll()
    story.fill(3)
    story.disk.faults.fail_next(operation, number, path_part="events-0")
    assert isinstance(flush(story), StorageFailed)
    assert story.opened.owner.failure is not None


@pytest.mark.parametrize("flush", [flush_now, flush_in_group])
def test_a_vanished_segment_fails_the_flush_and_leaves_no_file_pinned(
    flush: Callable[[Story], OperatingError | None],
) -> None:
    story = Story()
    story.fill(60)
    gone = list(story.log.segments)[2].log
    gone._close()
    story.disk.remove(gone.path)
    assert isinstance(flush(story), StorageFailed)
    files = story.log.context.files
    files.close()
    assert files.open_count == 0


def test_upkeep_without_descriptors_goes_on_later() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 60)
    broker.replicate(ONE)
    for segment in broker.manager.get(ONE).segments:
        segment.forget()
    broker.restart()
    broker.fill(ONE, 1)
    broker.replicate(ONE)
    broker.disk.faults.plan(DiskFault(operation="open", errno=errno.EMFILE, times=None))
    broker.manager.store_checkpoints()
    broker.manager.run_retention()
    broker.manager.flush_due()
    assert broker.manager.offline_partitions == []
    broker.disk.faults.heal()
    broker.manager.store_checkpoints()
    assert broker.manager.directories[0].stored(names.HIGH_WATERMARKS, ONE) == 61


# -- checkpoints


def on_disk(story: Story, name: str) -> Offset:
    return read_offsets(story.disk, f"{ROOT}/{name}")[PARTITION]


def test_a_checkpoint_without_descriptors_stays_as_it_was() -> None:
    story = Story()
    owner = story.opened.owner
    owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(1)})
    story.disk.faults.plan(DiskFault(operation="open", errno=errno.EMFILE, times=None))
    with pytest.raises(TooManyOpenFiles):
        owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(2)})
    story.disk.faults.heal()
    assert owner.failure is None
    assert owner.stored(names.HIGH_WATERMARKS, PARTITION) == 1
    assert on_disk(story, names.HIGH_WATERMARKS) == 1


@pytest.mark.parametrize("choose", [keep_none, keep_all])
def test_memory_and_disk_agree_after_a_checkpoints_directory_could_not_be_opened(
    choose: FateChooser,
) -> None:
    """A truncation lowers what is stored; it must know what that is (I-08, I-11)."""
    story = Story()
    owner = story.opened.owner
    story.fill(100)
    story.replicate_all()
    story.log.flush()
    owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(10)})
    with no_descriptor(story.disk, "sync_directory", ROOT, times=1):
        owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(100)})
    assert owner.stored(names.HIGH_WATERMARKS, PARTITION) == 100
    story.log.truncate_to(Offset(20), is_unclean=True)
    story.fill(90)
    story.lose_power(choose)
    assert story.log.high_watermark == 20


@pytest.mark.parametrize(
    ("number", "times"), [(errno.EMFILE, None), (errno.ENOSPC, 1), (errno.EIO, 1)]
)
def test_a_checkpoint_that_may_or_may_not_be_there_fails_the_directory(
    number: int, times: int | None
) -> None:
    story = Story()
    owner = story.opened.owner
    owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(10)})
    story.disk.faults.plan(
        DiskFault(operation="sync_directory", errno=number, path_part=ROOT, times=times)
    )
    with pytest.raises(StorageFailed):
        owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(100)})
    assert owner.failure is not None


def test_forgetting_a_partition_without_descriptors_is_made_up_for() -> None:
    story = Story()
    owner = story.opened.owner
    for name in (names.HIGH_WATERMARKS, names.LOG_STARTS):
        owner.store(name, {PARTITION: Offset(0)})
    shortage = DiskFault(operation="open", errno=errno.EMFILE, times=None)
    story.disk.faults.plan(shortage)
    with pytest.raises(TooManyOpenFiles):
        owner.forget(PARTITION)
    story.disk.faults.heal()
    owner.forget(PARTITION)
    for name in (names.HIGH_WATERMARKS, names.LOG_STARTS):
        assert read_offsets(story.disk, f"{ROOT}/{name}") == {}


def test_a_full_disk_during_a_checkpoint_changes_nothing() -> None:
    story = Story()
    owner = story.opened.owner
    owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(1)})
    story.disk.storage.capacity_bytes = 0
    with pytest.raises(DiskFull):
        owner.store(names.HIGH_WATERMARKS, {PARTITION: Offset(2)})
    assert owner.stored(names.HIGH_WATERMARKS, PARTITION) == 1
    assert on_disk(story, names.HIGH_WATERMARKS) == 1


# -- deletion and start


@pytest.mark.parametrize("operation", ["sync_directory", "list"])
def test_a_partition_is_deleted_without_descriptors(operation: DiskOperation) -> None:
    broker = Broker()
    broker.create(ONE)
    broker.put(ONE, b"value")
    with no_descriptor(broker.disk, operation, broker.roots[0]):
        broker.manager.delete(ONE)
    assert broker.manager.directories[0].failure is None
    broker.create(ONE)
    assert broker.values(ONE) == []
    broker.manager.run_retention()
    left = [name for name in broker.disk.list_directory("/a") if names.is_deleted_directory(name)]
    assert not left, "what could not be removed at once is removed later"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_partition_that_cannot_be_loaded_for_want_of_descriptors_costs_no_other(
    number: int,
) -> None:
    broker = Broker()
    broker.create(ONE, TWO)
    for partition in (ONE, TWO):
        broker.put(partition, b"value")
    broker.stop()
    with no_descriptor(broker.disk, "open", f"/a/{ONE}/0", number=number):
        report = broker.start()
    assert list(report.unusable_partitions) == [ONE]
    assert not report.failed_directories
    assert broker.values(TWO) == [b"value"]
    broker.restart()
    assert broker.values(ONE) == [b"value"]


@pytest.mark.parametrize(
    ("operation", "part"), [("list", "/a"), ("open", names.RECOVERY_POINTS), ("open", "/a/.kafka")]
)
def test_a_directory_that_cannot_be_looked_at_for_want_of_descriptors_did_not_fail(
    operation: DiskOperation, part: str
) -> None:
    """The start is refused, and the next one finds everything."""
    broker = Broker(roots=("/a", "/b"))
    broker.create(ONE, TWO)
    for partition in (ONE, TWO):
        broker.put(partition, b"value")
    broker.stop()
    with no_descriptor(broker.disk, operation, part), pytest.raises(TooManyOpenFiles):
        broker.start()
    report = broker.start()
    assert not report.failed_directories
    assert [broker.values(one) for one in (ONE, TWO)] == [[b"value"]] * 2
