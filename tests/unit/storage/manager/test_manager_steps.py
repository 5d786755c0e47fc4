"""The log manager's long works, stopped in the middle: what others do meanwhile must hold."""

import errno
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from kits.storage.manager_stories import ONE, THREE, TOPIC_ID, TWO, Broker
from millstream.model.errors import DiskFull, OperatingError, UnknownPartition
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.model.limits import LOGS_PER_SYNC_MAX
from millstream.runtime.background import Outcome
from millstream.runtime.scheduler import StepGenerator, run_blocking
from millstream.storage import names
from millstream.storage.log_steps import LOGS_PER_TURN, SEGMENTS_PER_TURN
from millstream.storage.manager.changes import TREES_PER_JOB
from millstream.storage.manager.log_manager import NewPartition
from millstream.testing.sim.disk_faults import DiskOperation

OTHER_ID = TopicId(UUID(int=8))


class HeldBackground:
    """Keeps jobs until the test runs them."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Any]] = []

    def submit(self, work: Callable[[], Any], on_done: Any, *, name: str) -> None:
        del name
        self.jobs.append((work, on_done))

    async def close(self, *, timeout_s: float) -> list[str]:
        del timeout_s
        return []


def until_job(steps: StepGenerator[Any]) -> Callable[[], Any]:
    """Take steps until one needs another thread; its work."""
    while (yielded := next(steps)) is None:
        pass
    return yielded


def finish(steps: StepGenerator[Any], result: object = None) -> Any:
    """Hand in the job's result and go on to the end."""

    def rest() -> StepGenerator[Any]:
        try:
            yielded = steps.send(result)
            while True:
                yielded = steps.send((yield yielded))
        except StopIteration as end:
            return end.value

    return run_blocking(rest())


def with_records(count: int = 60) -> Broker:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, count)
    broker.replicate(ONE)
    broker.manager.get(ONE).flush()
    return broker


# -- bounded steps -----------------------------------------------------------------------------


def wanted(count: int) -> list[NewPartition]:
    config = Broker().config
    return [NewPartition(TopicPartition("many", one), TOPIC_ID, config) for one in range(count)]


def test_between_two_turns_only_so_many_logs_are_touched() -> None:
    broker = Broker()
    sizes = []
    steps = broker.manager.create_steps(wanted(4 * LOGS_PER_TURN))
    known, result = 0, None
    while True:
        try:
            yielded = steps.send(result)
        except StopIteration:
            break
        sizes.append(len(broker.manager) - known)
        known = len(broker.manager)
        result = yielded() if yielded is not None else None
    assert known == 4 * LOGS_PER_TURN
    assert max(sizes) == LOGS_PER_TURN
    delete_steps = broker.manager.delete_steps([one.partition for one in wanted(4 * LOGS_PER_TURN)])
    result = None
    while True:
        try:
            yielded = delete_steps.send(result)
        except StopIteration:
            break
        assert known - len(broker.manager) <= LOGS_PER_TURN
        known = len(broker.manager)
        result = yielded() if yielded is not None else None
    assert not known


def test_nothing_of_the_loop_s_part_touches_the_disk() -> None:
    """Creation and deletion do all their reading, writing and syncing in jobs."""
    broker = Broker(roots=("/a", "/b"), background=HeldBackground())
    for steps in (
        broker.manager.create_steps(wanted(100)),
        broker.manager.delete_steps([one.partition for one in wanted(100)]),
    ):
        result: Any = None
        while True:
            before = len(broker.disk.trace.events)
            try:
                yielded = steps.send(result)
            except StopIteration:
                break
            assert len(broker.disk.trace.events) == before
            result = yielded() if yielded is not None else None


def test_the_first_roll_of_a_new_log_waits_for_no_sync() -> None:
    broker = Broker()
    (log,) = broker.create(ONE)
    broker.put(ONE, b"x")
    before = len(broker.disk.trace.events)
    assert log.roll()
    later = [one[0] for one in broker.disk.trace.events[before:]]
    assert "sync" not in later
    assert "sync_directory" not in later
    assert broker.manager.directories[0].stored(names.RECOVERY_POINTS, ONE) == 0


def test_segments_go_a_few_at_a_time() -> None:
    broker = with_records(SEGMENTS_PER_TURN * 50)
    log = broker.manager.get(ONE)
    count = len(log.segments)
    assert count > 2 * SEGMENTS_PER_TURN
    steps = broker.manager.delete_records_steps({ONE: Offset(log.high_watermark)})
    job = until_job(steps)
    job()
    assert steps.send(None) is None
    assert len(log.segments) == count - SEGMENTS_PER_TURN
    assert finish(steps) == {ONE: log.log_end}
    assert len(log.segments) == 1


# -- jobs that come late -----------------------------------------------------------------------


