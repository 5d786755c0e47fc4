"""The leader of one partition: when an append counts, and what a client may believe of it."""

from typing import Any

import pytest

from kits.broker.data_plane import BROKER, DataPlane, HeldBackground
from kits.storage.log_stories import batch_of, of_producer
from millstream.kernels.slots import ENDS_KEPT, NOT_AT_TAIL
from millstream.model.errors import (
    FencedLeaderEpoch,
    OffsetOutOfRange,
    StorageFailed,
    UnknownPartition,
)
from millstream.model.ids import BrokerId, LeaderEpoch, Offset
from millstream.model.invariant import InvariantViolated
from millstream.replication.errors import NotEnoughReplicas, UnknownLeaderEpoch
from millstream.replication.partition import LeaderFacts, Partition
from millstream.storage.config import LogConfig
from millstream.storage.log.reader import Isolation
from millstream.storage.ports import AppendOutcome, PartitionLog
from millstream.storage.producers.machine import Origin
from millstream.testing.record_batches import read_records

EACH = LogConfig(flush_messages=1)
THIRD = LogConfig(flush_messages=3)
OTHER, THIRD_ONE = BrokerId(2), BrokerId(3)


def append(leader: Partition, *values: bytes, acks: int = -1, **spec: Any) -> list[AppendOutcome]:
    outcomes: list[AppendOutcome] = []
    leader.append(batch_of(*values, **spec), acks=acks, done=outcomes.append)
    return outcomes


def led(config: LogConfig = LogConfig()) -> tuple[DataPlane, HeldBackground, Partition]:  # noqa: B008
    background = HeldBackground()
    plane = DataPlane(config, background=background)
    plane.create("t")
    return plane, background, plane.leader("t")


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_an_append_without_flush_counts_at_once_and_is_visible(acks: int) -> None:
    _, _, leader = led()
    outcomes = append(leader, b"a", b"b", acks=acks)
    assert outcomes == [AppendOutcome(Offset(0), Offset(1), None, Offset(0))]
    assert leader.high_watermark == leader.log_end == 2


@pytest.mark.parametrize("acks", [-1, 1])
def test_the_ack_and_the_high_watermark_wait_for_the_flush_that_the_topic_asks_for(
    acks: int,
) -> None:
    """I-01. Kafka's acknowledgement implies the flush, whatever acks is."""
    _, background, leader = led(EACH)
    outcomes = append(leader, b"a", acks=acks)
    assert not outcomes
    assert (leader.high_watermark, leader.log_end) == (0, 1)
    assert background.run() == 1
    assert [outcome.error for outcome in outcomes] == [None]
    assert leader.high_watermark == 1
    assert leader.log.recovery_point == 1


def test_appends_that_come_while_a_flush_runs_share_the_next() -> None:
    _, background, leader = led(EACH)
    outcomes = [append(leader, b"%d" % number) for number in range(5)]
    assert background.run() == 2
    assert [one[0].base_offset for one in outcomes] == [0, 1, 2, 3, 4]
    assert leader.high_watermark == 5


def test_a_flush_is_waited_for_only_by_the_append_that_makes_it_due() -> None:
    _, background, leader = led(THIRD)
    assert append(leader, b"a")
    assert append(leader, b"b")
    third = append(leader, b"c")
    later = append(leader, b"d")
    assert not third
    assert not later, "a newer record must not count before an older one"
    background.run()
    assert third[0].base_offset == 2
    assert later[0].base_offset == 3
    assert leader.high_watermark == 4


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_retry_is_not_told_that_its_first_try_counts_before_it_does(acks: int) -> None:
    """I-01, I-20. The duplicate arrives while the flush of the original runs."""
    _, background, leader = led(EACH)
    first = append(leader, b"a", acks=acks, spec=of_producer(3, 0))
    retry = append(leader, b"a", acks=acks, spec=of_producer(3, 0))
    assert not first
    assert not retry
    background.run()
    assert retry[0].is_duplicate
    assert (first[0].base_offset, retry[0].base_offset, leader.log_end) == (0, 0, 1)


def test_a_failed_flush_fails_everybody_who_waits_and_moves_nothing() -> None:
    plane, background, leader = led(EACH)
    plane.disk.faults.fail_directory("/data")
    outcomes = [append(leader, b"a"), append(leader, b"b", acks=1)]
    if not any(outcomes):
        background.run()
    assert [type(one[0].error) for one in outcomes] == [StorageFailed, StorageFailed]
    assert leader.high_watermark == 0
    plane.disk.faults.heal()
    assert isinstance(append(leader, b"d")[0].error, StorageFailed), "never trusted again"


