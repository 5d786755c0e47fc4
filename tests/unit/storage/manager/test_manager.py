"""All logs of a broker: created, deleted, maintained; names that cannot leave the directory."""

import pytest

from kits.storage.log_stories import of_producer
from kits.storage.manager_stories import ONE, OTHER_ID, THREE, TOPIC_ID, TWO, Broker
from millstream.model.errors import (
    InconsistentTopicId,
    OffsetOutOfRange,
    OperatingError,
    UnknownPartition,
)
from millstream.model.ids import LeaderEpoch, Offset, TopicPartition
from millstream.runtime.background import BackgroundFullError
from millstream.storage import names
from millstream.storage.config import DAY_MS
from millstream.storage.manager.log_manager import NewPartition
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.record_batches import build_batch
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.crash_fates import keep_all, keep_none

# -- create, get, delete


def test_a_created_log_is_found_after_every_kind_of_end() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.put(ONE, b"a", b"b")
    broker.restart()
    assert broker.values(ONE) == [b"a", b"b"]
    assert broker.report.loaded[ONE].recovered_segments == 0
    broker.put(ONE, b"c")
    broker.kill()
    broker.start()
    assert broker.values(ONE) == [b"a", b"b", b"c"]
    assert broker.report.loaded[ONE].recovered_segments == 1


def test_a_created_partition_survives_a_power_loss_right_away() -> None:
    """The controller relies on it once it was answered."""
    broker = Broker()
    broker.create(ONE)
    broker.lose_power()
    broker.start()
    assert broker.manager.get(ONE).context.topic_id == TOPIC_ID


def test_creating_it_again_gives_the_same_log_and_another_id_is_refused() -> None:
    broker = Broker()
    (log,) = broker.create(ONE)
    broker.put(ONE, b"a")
    assert broker.create(ONE) == [log]
    for again in (lambda: None, broker.restart):
        again()
        with pytest.raises(InconsistentTopicId):
            broker.manager.create(ONE, OTHER_ID, SMALL_SEGMENTS)
        assert broker.values(ONE) == [b"a"]


def test_many_are_created_together_or_with_a_clear_refusal() -> None:
    broker = Broker(roots=("/a", "/b"))
    wanted = [NewPartition(one, TOPIC_ID, SMALL_SEGMENTS) for one in (ONE, TWO, THREE, ONE)]
    logs = broker.manager.create_many(wanted)
    assert [log.partition for log in logs] == [ONE, TWO, THREE, ONE]
    assert logs[0] is logs[3]
    counts = [sum(log.owner is one for log in logs[:3]) for one in broker.manager.directories]
    assert sorted(counts) == [1, 2]
    broker.restart()
    assert len(broker.manager) == 3
    other = TopicPartition("other", 0)
    twice = [NewPartition(other, one, SMALL_SEGMENTS) for one in (TOPIC_ID, OTHER_ID)]
    with pytest.raises(InconsistentTopicId):
        broker.manager.create_many(twice)
    assert len(broker.manager) == 3


@pytest.mark.parametrize(
    "partition",
    [
        TopicPartition(topic, 0)
        for topic in ("", ".", "..", "../x", "a/b", "a b", "a\0b", "é", "x" * 250, "a\n", "*")
    ]
    + [TopicPartition("a", number) for number in (-1, 2**31, 10**12)]
    + [TopicPartition("__cluster_metadata", 0)],
    ids=repr,
)
def test_names_that_lead_elsewhere_are_refused(partition: TopicPartition) -> None:
    """A topic's name becomes a path."""
    broker = Broker()
    before = broker.disk.list_directory("/a")
    with pytest.raises(OperatingError):
        broker.create(partition)
    assert broker.disk.list_directory("/a") == before
    assert broker.disk.list_directory("/") == ["a"]


@pytest.mark.parametrize("topic", ["x" * 249, "a-1", "a-", "-", "a.b_c-D", "a-0.delete"])
def test_legal_but_odd_names_come_back_as_they_were(topic: str) -> None:
    broker = Broker()
    partition = TopicPartition(topic, 12)
    broker.create(partition)
    broker.put(partition, b"a")
    broker.restart()
    assert broker.values(partition) == [b"a"]
    broker.manager.delete(partition)
    broker.restart()
    assert len(broker.manager) == 0


