"""Durability on request: callbacks are called after the sync, and many share one."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kits.storage.log_stories import DIRECTORY, ROOT, Story, batch_of
from millstream.model.errors import DiskFull, OperatingError, StorageFailed
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs, TopicPartition
from millstream.model.invariant import InvariantViolated, invariant
from millstream.runtime.background import BackgroundFullError, Outcome
from millstream.runtime.os_disk import OsDisk
from millstream.storage import names
from millstream.storage.epochs import EpochFile, LeaderEpochs, save_image
from millstream.storage.flush import FlushJob, GroupCommit
from millstream.storage.log.log import Log
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, open_log, read_all
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.crash_fates import keep_none
from millstream.testing.sim.world import SimNode, SimWorld

T = TypeVar("T")
FlushResults = list[OperatingError | None]


class HeldBackground:
    """Keeps submitted work until the test runs it, step by step."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], object], Callable[[Outcome[object]], None]]] = []
        self.room = 100

    def submit(
        self, work: Callable[[], T], on_done: Callable[[Outcome[T]], None], *, name: str
    ) -> None:
        if len(self.held) >= self.room:
            raise BackgroundFullError("no room")
        self.held.append((work, on_done))  # type: ignore[arg-type]

    async def close(self, *, timeout_s: float) -> list[str]:
        return []

    def step(self) -> None:
        """Run the oldest work and deliver what it gave."""
        self.run()()

    def run(self) -> Callable[[], None]:
        """Run the oldest work; its answer waits to be delivered."""
        work, on_done = self.held.pop(0)
        try:
            outcome: Outcome[object] = Outcome(work())
        except Exception as error:  # noqa: BLE001 - as the real one does
            outcome = Outcome(None, error)
        return lambda: on_done(outcome)


class Commit:
    """A story with a group commit whose background the test holds."""

    def __init__(self) -> None:
        self.story = Story()
        self.background = HeldBackground()
        self.commit = GroupCommit(self.story.opened.owner, self.background)
        self.results: FlushResults = []

    @property
    def log(self) -> Log:
        return self.story.log

    def request(self) -> None:
        self.commit.request(self.log, self.results.append)

    def syncs(self) -> int:
        return sum(event[0] == "sync" for event in self.story.disk.trace.events)


def test_nobody_is_told_before_the_sync() -> None:
    """I-01: acknowledged means durable where the topic requires that."""
    world = Commit()
    world.story.put(b"a")
    world.request()
    assert world.results == []
    assert world.log.recovery_point == 0
    world.background.step()
    assert world.results == [None]
    assert world.log.recovery_point == 1
    world.story.lose_power()
    assert world.story.values() == [b"a"]


def test_who_asks_while_a_flush_runs_shares_the_next_one() -> None:
    world = Commit()
    world.story.put(b"a")
    world.request()
    for value in (b"b", b"c", b"d"):
        world.story.put(value)
        world.request()
    assert len(world.background.held) == 1, "one at a time"
    world.background.step()
    assert world.results == [None]
    assert world.log.recovery_point == 1, "what came later is not covered"
    assert len(world.background.held) == 1
    world.background.step()
    assert world.results == [None] * 4
    assert world.log.recovery_point == 4
    assert world.background.held == []


def test_who_asks_again_when_told_never_makes_two_flushes_run_at_once() -> None:
    """Two would write the same small files at the same time."""
    world = Commit()

    def again(_: OperatingError | None) -> None:
        world.story.put(b"more")
        world.request()

    world.story.put(b"a")
    world.commit.request(world.log, again)
    world.commit.request(world.log, again)
    world.commit.request(world.log, again)
    for _ in range(4):
        assert len(world.background.held) <= 1
        if world.background.held:
            world.background.step()
    assert world.results == [None] * 3
    assert world.log.recovery_point == world.log.log_end == 4


def test_with_nothing_to_flush_one_is_still_told() -> None:
    world = Commit()
    world.request()
    world.background.step()
    assert world.results == [None]


def test_a_failed_sync_is_told_to_all_and_never_tried_again() -> None:
    """After a failed fsync the kernel may have dropped the pages and report success next time."""
    world = Commit()
    world.story.put(b"a")
    world.request()
    world.story.put(b"b")
    world.request()
    world.story.disk.faults.fail_next("sync", path_part=".log")
    world.background.step()
    while world.background.held:
        world.background.step()
    assert [type(one) for one in world.results] == [StorageFailed] * 2
    assert world.log.recovery_point == 0
    syncs = world.syncs()
    for attempt in (
        world.log.flush,
        lambda: world.story.put(b"c"),
        world.log.begin_flush,
        lambda: world.log.read(Offset(0), size_max=1, isolation=None),  # type: ignore[arg-type]
    ):
        with pytest.raises(StorageFailed):
            attempt()
    world.request()
    assert isinstance(world.results[-1], StorageFailed)
    assert world.syncs() == syncs