def test_min_insync_replicas_counts_up_to_the_number_of_replicas() -> None:
    """As Kafka 4: a topic with one replica that asks for two in sync takes acks=all."""
    plane, _, _ = led()
    plane.create("one", number=8, configs={"min.insync.replicas": "2"})
    assert append(plane.leader("one"), b"a")[0].error is None


def test_too_few_replicas_in_sync_refuse_acks_all_alone_and_write_nothing() -> None:
    _, _, leader = led()
    leader.configure(
        LeaderFacts(
            leader.topic_id, BROKER, LeaderEpoch(0), (BROKER, OTHER, THIRD_ONE), (BROKER,), 2
        )
    )
    assert isinstance(append(leader, b"a")[0].error, NotEnoughReplicas)
    assert leader.log_end == 0
    assert not leader.slot.allows_fast_path_acks_all, "the fast path would not ask"
    assert append(leader, b"a", acks=1)[0].error is None


@pytest.mark.parametrize(
    ("current", "error"),
    [(-1, None), (4, None), (3, FencedLeaderEpoch), (5, UnknownLeaderEpoch)],
)
def test_a_leader_epoch_is_fenced_in_both_directions(
    current: int, error: type[Exception] | None
) -> None:
    """I-15, KIP-320."""
    plane, _, _ = led()
    plane.create("old", number=8, epoch=4)
    leader = plane.leader("old")
    if error is None:
        leader.check_leader_epoch(current)
        return
    with pytest.raises(error):
        leader.check_leader_epoch(current)


def test_batches_carry_the_leader_epoch_of_the_metadata() -> None:
    plane, _, _ = led()
    plane.create("old", number=8, epoch=4)
    append(plane.leader("old"), b"a")
    assert plane.leader("old").log.latest_epoch == 4


def test_a_leader_epoch_that_goes_down_is_our_bug() -> None:
    plane, _, _ = led()
    plane.create("old", number=8, epoch=4)
    leader = plane.leader("old")
    with pytest.raises(InvariantViolated, match="I-15"):
        leader.configure(
            LeaderFacts(leader.topic_id, BROKER, LeaderEpoch(3), (BROKER,), (BROKER,), 1)
        )


def test_a_restart_makes_everything_in_the_log_visible_again() -> None:
    """The high watermark's file may be older than the log; the only replica has it all."""
    plane = DataPlane()
    plane.create("t")
    append(plane.leader("t"), b"a", b"b")
    plane.disk.kill()
    plane.disk = plane.disk.after_kill()
    plane.start()
    assert plane.leader("t").high_watermark == 2


def test_closing_tells_those_who_wait() -> None:
    plane, background, leader = led(EACH)
    outcomes = append(leader, b"a")
    heard: list[str] = []

    class Listener:
        def leadership_gained(self, log: PartitionLog, leader_epoch: LeaderEpoch) -> None:
            heard.append(f"gained {log.partition} {leader_epoch}")

        def leadership_lost(self, log: PartitionLog) -> None:
            heard.append(f"lost {log.partition}")

        def high_watermark_moved(self, log: PartitionLog) -> None:
            heard.append(f"{log.partition} up to {log.high_watermark}")

    leader.watch_leadership(Listener())
    plane.delete("t")
    assert [type(outcome.error) for outcome in outcomes] == [UnknownPartition]
    assert heard == ["gained t-0 0", "lost t-0"]
    background.run()
    assert len(outcomes) == 1


def test_what_each_reader_may_see() -> None:
    _, background, leader = led(EACH)
    append(leader, b"a", spec=of_producer(4, 0, txn=True))
    assert leader.visible_end(Isolation.LOG_END) == 1
    assert leader.visible_end(Isolation.HIGH_WATERMARK) == 0
    background.run()
    assert leader.visible_end(Isolation.HIGH_WATERMARK) == 1
    assert leader.visible_end(Isolation.COMMITTED) == leader.last_stable_offset == 0
    result = leader.read(Offset(0), size_max=1000, isolation=Isolation.HIGH_WATERMARK)
    assert result.data.size_bytes > 0
    assert leader.log_start == 0


def test_coordinators_append_without_sequences() -> None:
    _, _, leader = led()
    outcomes: list[AppendOutcome] = []
    port: PartitionLog = leader
    spec = of_producer(9, -1)
    port.append(batch_of(b"a", spec=spec), acks=-1, done=outcomes.append, origin=Origin.COORDINATOR)
    assert outcomes[0].error is None