def test_an_unknown_partition_is_told_as_such() -> None:
    with pytest.raises(UnknownPartition):
        Broker().manager.get(ONE)
    with pytest.raises(UnknownPartition):
        Broker().manager.delete(ONE)


@pytest.mark.parametrize("choose", [keep_none, keep_all])
def test_a_deleted_partition_is_gone_for_good(choose: object) -> None:
    broker = Broker()
    broker.create(ONE, TWO)
    broker.fill(ONE, 50)
    broker.put(TWO, b"stays")
    broker.manager.store_checkpoints()
    broker.manager.delete(ONE)
    with pytest.raises(UnknownPartition):
        broker.manager.get(ONE)
    broker.lose_power(choose)  # type: ignore[arg-type]
    broker.start()
    assert [log.partition for log in broker.manager] == [TWO]
    assert [name for name in broker.disk.list_directory("/a") if "events-0" in name] == []


def test_a_successor_of_the_same_name_starts_from_nothing() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 50)
    broker.replicate(ONE)
    broker.manager.delete_records(ONE, Offset(30))
    broker.manager.store_checkpoints()
    broker.manager.delete(ONE)
    log = broker.manager.create(ONE, OTHER_ID, SMALL_SEGMENTS)
    assert (log.log_start, log.log_end, log.high_watermark) == (0, 0, 0)
    broker.put(ONE, b"new")
    broker.kill()
    broker.start()
    log = broker.manager.get(ONE)
    assert (log.log_start, log.high_watermark) == (0, 0)
    assert broker.values(ONE) == [b"new"]


def test_checkpoints_of_a_deleted_partition_do_not_pass_to_its_successor() -> None:
    """A crash between the renaming and the checkpoints leaves them behind."""
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 50)
    broker.replicate(ONE)
    broker.manager.delete_records(ONE, Offset(30))
    broker.manager.store_checkpoints()
    broker.disk.rename("/a/events-0", f"/a/events-0.{'0' * 32}-delete")
    broker.kill()
    broker.start()
    broker.create(ONE)
    broker.put(ONE, b"new")
    broker.manager.run_retention()
    broker.kill()
    broker.start()
    log = broker.manager.get(ONE)
    assert (log.log_start, log.high_watermark, log.recovery_point) == (0, 0, 0)
    assert broker.values(ONE) == [b"new"]


class FullBackground(InlineBackground):
    """Has no room until the test sets it."""

    def __init__(self) -> None:
        self.has_room = False

    def submit(self, work, on_done, *, name):  # type: ignore[no-untyped-def]
        if not self.has_room:
            raise BackgroundFullError("no room")
        super().submit(work, on_done, name=name)


def test_deleting_more_than_the_background_takes_goes_on_later() -> None:
    background = FullBackground()
    broker = Broker(background=background)
    broker.create(ONE, TWO)
    broker.manager.delete(ONE)
    broker.manager.delete(TWO)
    assert sum(name.endswith("-delete") for name in broker.disk.list_directory("/a")) == 2
    background.has_room = True
    broker.manager.run_retention()
    assert not any(name.endswith("-delete") for name in broker.disk.list_directory("/a"))


def test_deleting_during_a_flush_leaves_the_directory_alone() -> None:
    background = FullBackground()
    broker = Broker(background=background)
    broker.create(ONE, TWO)
    results: list[object] = []
    broker.put(ONE, b"a")
    broker.put(TWO, b"b")
    broker.manager.flush(broker.manager.get(ONE), results.append)
    broker.manager.flush(broker.manager.get(TWO), results.append)
    broker.manager.delete(ONE)
    background.has_room = True
    broker.manager.flush_due()
    assert results == [None, None]
    assert broker.manager.get(TWO).recovery_point == 1
    assert broker.values(TWO) == [b"b"]


# -- upkeep


