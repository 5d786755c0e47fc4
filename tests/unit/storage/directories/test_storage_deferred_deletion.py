"""Files that were removed from a log go when their delay is over, in the background."""

import errno

from kits.storage.compaction_kit import StepBackground
from millstream.storage.directories.deferred_deletion import FILES_PER_JOB_MAX, DeferredDeletion
from millstream.storage.directories.log_directory import LogDirectory
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk


class Yard:
    """A log directory with old files, and who removes them."""

    def __init__(self, count: int = 3, *, delay_s: float = 1.0) -> None:
        self.clock, self.background = ManualClock(), StepBackground()
        self.disk = SimDisk(directories=["/a"])
        self.directory = LogDirectory(self.disk, "/a")
        self.directory.open()
        self.removal = DeferredDeletion(
            [self.directory], clock=self.clock, background=self.background
        )
        paths = [f"/a/{number}.deleted" for number in range(count)]
        for path in paths:
            self.disk.open_write(path).close()
        self.directory.discard(paths, due_s=self.clock.monotonic_s() + delay_s)

    def is_offline(self) -> bool:
        return self.directory.failure is not None

    def left(self) -> int:
        return sum(name.endswith(".deleted") for name in self.disk.list_directory("/a"))


def test_nothing_goes_before_its_time_and_all_of_it_then() -> None:
    yard = Yard()
    yard.clock.advance(999)
    yard.removal.run()
    assert not yard.background.queue
    yard.clock.advance(1)
    yard.removal.run()
    assert yard.left() == 3, "not on the caller's thread"
    yard.background.run_all()
    assert yard.left() == 0


def test_thousands_go_job_by_job() -> None:
    yard = Yard(2 * FILES_PER_JOB_MAX + 1, delay_s=0)
    yard.removal.run()
    yard.removal.run()  # one job at a time
    assert len(yard.background.run_all()) == 3
    assert yard.left() == 0


def test_without_room_in_the_background_they_stay_due() -> None:
    yard = Yard(delay_s=0)
    yard.background.room = 0
    yard.removal.run()
    yard.background.room = 1
    yard.removal.run()
    yard.background.run_all()
    assert yard.left() == 0


def test_what_is_gone_already_is_no_error() -> None:
    yard = Yard(delay_s=0)
    yard.disk.remove("/a/1.deleted")
    yard.removal.run()
    yard.background.run_all()
    assert yard.left() == 0
    assert yard.directory.failure is None


def test_a_refusal_is_tried_again_and_a_failure_takes_the_directory_offline() -> None:
    yard = Yard(delay_s=0)
    yard.disk.faults.fail_next("remove", errno.ENOSPC)
    yard.removal.run()
    yard.background.run_all()
    assert not yard.is_offline()
    yard.disk.faults.fail_next("remove", errno.EIO)
    yard.removal.run()
    yard.background.run_all()
    assert yard.is_offline()
    yard.removal.run()
    assert not yard.background.queue
    assert yard.left() == 3


def test_after_the_stop_nothing_is_begun() -> None:
    yard = Yard(delay_s=0)
    yard.removal.stop()
    yard.removal.run()
    assert not yard.background.queue
