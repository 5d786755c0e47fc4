"""A move between log directories whose disks fail, vanish or come back at another path."""

import errno
from contextlib import suppress

import pytest

from kits.storage.manager_stories import ONE
from kits.storage.move_kit import STEPS, A, B, Mover, after, make_steps_small
from millstream.model.errors import OperatingError, UnknownPartition
from millstream.storage.directories.log_directory import MissingDirectory
from millstream.storage.moves.directory_move import MoveEnd
from millstream.storage.throttle import CancelFlag
from millstream.testing.sim.disk_faults import DiskFault, DiskOperation


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    make_steps_small(monkeypatch)


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
    manager.prepare([MissingDirectory(f"{A} (its id)", A, "missing")])
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
    manager.prepare([MissingDirectory(f"{B} (its id)", B, "missing")])
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
    """Both sides are identified by the number of the move, not by a path."""
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
    """Checkpoints and leader epochs moved too: only the last segment has to be checked."""
    mover = Mover()
    mover.move()
    mover.finish()
    assert len(mover.log.segments) > 2
    mover.kill()
    report = mover.broker.start().loaded[ONE]
    assert report.recovered_segments == 1
    assert not report.is_epoch_file_rebuilt