def test_retention_runs_over_all_logs() -> None:
    config = SMALL_SEGMENTS.__class__(
        segment_bytes=2048, retention_ms=DAY_MS, file_delete_delay_ms=1000
    )
    broker = Broker(config=config)
    broker.create(ONE, TWO)
    broker.fill(ONE, 60)
    broker.put(TWO, b"a")
    broker.replicate(ONE)
    assert broker.manager.run_retention() == 0
    broker.clock.advance(DAY_MS + 1)
    assert broker.manager.run_retention() == 4
    assert broker.values(ONE) == []
    assert broker.values(TWO) == [b"a"], "not yet replicated"
    names_left = broker.disk.list_directory("/a/events-0")
    assert any(name.endswith(".deleted") for name in names_left)
    broker.clock.advance(1000)
    broker.manager.run_retention()
    names_left = broker.disk.list_directory("/a/events-0")
    assert not any(name.endswith(".deleted") for name in names_left)


def test_files_go_when_they_are_due_whatever_others_wait_for() -> None:
    slow = SMALL_SEGMENTS.__class__(
        segment_bytes=2048, retention_bytes=0, file_delete_delay_ms=10 * DAY_MS
    )
    fast = SMALL_SEGMENTS.__class__(
        segment_bytes=2048, retention_bytes=0, file_delete_delay_ms=1000
    )
    broker = Broker()
    for one, config in ((ONE, slow), (TWO, fast)):
        broker.manager.create(one, TOPIC_ID, config)
        broker.fill(one, 60)
        broker.replicate(one)
    broker.manager.run_retention()
    broker.clock.advance(1000)
    broker.manager.run_retention()
    left = [
        any(name.endswith(names.DELETED) for name in broker.disk.list_directory(f"/a/{one}"))
        for one in (ONE, TWO)
    ]
    assert left == [True, False]


def test_one_damaged_log_does_not_stop_retention_for_the_others() -> None:
    config = SMALL_SEGMENTS.__class__(segment_bytes=2048, retention_ms=DAY_MS)
    broker = Broker(config=config)
    broker.create(ONE, TWO)
    for one in (ONE, TWO):
        broker.fill(one, 60)
        broker.replicate(one)
    broker.restart()
    for one in (ONE, TWO):
        broker.replicate(one)
    with broker.disk.open_write(f"/a/events-0/{0:020d}.log") as file:
        file.write_at(8, b"\xff\xff\xff\xff")
    broker.disk.remove(f"/a/events-0/{0:020d}.timeindex")
    broker.clock.advance(DAY_MS + 1)
    assert broker.manager.run_retention() == 4
    assert broker.values(TWO) == []
    assert broker.manager.get(ONE).log_start == 0


def test_deleted_records_stay_deleted_at_once() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 60)
    broker.replicate(ONE)
    broker.manager.get(ONE).flush()
    assert broker.manager.delete_records(ONE, Offset(25)) == 25
    broker.lose_power()
    broker.start()
    assert broker.manager.get(ONE).log_start == 25
    assert len(broker.values(ONE)) == 35


def test_records_above_the_high_watermark_cannot_be_deleted() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 10)
    broker.manager.get(ONE).set_high_watermark(Offset(5))
    with pytest.raises(OffsetOutOfRange):
        broker.manager.delete_records(ONE, Offset(6))
    assert broker.manager.get(ONE).log_start == 0


def test_flush_ms_and_flush_messages_and_rolls_ask_for_flushes() -> None:
    config = SMALL_SEGMENTS.__class__(segment_bytes=2048, flush_ms=500, flush_messages=10)
    broker = Broker(config=config)
    broker.create(ONE)
    log = broker.manager.get(ONE)
    broker.fill(ONE, 3)
    broker.manager.flush_due()
    assert log.recovery_point == 0
    broker.clock.advance(500)
    broker.manager.flush_due()
    assert log.recovery_point == 3
    broker.fill(ONE, 10)
    broker.manager.flush_due()
    assert log.recovery_point == 13
    broker.fill(ONE, 7)
    assert len(log.segments) == 2
    broker.manager.flush_due()
    assert log.recovery_point == 20


def test_idle_producers_are_forgotten() -> None:
    broker = Broker()
    broker.create(ONE)
    log = broker.manager.get(ONE)
    log.append_as_leader(
        build_batch([(b"k", b"v")], of_producer(1, 0)), leader_epoch=LeaderEpoch(0)
    )
    assert broker.manager.expire_producers() == 0
    broker.clock.advance(DAY_MS)
    assert broker.manager.expire_producers() == 1
