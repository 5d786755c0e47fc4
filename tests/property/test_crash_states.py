"""The crash-state explorer over the log: no power loss takes what was fsynced (I-11).

Every story runs once on a recording disk. Then recovery is run on every state that a power loss
at any moment could have left: any subset of unsynced writes, torn writes, lost names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from millstream.model.ids import LeaderEpoch, Offset
from millstream.runtime.disk import File
from millstream.storage import names
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.log.log import Log
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import PARTITION, open_log, read_all
from millstream.testing.record_batches import BatchSpec, PlainRecord, build_batch, read_records
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.crash_states import crash_states
from millstream.testing.sim.disk import SimDisk

DIRECTORY = f"/data/{PARTITION}"
STATES_PER_STORY = 1_500


@dataclass(frozen=True, slots=True)
class Promise:
    """What a crash from now on may leave: a prefix of `history`, at least `durable` of it."""

    history: tuple[PlainRecord, ...]
    durable: int
    log_start: int = 0
    alternatives: tuple[tuple[PlainRecord, ...], ...] = ()
    """During a truncation: the older history, prefixes of which are also fine."""


class Story:
    """A log on a recording disk, and the promises made along the way."""

    def __init__(self) -> None:
        self.disk = SimDisk(directories=["/data"])
        opened = open_log(self.disk, ManualClock(), root="/data")
        self.log: Log = opened.log
        self.owner: LogDirectory = opened.owner
        self.recording = self.disk.record()
        self.history: tuple[PlainRecord, ...] = ()
        self.durable = 0
        self._mark()

    def append(self, count: int = 2, *, size: int = 40, epoch: int = 0) -> None:
        pairs = [(b"key", bytes([65 + count]) * size)] * count
        end = self.log.log_end
        batch = build_batch(pairs, BatchSpec(base_offset=end, timestamp_ms=1_000 + end))
        self.history += tuple(read_records(batch))
        self._mark()  # before the write: from here on any part of it may be there
        self.log.append_as_leader(batch, leader_epoch=LeaderEpoch(epoch))

    def flush(self) -> None:
        self.log.flush()
        self.durable = len(self.history)
        self._mark()
        self.owner.store(names.RECOVERY_POINTS, {PARTITION: self.log.recovery_start})

    def roll(self) -> None:
        self.log.roll()

    def truncate(self, end: int) -> None:
        older = self.history
        self.history = tuple(record for record in older if record.offset < end)
        self.durable = min(self.durable, len(self.history))
        self._mark(older)
        self.log.truncate_to(Offset(end))
        self._mark()

    def delete_before(self, start: int) -> None:
        self.log.set_high_watermark(self.log.log_end)
        self.log.advance_log_start(Offset(start))
        self.owner.store(names.LOG_STARTS, {PARTITION: self.log.log_start})
        self.disk.mark(Promise(self.history, self.durable, log_start=start))
        self.log.remove_segments_below_start()
        self.owner.delete_due(1e9)

    def close(self) -> None:
        self.log.close()
        self.durable = len(self.history)
        self._mark()

    def _mark(self, *alternatives: tuple[PlainRecord, ...]) -> None:
        self.disk.mark(Promise(self.history, self.durable, self.log.log_start, alternatives))


def appends_and_flushes(story: Story) -> None:
    for number in range(6):
        story.append(1 + number % 3)
        if number % 2:
            story.flush()


def rolls_without_flush(story: Story) -> None:
    for _ in range(3):
        story.append(2, size=300)
        story.roll()
    story.append(1)
    story.flush()
    story.append(1)


def rolls_after_flush(story: Story) -> None:
    for _ in range(3):
        story.append(3, size=200)
        story.flush()
        story.roll()
        story.append(1, size=200)


def truncation_and_new_epoch(story: Story) -> None:
    story.append(2, size=300)
    story.roll()
    story.append(2, size=300)
    story.flush()
    story.roll()
    story.append(2, size=300)
    story.truncate(2)
    story.append(2, size=200, epoch=1)
    story.flush()
    story.append(1, epoch=2)


def truncation_below_the_stored_recovery_point(story: Story) -> None:
    for _ in range(3):
        story.append(2, size=300)
        story.flush()
        story.roll()
    story.flush()
    story.truncate(2)
    for _ in range(3):
        story.append(2, size=300, epoch=1)
        story.roll()


def deletion_at_the_front(story: Story) -> None:
    for _ in range(4):
        story.append(2, size=200)
        story.roll()
    story.flush()
    story.delete_before(5)
    story.append(2)
    story.flush()


def clean_stop(story: Story) -> None:
    story.append(2)
    story.roll()
    story.append(3)
    story.close()


STORIES = [
    appends_and_flushes,
    rolls_without_flush,
    rolls_after_flush,
    truncation_and_new_epoch,
    truncation_below_the_stored_recovery_point,
    deletion_at_the_front,
    clean_stop,
]


def first_broken_promise(tell: Callable[[Story], None], *, limit: int) -> str | None:
    story = Story()
    tell(story)
    count = 0
    for state in crash_states(story.recording, limit=limit, seed=7):
        count += 1
        promises = [one for one in state.marks_before if isinstance(one, Promise)]
        problem = broken(state.disk, promises)
        if problem:
            return f"{problem} (crash point {state.crash_point}: {state.description})"
    assert count > 50, f"only {count} states: the story tells too little"
    return None


def broken(disk: SimDisk, promises: list[Promise]) -> str | None:
    """What recovery got wrong on this disk, or None."""
    promise = promises[-1] if promises else Promise((), 0)
    opened = open_log(disk, ManualClock(), root="/data")
    found = tuple(read_all(opened.log))
    log_start = opened.log.log_start
    opened.abandon()
    scan = scan_partition(disk, DIRECTORY)
    if scan.problems or scan.notes:
        return f"I-10 {scan.problems} {scan.notes}"
    if log_start < promise.log_start:
        return f"log start fell back to {log_start}"
    histories = (promise.history, *promise.alternatives)
    for history in histories:
        visible = tuple(record for record in history if record.offset >= log_start)
        if found == visible[: len(found)]:
            hidden = len(history) - len(visible)
            if len(found) + hidden >= promise.durable:
                return None
    return f"found {[one.offset for one in found]} from {log_start}, promised {promise.durable}"


@pytest.mark.parametrize("tell", STORIES, ids=lambda story: story.__name__)
def test_no_crash_state_loses_fsynced_records(tell: Callable[[Story], None]) -> None:
    assert first_broken_promise(tell, limit=STATES_PER_STORY) is None


def test_explorer_catches_a_flush_that_does_not_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a recovery point that is not backed by an fsync of the data."""

    def all_but_logs(disk: SimDisk, files: Sequence[File], directories: Sequence[str]) -> None:
        for file in files:
            if not file.path.endswith(names.LOG):
                file.sync()
        for path in directories:
            disk.sync_directory(path)

    monkeypatch.setattr(SimDisk, "sync_many", all_but_logs)
    problem = first_broken_promise(appends_and_flushes, limit=600)
    assert problem is not None
    assert "promised" in problem


def test_explorer_catches_a_missing_directory_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: data is synced, the names that lead to it are not."""

    def content_alone(disk: SimDisk, files: Sequence[File], directories: Sequence[str]) -> None:
        del disk, directories
        for file in files:
            file.sync()

    monkeypatch.setattr(SimDisk, "sync_many", content_alone)
    problem = first_broken_promise(rolls_without_flush, limit=600)
    assert problem is not None
    assert "promised" in problem


def test_explorer_catches_a_recovery_point_left_above_a_truncation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug: segments written after the truncation are trusted without a look."""
    monkeypatch.setattr(Log, "_before_truncation", lambda self, new_end: None)
    told = truncation_below_the_stored_recovery_point
    assert first_broken_promise(told, limit=STATES_PER_STORY) is not None
