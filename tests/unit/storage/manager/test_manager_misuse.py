"""Mistakes of a caller cost a clear error, never data."""

from collections.abc import Callable
from uuid import UUID

import pytest

from kits.storage.manager_stories import Broker
from millstream.kernels.compression import Codec
from millstream.model.errors import (
    LogDirectoryClosed,
    LogDirectoryLocked,
    OperatingError,
    UnknownPartition,
)
from millstream.model.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.storage.manager.log_manager import LogManager
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all
from millstream.testing.record_batches import build_batch

TOPIC_ID = TopicId(UUID(int=1))
ONE = TopicPartition("one", 0)

USES: list[Callable[[Log], object]] = [
    lambda log: log.append_as_leader(build_batch([(b"k", b"v")]), leader_epoch=LeaderEpoch(0)),
    lambda log: log.append_as_follower(build_batch([(b"k", b"v")])),
    lambda log: log.read(Offset(0), size_max=1, isolation=Isolation.LOG_END),
    lambda log: log.roll(),
    lambda log: log.truncate_to(Offset(0)),
    lambda log: log.truncate_fully(Offset(9)),
]


def filled(broker: Broker) -> Log:
    log = broker.manager.create(ONE, TOPIC_ID, SMALL_SEGMENTS)
    log.append_as_leader(build_batch([(b"k", b"v")] * 5), leader_epoch=LeaderEpoch(0))
    log.flush()
    return log


def test_creating_without_a_start_is_refused_and_touches_nothing() -> None:
    broker = Broker()
    filled(broker)
    broker.stop()
    unstarted = broker.new_manager()
    with pytest.raises(LogDirectoryClosed):
        unstarted.create(ONE, TOPIC_ID, SMALL_SEGMENTS)
    broker.start()
    assert len(read_all(broker.manager.get(ONE))) == 5


def test_creating_after_a_start_that_found_the_lock_taken_is_refused() -> None:
    broker = Broker()
    log = filled(broker)
    other = broker.new_manager()
    with pytest.raises(LogDirectoryLocked):
        other.start(lambda _partition, _topic_id: SMALL_SEGMENTS)
    with pytest.raises(LogDirectoryClosed):
        other.create(ONE, TOPIC_ID, SMALL_SEGMENTS)
    assert len(read_all(log)) == 5


@pytest.mark.parametrize("use", USES)
def test_a_closed_log_refuses_every_use(use: Callable[[Log], object]) -> None:
    broker = Broker()
    log = filled(broker)
    broker.stop()
    with pytest.raises(UnknownPartition):
        use(log)
    broker.start()
    assert len(read_all(broker.manager.get(ONE))) == 5


@pytest.mark.parametrize("use", USES)
def test_a_deleted_log_refuses_every_use_and_the_directory_stays(
    use: Callable[[Log], object],
) -> None:
    broker = Broker()
    log = filled(broker)
    broker.manager.delete(ONE)
    with pytest.raises(UnknownPartition):
        use(log)
    assert [one.failure for one in broker.manager.directories] == [None] * len(broker.roots)
    filled(broker)


def test_a_directory_that_came_from_elsewhere_is_not_overwritten() -> None:
    broker = Broker()
    root = broker.roots[0]
    broker.disk.make_directories(f"{root}/{ONE}")
    with pytest.raises(OperatingError, match="was not created by us"):
        broker.manager.create(ONE, TOPIC_ID, SMALL_SEGMENTS)


@pytest.mark.parametrize("directories", ["/data", [], ["/data", "/data"]])
def test_wrong_directories_are_refused_before_anything_is_made(directories: list[str]) -> None:
    broker = Broker()
    with pytest.raises((TypeError, ValueError)):
        LogManager(broker.new_manager()._dependencies, directories)


def test_a_start_that_failed_in_the_configuration_keeps_no_lock() -> None:
    broker = Broker()
    filled(broker)
    broker.stop()

    def broken(_partition: TopicPartition, _topic_id: TopicId | None) -> LogConfig:
        raise KeyError("no such topic")

    with pytest.raises(KeyError):
        broker.new_manager().start(broken)
    broker.start()
    assert len(read_all(broker.manager.get(ONE))) == 5


def test_a_second_start_is_refused() -> None:
    broker = Broker()
    with pytest.raises(OperatingError, match="started already"):
        broker.manager.start(lambda _partition, _topic_id: SMALL_SEGMENTS)


@pytest.mark.parametrize("topic_id", [UUID(int=0), "abc", None])
def test_an_illegal_topic_id_is_refused_before_anything_is_made(topic_id: object) -> None:
    broker = Broker()
    with pytest.raises(OperatingError, match="topic id"):
        broker.manager.create(ONE, topic_id, SMALL_SEGMENTS)  # type: ignore[arg-type]
    assert not broker.disk.exists(f"{broker.roots[0]}/{ONE}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_bytes": 0},
        {"segment_bytes": "1GB"},
        {"retention_ms": -2},
        {"index_interval_bytes": -1},
        {"segment_jitter_ms": -5},
        {"min_cleanable_dirty_ratio": 5.0},
        {"compression": "gzip"},
        {"compression": Codec.GZIP, "compression_level": 99},
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(reversed(wrong)).split("_")[0]):
        LogConfig(**wrong)  # type: ignore[arg-type]