def test_a_full_background_delays_but_forgets_nobody() -> None:
    world = Commit()
    world.background.room = 0
    world.story.put(b"a", epoch=3)
    world.request()
    world.request()
    assert world.results == []
    world.background.room = 1
    world.commit.resume()
    world.background.step()
    assert world.results == [None, None]
    stored = LeaderEpochs.load(world.story.disk, f"{DIRECTORY}/{names.LEADER_EPOCHS}")
    assert stored.entries() == [(3, 0)]
    world.story.lose_power()
    assert world.story.values() == [b"a"]


def test_an_invariant_violated_in_a_job_is_not_swallowed() -> None:
    story = Story()
    commit = GroupCommit(story.opened.owner, InlineBackground())
    results: FlushResults = []
    story.put(b"a")

    def broken(*_: object) -> None:
        invariant(False, "I-99 planted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(story.disk), "sync_many", broken)
        with pytest.raises(InvariantViolated, match="I-99"):
            commit.request(story.log, results.append)
    assert results == []


def test_an_unknown_error_in_a_job_is_not_swallowed_either() -> None:
    world = Commit()
    world.story.put(b"a")
    world.request()
    _, on_done = world.background.held.pop()
    with pytest.raises(ZeroDivisionError):
        on_done(Outcome(None, ZeroDivisionError()))
    assert world.results == []


# -- what happens to the log meanwhile


def test_a_truncation_during_a_flush_makes_it_void() -> None:
    """What was synced may be gone; what comes in its place was not synced (I-11)."""
    world = Commit()
    world.story.put(b"a")
    world.story.put(b"b")
    world.request()
    deliver = world.background.run()
    world.log.truncate_to(Offset(1))
    world.story.put(b"c", epoch=1)
    deliver()
    assert world.log.recovery_point <= 1
    world.story.lose_power()
    assert world.story.values() == [b"a"]


def test_an_older_epoch_file_never_replaces_a_newer_one() -> None:
    """The job began before the truncation and ends after it."""
    world = Commit()
    for epoch in range(4):
        world.story.put(b"%d" % epoch, epoch=epoch)
    world.request()
    world.log.truncate_to(Offset(2))
    world.background.step()
    stored = LeaderEpochs.load(world.story.disk, f"{DIRECTORY}/{names.LEADER_EPOCHS}")
    assert stored.entries() == world.log.epochs.entries() == [(0, 0), (1, 1)]


def test_a_roll_during_a_flush_does_not_hide_its_unsynced_indexes() -> None:
    """The data of the closed segment is synced by the running job, its last index entries are not;
    a checkpoint that said otherwise would make a later start trust them.
    """
    world = Commit()
    world.story.fill(9)
    world.request()
    world.log.roll()
    world.background.step()
    world.story.store_checkpoints()
    world.story.lose_power(keep_none)
    assert len(world.story.values()) == 9
    found = world.log.find_timestamp(TimestampMs(world.story.clock.wall_ms() + 8))
    assert found is not None
    assert found.offset == 8
    newest = world.log.segments.at(Offset(0)).largest_timestamp()
    assert newest.timestamp_ms == world.story.clock.wall_ms() + 8


def test_a_roll_during_a_flush_is_flushed_next() -> None:
    world = Commit()
    world.story.fill(9)
    world.request()
    world.log.roll()
    world.background.step()
    is_due_before = world.log.is_flush_due
    world.request()
    world.background.step()
    assert (is_due_before, world.log.is_flush_due) == (True, False)
    assert world.log.recovery_start == 9


@pytest.mark.parametrize("meanwhile", [Story.go_on, Story.kill])
def test_a_flush_syncs_the_snapshot_whose_segment_was_deleted_before_it(
    meanwhile: Callable[[Story], None],
) -> None:
    """It is the first segment's now: compaction may remove what it was made from."""
    story = Story()
    story.fill(3)
    story.log.roll()
    story.fill(3)
    story.replicate_all()
    story.log.advance_log_start(Offset(5))
    story.log.remove_segments_below_start()
    story.store_checkpoints()
    meanwhile(story)
    story.log.roll()
    story.log.flush()
    story.store_checkpoints()
    story.lose_power(keep_none)
    assert story.log.producers.snapshot_offsets[0] == 3
    assert scan_partition(story.disk, DIRECTORY).notes == []


def test_retention_during_a_flush_does_no_harm() -> None:
    world = Commit()
    world.story.fill(60)
    world.request()
    world.story.replicate_all()
    world.log.advance_log_start(Offset(40))
    world.story.opened.owner.store(names.LOG_STARTS, {PARTITION: Offset(40)})
    assert world.log.remove_segments_below_start() == 2
    world.story.opened.owner.delete_due(world.story.clock.monotonic_s())
    world.background.step()
    assert world.results == [None]
    assert world.log.recovery_point == 60
    assert world.story.opened.owner.failure is None


def test_a_log_released_while_its_flush_waits_or_runs_does_no_harm() -> None:
    """A topic may be deleted at any time; its directory must not take the others with it."""
    world = Commit()
    world.story.put(b"a", epoch=2)
    world.request()
    world.request()
    world.log.release()
    world.story.disk.rename(DIRECTORY, f"{ROOT}/gone")
    while world.background.held:
        world.background.step()
    assert world.results == [None, None]
    assert world.story.opened.owner.failure is None
    assert not world.story.disk.exists(DIRECTORY)


def test_a_deleted_logs_epochs_do_not_reach_its_successor() -> None:
    world = Commit()
    world.story.put(b"a", epoch=2)
    world.request()
    world.log.release()
    world.story.disk.rename(DIRECTORY, f"{ROOT}/gone")
    world.story.disk.make_directories(DIRECTORY)
    world.background.step()
    assert world.story.disk.list_directory(DIRECTORY) == []


def test_a_full_disk_is_told_and_forgives() -> None:
    world = Commit()
    world.story.put(b"a", epoch=2)
    world.story.disk.storage.capacity_bytes = 0
    world.request()
    world.background.step()
    assert [type(one) for one in world.results] == [DiskFull]
    world.story.disk.storage.capacity_bytes = None
    world.request()
    world.background.step()
    assert world.results[1:] == [None]
    world.story.lose_power()
    assert world.log.latest_epoch == 2


def test_flush_messages_counts_records() -> None:
    story = Story()
    story.log.config = SMALL_SEGMENTS.__class__(flush_messages=5)
    seen = []
    for value in (b"a", b"b", b"c", b"d", b"e"):
        story.put(value)
        seen.append(story.log.is_flush_due)
    assert seen == [False, False, False, False, True]
    assert story.log.unflushed_records == 5
    story.log.flush()
    assert story.log.unflushed_records == 0


# -- epoch files under many writers


def test_epoch_files_take_many_writers_at_once(tmp_path: Path) -> None:
    """On a real disk, with real threads: no error, no mixture, the newest state stays."""
    file = EpochFile(str(tmp_path / names.LEADER_EPOCHS))
    epochs = LeaderEpochs()
    errors: list[BaseException] = []
    disk = OsDisk()
    images = []
    for number in range(60):
        epochs.assign(LeaderEpoch(number), Offset(number * 10**9))
        images.append(file.image(epochs))
    start = threading.Barrier(4)

    def write(mine: list[int]) -> None:
        start.wait()
        try:
            for number in mine:
                save_image(disk, images[number])
        except BaseException as error:  # noqa: BLE001 - passed to the test
            errors.append(error)

    threads = [threading.Thread(target=write, args=([*range(at, 60, 4)],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert LeaderEpochs.load(disk, file.path).entries() == epochs.entries()


# -- in virtual time, with power losses at any moment


@pytest.mark.parametrize("seed", range(12))
def test_what_was_told_durable_survives_a_power_loss_at_any_moment(seed: int) -> None:
    """I-01, I-11. Replay of one seed:

    pytest tests/unit/storage/log/test_log_flush.py -k 'any_moment and SEED'
    """
    world = SimWorld(seed)
    node = world.node("one", directories=[ROOT])
    durable: dict[TopicPartition, int] = {}

    async def main() -> SimNode:
        opened = open_log(node.disk, node.clock, root=ROOT)
        commit = GroupCommit(opened.owner, node.background)
        for number in range(node.randomness.integer(20, 60)):
            value = b"%040d" % number
            epoch = LeaderEpoch(number // 7)
            end = opened.log.append_as_leader(batch_of(value), leader_epoch=epoch).last_offset + 1

            def flushed(failure: OperatingError | None, end: int = end) -> None:
                assert failure is None
                durable[PARTITION] = max(end, durable.get(PARTITION, 0))

            commit.request(opened.log, flushed)
            if node.randomness.chance(0.3):
                opened.owner.store(names.RECOVERY_POINTS, {PARTITION: opened.log.recovery_start})
            await asyncio.sleep(node.randomness.between(0, 0.003))
        node.lose_power()
        return node.restore_power(keep_none)

    after = world.run(main)
    found = open_log(after.disk, after.clock, root=ROOT)
    values = [record.value for record in read_all(found.log)]
    assert values == [b"%040d" % number for number in range(len(values))]
    assert len(values) >= durable.get(PARTITION, 0)
    assert durable[PARTITION] > 5, "the story must get somewhere"


def test_a_flush_job_names_what_it_covers() -> None:
    story = Story()
    story.fill(3)
    job = story.log.begin_flush()
    assert isinstance(job, FlushJob)
    assert job.end_offset == 3
    job.release()
    story.log.abandon_flush(job)
    story.log.flush()
    assert story.log.begin_flush() is None