# -- coming back to the end ----------------------------------------------------------------------


def _tail(leader: Partition, offset: int, size_max: int = 10_000) -> list[bytes | None]:
    result = leader.read(Offset(offset), size_max=size_max, isolation=Isolation.HIGH_WATERMARK)
    assert (result.high_watermark, result.log_start) == (leader.high_watermark, leader.log_start)
    return [record.value for record in read_records(result.data.read())]


def test_a_reader_that_comes_back_to_the_end_finds_what_came_since() -> None:
    _, _, leader = led()
    append(leader, b"a", b"b")
    assert _tail(leader, 0) == [b"a", b"b"]
    append(leader, b"c")
    append(leader, b"d")
    assert _tail(leader, 2) == [b"c", b"d"]
    assert _tail(leader, 4) == []
    append(leader, b"e")
    assert _tail(leader, 2) == [b"c", b"d", b"e"], "a slower reader of the same end"
    assert _tail(leader, 4) == [b"e"]


def test_the_remembered_end_gives_way_to_limits_rolls_and_truncation() -> None:
    _, _, leader = led()
    append(leader, b"a")
    _tail(leader, 0)
    append(leader, b"b" * 50)
    append(leader, b"c")
    first = leader.read(Offset(1), size_max=1, isolation=Isolation.HIGH_WATERMARK).data
    assert [record.value for record in read_records(first.read())] == [b"b" * 50]
    leader.log.roll()
    append(leader, b"d")
    assert _tail(leader, 1) == [b"b" * 50, b"c"]
    assert _tail(leader, 3) == [b"d"]
    append(leader, b"e")
    assert _tail(leader, 4) == [b"e"]


def test_the_remembered_end_is_forgotten_when_the_log_was_cut() -> None:
    """Only a follower cuts its log; the same offset is at another place afterwards."""
    _, _, leader = led()
    append(leader, b"a")
    append(leader, b"b")
    append(leader, b"c")
    assert len(_tail(leader, 0)) == 3
    leader.log.set_high_watermark(Offset(1))
    leader.log.truncate_to(Offset(1))
    append(leader, b"x" * 300)
    append(leader, b"y")
    append(leader, b"z")
    assert _tail(leader, 3) == [b"z"]


def test_only_so_many_ends_are_remembered() -> None:
    """I-37."""
    _, _, leader = led()
    for number in range(50):
        append(leader, b"%d" % number)
        assert _tail(leader, number) == [b"%d" % number]
    known = [at for at in range(50) if leader.slot.tail(at, 10_000) != NOT_AT_TAIL]
    assert known == list(range(51 - ENDS_KEPT, 50))
    assert len(_tail(leader, 3)) == 47


def test_the_remembered_end_is_of_no_use_below_the_log_start() -> None:
    _, _, leader = led()
    append(leader, b"a")
    _tail(leader, 0)
    append(leader, b"b", b"c")
    leader.log.advance_log_start(Offset(2))
    with pytest.raises(OffsetOutOfRange):
        _tail(leader, 1)


def test_the_remembered_end_is_not_looked_for_in_a_newer_segment() -> None:
    _, _, leader = led()
    append(leader, b"a")
    assert _tail(leader, 0) == [b"a"]
    append(leader, b"b")
    leader.log.roll()
    append(leader, b"c" * 50)
    append(leader, b"d" * 50)
    assert _tail(leader, 1) == [b"b"]


@pytest.mark.parametrize("isolation", [Isolation.HIGH_WATERMARK, Isolation.COMMITTED])
def test_the_remembered_end_shows_nothing_beyond_the_high_watermark(isolation: Isolation) -> None:
    """I-07."""
    _, _, leader = led()
    append(leader, b"a")
    leader.read(Offset(0), size_max=10_000, isolation=isolation)
    append(leader, b"b")
    append(leader, b"c")
    leader.slot.high_watermark = Offset(2)
    result = leader.read(Offset(1), size_max=10_000, isolation=isolation)
    assert [record.value for record in read_records(result.data.read())] == [b"b"]


def test_the_remembered_end_is_of_no_use_when_the_directory_failed() -> None:
    _, _, leader = led()
    append(leader, b"a")
    _tail(leader, 0)
    append(leader, b"b")
    leader.log.owner.failed(OSError(5, "broken"))
    with pytest.raises(StorageFailed):
        _tail(leader, 1)
