"""A partition moves to another log directory while it is written, read, cut and deleted."""

import asyncio
import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from log_stories import batch_of
from manager_stories import ONE, TOPIC_ID, TWO
from millstream.model.errors import OperatingError, StorageFailed, UnknownPartition
from millstream.model.ids import LeaderEpoch, Offset, TopicPartition
from millstream.model.limits import KIB
from millstream.runtime.background import ThreadBackground
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import directory_move, move_copy, names
from millstream.storage.compaction.pacing import CancelFlag
from millstream.storage.directory_move import MoveEnd
from millstream.storage.log_directory import Withheld
from millstream.storage.log_reader import Isolation
from millstream.storage.manager import LogManager, Seams
from millstream.storage.move_queue import LogDirectoryNotFound, PartitionNameTooLong
from millstream.testing.crash_states import crash_states
from millstream.testing.disk_faults import DiskFault, DiskOperation
from millstream.testing.log_kit import COMPACTED, SMALL_SEGMENTS, read_all
from millstream.testing.sim_background import InlineBackground
from move_kit import A, B, Mover, facts_of, reopened


def make_steps_small(patch: pytest.MonkeyPatch) -> None:
    """Many steps for little data."""
    patch.setattr(move_copy, "CHUNK_BYTES", 512)
    patch.setattr(directory_move, "JOB_BYTES_MAX", 2048)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    make_steps_small(monkeypatch)


def after(jobs: int, mover: Mover | None = None) -> Mover:
    """A partition in the middle of its move."""
    mover = mover or Mover()
    mover.move()
    for _ in range(jobs):
        assert mover.steps.run_next() is not None
    return mover


def all_steps() -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        make_steps_small(patch)
        return after(0).steps.run_all()


STEPS = len(all_steps())


def test_a_move_has_all_steps() -> None:
    steps = all_steps()
    assert steps[0] == "copy"
    assert steps[-2:] == ["seal", "retire"]
    assert set(steps) == {"copy", "seal", "retire"}


def test_everything_is_there_afterwards() -> None:
    mover = Mover()
    before = mover.facts()
    mover.move()
    assert mover.finish() is MoveEnd.MOVED
    assert mover.facts() == before
    assert mover.places() == [B]
    assert mover.log.owner.path == B
    assert not mover.strange_names()
    assert mover.log.cleaning is None


@pytest.mark.parametrize("jobs", range(STEPS + 1))
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_appends_between_any_two_steps(jobs: int, end: str) -> None:
    mover = after(jobs)
    mover.put(b"during")
    mover.broker.fill(ONE, 30)
    mover.put(b"more")
    mover.broker.replicate(ONE)
    assert mover.finish() is MoveEnd.MOVED
    mover.put(b"later")
    values = [record.value for record in mover.records()]
    assert [one for one in values if one in (b"during", b"more", b"later")] == [
        b"during",
        b"more",
        b"later",
    ]
    found = mover.facts()
    if end == "kill":
        mover.kill()
        mover.broker.start()
    else:
        mover.broker.restart()
    assert mover.facts() == found
    assert mover.log.owner.path == B
    assert not mover.strange_names()


def test_a_slice_being_sent_outlives_the_move() -> None:
    mover = Mover()
    result = mover.log.read(Offset(0), size_max=300, isolation=Isolation.LOG_END)
    file = result.data.file
    assert file is not None
    file.pin()
    expected = result.data.read()
    mover.move()
    mover.finish()
    assert result.data.read() == expected
    file.unpin()


@pytest.mark.parametrize("jobs", range(STEPS + 1))
def test_killed_between_any_two_steps(jobs: int) -> None:
    mover = after(jobs)
    mover.put(b"during")
    found = mover.facts()
    mover.kill()
    mover.broker.start()
    mover.watch()
    assert mover.facts() == found
    assert len(mover.places()) == 1
    mover.broker.manager.flush_due()
    mover.steps.run_all()
    assert mover.log.owner.path == B, "an interrupted move begins again"
    assert mover.facts() == found
    assert not mover.strange_names()


