"""Moves that wait for each other, for compaction and for room; a move on a real disk."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from kits.storage.log_stories import batch_of
from kits.storage.manager_stories import ONE, TOPIC_ID, TWO
from kits.storage.move_kit import STEPS, A, B, Mover, after, make_steps_small
from millstream.model.errors import StorageFailed, UnknownPartition
from millstream.model.ids import LeaderEpoch, TopicPartition
from millstream.model.limits import KIB
from millstream.runtime.background import ThreadBackground
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.storage.moves import directory_move
from millstream.storage.moves.directory_move import MoveEnd
from millstream.storage.moves.queue import LogDirectoryNotFound, PartitionNameTooLong
from millstream.testing.log_kit import COMPACTED, SMALL_SEGMENTS, read_all
from millstream.testing.sim.background import InlineBackground


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    make_steps_small(monkeypatch)


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


def test_a_move_does_not_go_where_the_target_was() -> None:
    """With the disk back in its place the log would be in neither."""
    mover = Mover()
    before = mover.records()
    mover.disk.rename(B, "/c")
    mover.disk.make_directories(B)
    with pytest.raises(StorageFailed, match="/b failed: removed, renamed or unmounted"):
        mover.move()
    mover.steps.run_all()
    assert mover.log.owner.path == A
    assert mover.records() == before


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
    assert mover.log.maintenance is not None
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
    assert mover.broker.manager.get(TWO).owner.path == B, "requested once, not forever"


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
    monkeypatch.setattr("millstream.storage.moves.queue.PREFERRED_MAX", 3)
    moves = Mover().broker.manager.moves
    for number in range(10):
        moves.prefer(TopicPartition("requested", number), B)
    assert [
        number for number in range(10) if moves.take_preferred(TopicPartition("requested", number))
    ]
    assert len(moves._preferred) == 0


def test_the_topic_id_moves_too() -> None:
    mover = Mover(config=replace(SMALL_SEGMENTS, flush_messages=1))
    mover.move()
    mover.finish()
    mover.broker.restart()
    assert mover.log.context.topic_id == TOPIC_ID


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
        dependencies = StorageDependencies(OsDisk(), SystemClock(), SeededRandomness(1), background)
        manager = LogManager(
            dependencies, roots, on_move_ended=lambda report: ends.append(report.end)
        )
        manager.start(lambda *_: config)
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
    dependencies = StorageDependencies(
        OsDisk(), SystemClock(), SeededRandomness(1), InlineBackground()
    )
    manager = LogManager(dependencies, roots)
    report = manager.start(lambda *_: config)
    assert not report.unclean_directories
    found = [record.value for record in read_all(manager.get(ONE))]
    assert found == [b"%d" % number for number in range(written)]
    manager.close()
