"""A partition moves to another log directory while it is written, read, cut and deleted."""

import pytest

from kits.storage.manager_stories import ONE
from kits.storage.move_kit import (
    STEPS,
    A,
    B,
    Mover,
    after,
    all_steps,
    facts_of,
    make_steps_small,
    reopened,
)
from millstream.model.errors import OperatingError, StorageFailed
from millstream.model.ids import Offset
from millstream.storage import names
from millstream.storage.log.reader import Isolation
from millstream.storage.moves.directory_move import MoveEnd
from millstream.testing.log_kit import read_all
from millstream.testing.sim.crash_states import crash_states


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    make_steps_small(monkeypatch)


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
    assert mover.log.maintenance is None


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
    results: list[OperatingError | None] = []
    mover.broker.manager.flush(mover.log, results.append)
    flush = mover.steps.queue.pop()
    seal = mover.steps.queue.popleft()
    mover.put(b"also promised")
    mover.broker.manager.flush(mover.log, results.append)
    mover.steps.queue.append(seal)
    mover.steps.run_next()
    assert mover.log.owner.path == B
    mover.steps.queue.appendleft(flush)
    mover.steps.run_all()
    assert results == [None, None]
    mover.lose_power()
    mover.broker.start()
    values = [record.value for record in mover.records()]
    assert b"promise" in values
    assert b"also promised" in values


def test_a_flush_that_waited_blames_the_directory_it_happens_in() -> None:
    mover = after(STEPS - 1)
    assert mover.log.owner.path == B
    mover.put(b"more")
    results: list[OperatingError | None] = []
    commits = mover.broker.manager._commits
    mover.disk.faults.fail_next("sync", path_part=".log")
    commits[A].request(mover.log, results.append)
    mover.steps.run_all()
    assert isinstance(results[0], StorageFailed)
    assert results[0].directory == B
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