def test_power_lost_at_any_moment() -> None:
    """Whatever the disk kept: one copy, with all that was durable, and it can be written to."""
    mover = Mover(count=25)
    mover.log.flush()
    mover.broker.manager.store_checkpoints()
    durable = mover.facts()
    recording = mover.disk.record()
    mover.move()
    assert mover.finish() is MoveEnd.MOVED
    count = 0
    for state in crash_states(recording, limit=300, seed=3):
        manager, report = reopened(state.disk)
        assert not report.unusable_partitions, state.description
        assert not report.surplus_copies, state.description
        log = manager.get(ONE)
        assert facts_of(log) == durable, state.description
        manager.flush_due()
        assert log.owner.path == B or not manager.moves.in_progress(), state.description
        left = [*state.disk.list_directory(A), *state.disk.list_directory(B)]
        assert not [name for name in left if name.endswith("-future")], state.description
        assert facts_of(log) == durable, state.description
        count += 1
    assert count > 150


def test_what_was_flushed_while_moving_survives_a_power_loss() -> None:
    mover = Mover(count=25)
    recording = mover.disk.record()
    mover.move()
    number = 0
    while mover.steps.queue:
        number += 1
        mover.put(b"promise %d" % number)
        mover.log.flush()
        mover.disk.mark(number)
        mover.steps.run_next()
    for _ in range(3):
        number += 1
        mover.put(b"promise %d" % number)
        mover.log.flush()
        mover.disk.mark(number)
    assert mover.reports[-1].end is MoveEnd.MOVED
    for state in crash_states(recording, limit=300, seed=4):
        manager, report = reopened(state.disk)
        assert not report.unusable_partitions, state.description
        promised = state.synced_mark
        assert promised is None or isinstance(promised, int)
        values = [record.value for record in read_all(manager.get(ONE))]
        for one in range(1, (promised or 0) + 1):
            assert b"promise %d" % one in values, state.description


def test_who_waits_for_a_flush_is_told_and_it_is_true() -> None:
    """The flush began before the move ended; what it promised must hold in the new directory."""
    mover = Mover(count=25)
    mover.move()
    while mover.steps.queue[0].name.rpartition(": ")[2] != "seal":
        mover.steps.run_next()
    mover.put(b"promise")
    told: list[OperatingError | None] = []
    mover.broker.manager.flush(mover.log, told.append)
    flush = mover.steps.queue.pop()
    seal = mover.steps.queue.popleft()
    mover.put(b"also promised")
    mover.broker.manager.flush(mover.log, told.append)
    mover.steps.queue.append(seal)
    mover.steps.run_next()
    assert mover.log.owner.path == B
    mover.steps.queue.appendleft(flush)
    mover.steps.run_all()
    assert told == [None, None]
    mover.lose_power()
    mover.broker.start()
    values = [record.value for record in mover.records()]
    assert b"promise" in values
    assert b"also promised" in values


def test_a_flush_that_waited_blames_the_directory_it_happens_in() -> None:
    mover = after(STEPS - 1)
    assert mover.log.owner.path == B
    mover.put(b"more")
    told: list[OperatingError | None] = []
    commits = mover.broker.manager._commits
    mover.disk.faults.fail_next("sync", path_part=".log")
    commits[A].request(mover.log, told.append)
    mover.steps.run_all()
    assert isinstance(told[0], StorageFailed)
    assert told[0].directory == B
    assert mover.broker.manager.directories[0].failure is None


@pytest.mark.parametrize("jobs", range(STEPS))
def test_what_was_truncated_does_not_come_back(jobs: int) -> None:
    mover = after(jobs)
    moved = mover.log.owner.path == B
    mover.log.truncate_to(Offset(20), is_unclean=True)
    mover.broker.fill(ONE, 15)
    mover.put(b"instead")
    found = mover.facts()
    assert mover.finish() is MoveEnd.MOVED
    assert mover.facts() == found
    assert moved or mover.log.owner.path == B
    mover.kill()
    mover.broker.start()
    assert mover.facts() == found


@pytest.mark.parametrize("jobs", range(STEPS))
@pytest.mark.parametrize("before", [7, 30, 61])
def test_what_was_deleted_does_not_come_back(jobs: int, before: int) -> None:
    mover = after(jobs)
    mover.broker.manager.delete_records(ONE, Offset(before))
    mover.broker.manager.run_retention()
    found = mover.facts()
    assert mover.finish() is MoveEnd.MOVED
    assert mover.facts() == found
    bases = [segment.base_offset for segment in mover.log.segments]
    mover.broker.manager.run_retention()
    stored = [names.parse_segment_file(one) for one in mover.disk.list_directory(f"{B}/{ONE}")]
    logs = [one[0] for one in stored if one is not None and one[1] == names.LOG]
    assert logs == bases
    mover.kill()
    mover.broker.start()
    assert mover.log.log_start == before
    assert mover.facts() == found