def test_a_checkpoint_from_before_a_truncation_is_not_stored() -> None:
    """I-11: recovery would trust records that the next leader's took the place of."""
    broker = with_records()
    log = broker.manager.get(ONE)
    steps = broker.manager.store_checkpoints_steps()
    job = until_job(steps)
    log.truncate_to(Offset(3), is_unclean=True)
    job()
    finish(steps)
    for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS):
        assert (broker.manager.directories[0].stored(name, ONE) or 0) <= 3
    broker.manager.store_checkpoints()
    assert broker.manager.directories[0].stored(names.HIGH_WATERMARKS, ONE) == 3


def test_a_checkpoint_does_not_pass_to_a_new_partition_of_the_name() -> None:
    broker = with_records()
    broker.manager.delete_records(ONE, Offset(50))
    steps = broker.manager.store_checkpoints_steps()
    job = until_job(steps)
    broker.manager.delete(ONE)
    broker.manager.create(ONE, OTHER_ID, broker.config)
    job()
    finish(steps)
    broker.put(ONE, b"new")
    broker.kill()
    broker.start()
    assert broker.values(ONE) == [b"new"]


def test_a_checkpoint_does_not_lower_a_log_start_that_was_answered() -> None:
    """The client was answered that the records are gone: they stay gone over a crash."""
    broker = with_records()
    steps = broker.manager.store_checkpoints_steps()
    job = until_job(steps)
    assert broker.manager.delete_records(ONE, Offset(50)) == 50
    job()
    finish(steps)
    broker.kill()
    broker.start()
    assert broker.manager.get(ONE).log_start == 50


def test_a_partition_deleted_while_its_records_are_is_told_so() -> None:
    broker = with_records()
    steps = broker.manager.delete_records_steps({ONE: Offset(50)})
    job = until_job(steps)
    broker.manager.delete(ONE)
    job()
    outcome = finish(steps)[ONE]
    assert isinstance(outcome, UnknownPartition)
    broker.manager.create(ONE, OTHER_ID, broker.config)
    assert broker.manager.get(ONE).log_start == 0
    broker.kill()
    broker.start()
    assert broker.manager.get(ONE).log_start == 0


def test_until_the_new_start_is_stored_nothing_is_deleted() -> None:
    broker = with_records()
    log = broker.manager.get(ONE)
    before = len(log.segments)
    steps = broker.manager.delete_records_steps({ONE: Offset(50)})
    until_job(steps)
    assert (log.log_start, len(log.segments)) == (0, before)
    with pytest.raises(StopIteration) as end:
        steps.throw(DiskFull("/a"))
    assert isinstance(end.value.value[ONE], DiskFull)
    assert (log.log_start, len(log.segments)) == (0, before)


@pytest.mark.parametrize("operation", ["make_directory", "open", "write", "sync", "rename"])
def test_a_creation_that_dies_in_the_middle_is_finished_by_the_next_start(
    operation: DiskOperation,
) -> None:
    """The metadata has the topic already: whatever is there of its logs is used or made again."""
    new = [NewPartition(one, TOPIC_ID, Broker().config) for one in (ONE, TWO)]
    broker = Broker()
    broker.disk.faults.fail_next(operation, path_part="events-1")
    job = until_job(broker.manager.create_steps(new))
    with pytest.raises(OperatingError):
        job()
    broker.lose_power()
    broker.start()
    assert not broker.report.unusable_partitions
    broker.manager.create_many(new, is_new=False)
    broker.put(TWO, b"works")
    assert broker.values(TWO) == [b"works"]


# -- removal -----------------------------------------------------------------------------------


def test_deleted_partitions_are_removed_by_one_job_at_a_time() -> None:
    """Thousands of them must not take all threads, nor the queue, from flushes."""
    background = HeldBackground()
    broker = Broker(background=background)
    many = wanted(2 * LOGS_PER_SYNC_MAX)
    broker.manager.create_many(many)
    run_blocking(broker.manager.delete_steps([one.partition for one in many]))
    rounds = 0
    while background.jobs:
        assert len(background.jobs) == 1
        work, on_done = background.jobs.pop()
        on_done(Outcome(work()))
        rounds += 1
    assert rounds == 2 * LOGS_PER_SYNC_MAX // TREES_PER_JOB
    assert not [name for name in broker.disk.list_directory("/a") if "many" in name]


def test_a_deletion_tells_which_failed() -> None:
    broker = Broker(roots=("/a", "/b"))
    broker.create(ONE, TWO)
    broker.disk.faults.fail_next("rename", path_part="/a/")
    failures = run_blocking(broker.manager.delete_steps([ONE, TWO, THREE]))
    assert set(failures) == {ONE, THREE}
    assert isinstance(failures[THREE], UnknownPartition)
    assert not broker.manager.is_gone(ONE)


def test_a_partition_is_gone_only_where_nothing_was_left_behind() -> None:
    broker = Broker(roots=("/a", "/b"))
    assert broker.manager.is_gone(ONE)
    broker.disk.faults.fail_next("write", errno.ENOSPC, path_part="/a/")
    broker.disk.faults.fail_next("remove", errno.EMFILE, path_part="/a/")
    with pytest.raises(OperatingError):
        broker.create(ONE)
    assert not broker.manager.is_gone(ONE)