@pytest.mark.parametrize("jobs", range(STEPS))
def test_the_partition_is_deleted_and_made_anew(jobs: int) -> None:
    mover = after(jobs)
    mover.broker.manager.delete(ONE)
    mover.broker.create(ONE)
    mover.put(b"a new life")
    mover.steps.run_all()
    assert [record.value for record in mover.records()] == [b"a new life"]
    assert not mover.strange_names()
    mover.broker.restart()
    assert [record.value for record in mover.records()] == [b"a new life"]
    assert len(mover.places()) == 1


@pytest.mark.parametrize("jobs", range(STEPS - 1))
def test_moving_back_cancels(jobs: int) -> None:
    mover = after(jobs)
    found = mover.facts()
    mover.move(A)
    assert not mover.broker.manager.moves.in_progress()
    assert mover.finish() is MoveEnd.CANCELLED
    assert mover.facts() == found
    assert mover.places() == [A]
    assert not mover.strange_names()
    mover.move(B)
    assert mover.finish() is MoveEnd.MOVED
    assert mover.facts() == found


OPERATIONS: list[DiskOperation] = [
    "open",
    "write",
    "truncate",
    "sync",
    "list",
    "remove",
    "rename",
    "sync_directory",
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_target_that_fails_costs_nothing(operation: DiskOperation, number: int) -> None:
    """The n-th call of every kind fails, for every n until the move does not meet it."""
    for skip in range(80):
        mover = Mover(count=20)
        mover.put(b"before")
        fault = DiskFault(operation=operation, errno=number, path_part=f"{B}/", skip=skip)
        mover.disk.faults.plan(fault)
        with suppress(OperatingError):
            mover.move()
        mover.steps.run_all()
        is_met = not fault.times
        mover.disk.faults.heal()
        check_after_failure(mover, f"{operation} number {skip}")
        if not is_met:
            assert mover.reports[-1].end is MoveEnd.MOVED
            return
    pytest.fail("the move never got through")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_source_that_fails_costs_nothing_that_moved(operation: DiskOperation) -> None:
    for skip in range(40):
        mover = Mover(count=20)
        mover.put(b"before")
        fault = DiskFault(operation=operation, errno=errno.EIO, path_part=f"{A}/", skip=skip)
        mover.disk.faults.plan(fault)
        mover.move()
        mover.steps.run_all()
        is_met = not fault.times
        mover.disk.faults.heal()
        check_after_failure(mover, f"{operation} number {skip}")
        if not is_met:
            return
    pytest.fail("the move never got through")


def check_after_failure(mover: Mover, what: str) -> None:
    """Where the log is usable it takes more; a restart finds all of it, in one place."""
    expected = [b"before"]
    with suppress(OperatingError):
        mover.put(b"after")
        expected.append(b"after")
    mover.kill()
    mover.broker.start()
    assert not mover.broker.report.unusable_partitions, what
    values = [record.value for record in mover.records()]
    assert values[0] == b"first", what
    assert [one for one in values if one in (b"before", b"after")] == expected, what
    assert len(mover.places()) == 1, what
    mover.put(b"and on")


@pytest.mark.parametrize("fate", ["kill", "power"])
def test_a_renaming_in_doubt_is_taken_back(fate: str) -> None:
    """B has the partition's name, but the broker could not be sure and went on in A."""
    mover = Mover()
    mover.disk.faults.fail_next("sync_directory", path_part="nothing")
    mover.move()
    while mover.steps.queue[0].name.rpartition(": ")[2] != "seal":
        mover.steps.run_next()
    plan_sync_failure_of_the_renaming(mover)
    mover.steps.run_all()
    assert mover.reports[-1].end is MoveEnd.FAILED
    assert mover.places() == [A, B]
    mover.put(b"went on")
    mover.log.flush()
    if fate == "kill":
        mover.kill()
    else:
        mover.lose_power()
    mover.broker.start()
    assert not mover.broker.report.unusable_partitions
    assert mover.records()[-1].value == b"went on"
    assert mover.places() == [A]
    if fate == "power":  # the renaming was lost: a move like any that was interrupted
        mover.broker.manager.flush_due()
        mover.steps.run_all()
        assert mover.places() == [B]
        assert mover.records()[-1].value == b"went on"
    assert not mover.strange_names()


def plan_sync_failure_of_the_renaming(mover: Mover) -> None:
    """The sync of B itself right after the rename; earlier ones are those of checkpoints."""
    disk = mover.disk
    real = disk.rename

    def rename(source: str, target: str) -> None:
        real(source, target)
        if target == f"{B}/{ONE}":
            disk.faults.fail_next("sync_directory", path_part=B)

    disk.rename = rename  # type: ignore[method-assign]


def test_a_source_whose_target_is_offline_is_not_used() -> None:
    """The partition may have gone on in B; what is left in A would be an old state."""
    mover = after(STEPS - 1)
    assert mover.log.owner.path == B
    mover.put(b"only in B")
    mover.disk.faults.fail_next("rename", path_part=f"{A}/")
    recording_state_with_both(mover)
    mover.kill()
    mover.disk.faults.fail_directory(B)
    mover.broker.start()
    assert ONE in mover.broker.report.unusable_partitions
    with pytest.raises(UnknownPartition):
        mover.broker.manager.get(ONE)
    mover.kill()
    mover.disk.faults.heal()
    mover.broker.start()
    assert mover.records()[-1].value == b"only in B"


def withdrawn() -> Mover:
    """The renaming in B was in doubt, so the broker went on in A; both have the partition."""
    mover = Mover()
    mover.move()
    while mover.steps.queue[0].name.rpartition(": ")[2] != "seal":
        mover.steps.run_next()
    plan_sync_failure_of_the_renaming(mover)
    mover.steps.run_all()
    assert mover.places() == [A, B]
    mover.put(b"only in A")
    mover.log.flush()
    return mover


def test_a_copy_whose_source_is_offline_is_not_used() -> None:
    """It was never used, and what would be written to it would be thrown away with it."""
    mover = withdrawn()
    mover.kill()
    mover.disk.faults.fail_directory(A)
    mover.broker.start()
    assert ONE in mover.broker.report.unusable_partitions
    mover.kill()
    mover.disk.faults.heal()
    mover.broker.start()
    assert mover.records()[-1].value == b"only in A"
    assert mover.places() == [A]


def test_an_absent_source_is_as_good_as_an_offline_one() -> None:
    """Also where another disk is mounted at its path now."""
    mover = withdrawn()
    mover.kill()
    mover.disk.rename(A, "/elsewhere")
    mover.disk.make_directories(A)
    manager = mover.broker.new_manager()
    manager.prepare([Withheld(f"{A} (its id)", A, "missing")])
    report = manager.start(lambda _partition, _topic_id: mover.config)
    assert ONE in report.unusable_partitions
    assert list(report.failed_directories) == [f"{A} (its id)"]


def test_a_source_is_not_believed_while_its_target_is_absent() -> None:
    """The path of the target is another disk's, which cannot say that nothing had arrived."""
    mover = after(STEPS - 1)
    recording_state_with_both(mover)
    mover.kill()
    mover.disk.rename(B, "/elsewhere")
    mover.disk.make_directories(B)
    manager = mover.broker.new_manager()
    manager.prepare([Withheld(f"{B} (its id)", B, "missing")])
    report = manager.start(lambda _partition, _topic_id: mover.config)
    assert ONE in report.unusable_partitions


@pytest.mark.parametrize(
    ("operation", "part", "steps"), [("rename", "-delete", -2), ("sync_directory", A, -1)]
)
def test_what_moved_off_a_dying_disk_needs_it_no_more(
    operation: DiskOperation, part: str, steps: int
) -> None:
    mover = after(STEPS + steps)
    mover.disk.faults.fail_next(operation, path_part=part)
    mover.steps.run_all()
    assert mover.reports[-1].end is MoveEnd.MOVED
    assert mover.broker.manager.directories[0].failure is not None
    mover.put(b"only in B")
    mover.kill()
    mover.disk.faults.fail_directory(A)
    mover.broker.start()
    assert not mover.broker.report.unusable_partitions
    assert mover.records()[-1].value == b"only in B"


def test_the_commit_waits_for_no_throttle() -> None:
    """It runs on the loop, which would stand still for as long."""

    def never(_: CancelFlag, __: float) -> None:
        raise AssertionError

    mover = Mover()
    mover.move()
    while mover.steps.queue[0].name.rpartition(": ")[2] != "seal":
        mover.steps.run_next()
    seal = mover.steps.queue[0]
    work = seal.work

    def seal_and_write() -> None:
        work()
        mover.put(b"the short rest")
        throttle = mover.broker.manager.moves.throttle
        throttle.bytes_per_s = 0
        throttle._pause = never

    seal.work = seal_and_write
    assert mover.finish() is MoveEnd.MOVED
    assert mover.records()[-1].value == b"the short rest"


def test_disks_that_were_mounted_elsewhere_meanwhile() -> None:
    """Both sides are told by the number of the move, not by a path."""
    mover = after(STEPS - 1)
    mover.put(b"only in B")
    recording_state_with_both(mover)
    mover.kill()
    for source, target in ((A, "/c"), (B, A), ("/c", B)):
        mover.disk.rename(source, target)
    mover.broker.start()
    assert not mover.broker.report.unusable_partitions
    assert mover.records()[-1].value == b"only in B"
    assert mover.places() == [A]


def recording_state_with_both(mover: Mover) -> None:
    """Put the source back as if its renaming had been lost."""
    [doomed] = [name for name in mover.disk.list_directory(A) if name.endswith("-delete")]
    mover.disk.faults.heal()
    mover.disk.rename(f"{A}/{doomed}", f"{A}/{ONE}")
    mover.disk.sync_directory(A)


def test_a_start_after_a_kill_is_as_quick_as_before() -> None:
    """Checkpoints and leader epochs moved too: only the last segment has to be looked at."""
    mover = Mover()
    mover.move()
    mover.finish()
    assert len(mover.log.segments) > 2
    mover.kill()
    report = mover.broker.start().loaded[ONE]
    assert report.recovered_segments == 1
    assert not report.is_epoch_file_rebuilt


def test_moves_go_one_after_the_other_and_are_all_shown() -> None:
    mover = Mover()
    moves = mover.broker.manager.moves
    moves.prefer(TWO, A)
    mover.broker.create(TWO)
    mover.broker.fill(TWO, 10)
    mover.move()
    moves.move(TWO, B)
    shown = moves.in_progress()
    assert [(one.partition, one.directory) for one in shown] == [(ONE, B), (TWO, B)]
    assert [one.offset_lag for one in shown] == [61, 10]
    assert len(mover.steps.queue) == 1
    mover.steps.run_next()
    first = moves.in_progress()[0]
    assert 0 < first.size_bytes < mover.log.size_bytes
    assert 0 < first.offset_lag < 61
    mover.steps.run_all()
    assert not moves.in_progress()
    assert [report.end for report in mover.reports] == [MoveEnd.MOVED] * 2


def test_a_queued_move_survives_a_restart() -> None:
    mover = Mover()
    moves = mover.broker.manager.moves
    moves.prefer(TWO, A)
    mover.broker.create(TWO)
    mover.move()
    moves.move(TWO, B)
    mover.kill()
    mover.broker.start()
    assert {one.partition for one in mover.broker.manager.moves.in_progress()} == {ONE, TWO}


def test_a_background_without_room_only_delays() -> None:
    mover = Mover(steps=Mover().steps)
    mover.steps.room = 0
    mover.move()
    assert not mover.steps.queue
    mover.steps.room = 100
    mover.broker.manager.flush_due()
    assert mover.finish() is MoveEnd.MOVED


def compacted() -> Mover:
    """All of it can be cleaned."""
    mover = Mover(config=COMPACTED)
    mover.log.flush()
    mover.broker.manager.store_checkpoints()
    return mover


def test_compaction_waits_and_then_goes_on_there() -> None:
    mover = compacted()
    mover.move()
    cleaner = mover.broker.manager.cleaner
    assert cleaner.run_once() is None
    mover.finish()
    assert cleaner.run_once() == ONE
    mover.steps.run_all()
    assert len(mover.records()) < 20
    assert mover.log.owner.path == B


def test_a_move_waits_for_a_running_compaction() -> None:
    mover = compacted()
    mover.broker.manager.run_cleaner()
    assert mover.broker.manager.cleaner.in_progress == ONE
    mover.steps.run_next()
    mover.move()
    assert mover.log.cleaning is not None
    while mover.steps.run_next() is not None:
        mover.broker.manager.flush_due()
    assert mover.log.owner.path == B
    assert mover.broker.manager.cleaner.in_progress is None


def test_what_was_compacted_stays_readable_after_a_crash_there() -> None:
    mover = compacted()
    mover.broker.manager.run_cleaner()
    mover.steps.run_all()
    assert len(mover.records()) < 61
    found = mover.facts()
    mover.move()
    assert mover.finish() is MoveEnd.MOVED
    mover.lose_power()
    mover.broker.start()
    assert mover.facts() == found


def test_a_stop_in_the_middle_is_clean() -> None:
    for jobs in range(STEPS):
        mover = after(jobs)
        found = mover.facts()
        mover.broker.manager.moves.stop()
        mover.steps.run_all()
        mover.broker.restart()
        assert not mover.broker.report.unclean_directories
        assert mover.facts() == found
        mover.broker.manager.flush_due()
        mover.steps.run_all()
        assert mover.log.owner.path == B
        assert mover.facts() == found


def test_a_partition_that_does_not_exist_is_created_where_it_was_wanted() -> None:
    mover = Mover()
    moves = mover.broker.manager.moves
    moves.prefer(TWO, A)
    mover.broker.create(TWO)
    assert mover.broker.manager.get(TWO).owner.path == A
    mover.broker.manager.delete(TWO)
    mover.broker.create(TWO)
    assert mover.broker.manager.get(TWO).owner.path == B, "wanted once, not for ever"


def test_what_cannot_be() -> None:
    mover = Mover()
    moves = mover.broker.manager.moves
    with pytest.raises(LogDirectoryNotFound):
        moves.move(ONE, "/c")
    with pytest.raises(UnknownPartition):
        moves.move(TWO, B)
    with pytest.raises(PartitionNameTooLong):
        moves.move(TopicPartition("x" * 249, 0), B)
    moves.move(ONE, A)
    assert not moves.in_progress()
    mover.broker.manager.directories[1].failed(OSError(errno.EIO, "gone"))
    with pytest.raises(StorageFailed):
        moves.move(ONE, B)
    assert not mover.strange_names()


def test_a_growing_log_is_let_in_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows by more than the rest may be with every step: the rest may then be longer."""
    monkeypatch.setattr(directory_move, "TAIL_BYTES_MAX", 256)
    mover = Mover(count=5)
    mover.move()
    for _ in range(60):
        mover.broker.fill(ONE, 8)
        if mover.steps.run_next() is None:
            break
    assert mover.reports[-1].end is MoveEnd.MOVED


def test_wishes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.storage.move_queue.PREFERRED_MAX", 3)
    moves = Mover().broker.manager.moves
    for number in range(10):
        moves.prefer(TopicPartition("wish", number), B)
    assert [number for number in range(10) if moves.take_preferred(TopicPartition("wish", number))]
    assert len(moves._preferred) == 0


def test_the_topic_id_moves_too() -> None:
    mover = Mover(config=replace(SMALL_SEGMENTS, flush_messages=1))
    mover.move()
    mover.finish()
    mover.broker.restart()
    assert mover.log.home.topic_id == TOPIC_ID


def test_back_and_forth_on_a_real_disk_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threads and real files: nothing is lost, doubled or reordered."""
    monkeypatch.undo()  # small steps would never catch up with the writer
    roots = [str(tmp_path / "a"), str(tmp_path / "b")]
    config = replace(SMALL_SEGMENTS, segment_bytes=64 * KIB)
    ends: list[MoveEnd] = []
    written = 0

    async def story() -> None:
        nonlocal written
        background = ThreadBackground(asyncio.get_running_loop())
        seams = Seams(OsDisk(), SystemClock(), SeededRandomness(1), background)
        manager = LogManager(seams, roots)
        manager.start(lambda *_: config)
        manager.moves.on_report = lambda report: ends.append(report.end)
        log = manager.create(ONE, TOPIC_ID, config)
        start = roots.index(log.owner.path)
        for turn in range(4):
            manager.moves.move(ONE, roots[(start + turn + 1) % 2])
            while len(ends) <= turn:
                log.append_as_leader(batch_of(b"%d" % written), leader_epoch=LeaderEpoch(0))
                written += 1
                await asyncio.sleep(0)
        manager.moves.stop()
        assert await background.close(timeout_s=30) == []
        manager.close()

    asyncio.run(story())
    assert ends == [MoveEnd.MOVED] * 4
    seams = Seams(OsDisk(), SystemClock(), SeededRandomness(1), InlineBackground())
    manager = LogManager(seams, roots)
    report = manager.start(lambda *_: config)
    assert not report.unclean_directories
    found = [record.value for record in read_all(manager.get(ONE))]
    assert found == [b"%d" % number for number in range(written)]
    manager.close()
