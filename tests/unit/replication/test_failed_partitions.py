"""A file of one partition is cut or removed: that partition fails, its directory goes on."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from kits.storage.manager_stories import ONE, TWO, Broker
from millstream.model.errors import OperatingError, StorageFailed
from millstream.model.ids import Offset, TopicPartition
from millstream.runtime.disk import ShortFile
from millstream.runtime.scheduler import run_blocking
from millstream.storage.directories.clean_shutdown import is_present
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation


def filled() -> Broker:
    """Two partitions in one directory."""
    broker = Broker()
    broker.create(ONE, TWO)
    for one in (ONE, TWO):
        broker.put(one, b"a", b"b")
        broker.replicate(one)
    return broker


def active_path(log: Log) -> str:
    return log.segments.active.log.path


def cut(broker: Broker, path: str) -> None:
    with broker.disk.open_write(path) as file:
        file.truncate(file.size() - 1)


DAMAGE: dict[str, Callable[[Broker, str], None]] = {
    "cut": cut,
    "removed": lambda broker, path: broker.disk.remove(path),
}


def check_failed_alone(broker: Broker) -> None:
    manager = broker.manager
    assert manager.offline_partitions == [ONE]
    assert [log.partition for log in manager] == [TWO]
    (directory,) = manager.directories
    assert directory.failure is None
    assert list(directory.failed_partitions) == [ONE]
    log = manager.get(ONE)
    refused: list[Callable[[], object]] = [
        lambda: broker.put(ONE, b"x"),
        lambda: log.read(Offset(0), size_max=100, isolation=Isolation.LOG_END),
        log.flush,
        log.check_open,
        lambda: manager.delete_records(ONE, Offset(1)),
        lambda: log.truncate_to(Offset(0)),
    ]
    for call in refused:
        with pytest.raises(StorageFailed):
            call()
    broker.put(TWO, b"x")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_look_finds_what_was_done_to_a_file_that_is_written(how: str) -> None:
    broker = filled()
    DAMAGE[how](broker, active_path(broker.manager.get(ONE)))
    run_blocking(broker.manager.check_directories_steps())
    check_failed_alone(broker)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_flush_does_not_tell_that_lost_records_are_durable(how: str) -> None:
    """And the others, whose flush goes with it, have theirs."""
    broker = filled()
    told: dict[TopicPartition, OperatingError | None] = {}
    DAMAGE[how](broker, active_path(broker.manager.get(ONE)))
    for one in (TWO, ONE):
        broker.manager.flush(broker.manager.get(one), partial(told.__setitem__, one))
    assert isinstance(told[ONE], StorageFailed)
    assert told[TWO] is None
    check_failed_alone(broker)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_segment_that_was_damaged_is_not_closed_as_if_it_were_whole(how: str) -> None:
    broker = filled()
    log = broker.manager.get(ONE)
    log.config = replace(log.config, segment_bytes=log.size_bytes)  # the next append rolls
    DAMAGE[how](broker, active_path(log))
    with pytest.raises(StorageFailed):
        broker.put(ONE, b"x")
    assert len(list(log.segments)) == 1
    check_failed_alone(broker)


def test_what_the_sender_could_not_read_fails_the_log() -> None:
    broker = filled()
    path = active_path(broker.manager.get(ONE))
    cut(broker, path)
    broker.manager.on_read_error(ShortFile(path))
    check_failed_alone(broker)


def test_what_we_cut_or_removed_ourselves_fails_nothing() -> None:
    broker = filled()
    log = broker.manager.get(ONE)
    path = active_path(log)
    log.truncate_to(Offset(1), is_unclean=True)
    broker.manager.on_read_error(ShortFile(path))
    log.truncate_fully(Offset(5))
    broker.manager.on_read_error(ShortFile(path))
    broker.manager.on_read_error(ShortFile("/elsewhere/file"))
    run_blocking(broker.manager.check_directories_steps())
    assert broker.manager.offline_partitions == []


def test_an_error_of_the_disk_while_sending_fails_the_directory() -> None:
    broker = filled()
    path = active_path(broker.manager.get(ONE))
    broker.manager.on_read_error(OSError(5, "Input/output error", path))
    assert broker.manager.offline_partitions == [ONE, TWO]


@pytest.mark.parametrize("how", DAMAGE)
def test_with_a_failed_partition_no_stop_is_clean_and_the_next_start_recovers(how: str) -> None:
    broker = filled()
    DAMAGE[how](broker, active_path(broker.manager.get(ONE)))
    run_blocking(broker.manager.check_directories_steps())
    broker.put(TWO, b"c")
    broker.manager.store_checkpoints()
    broker.stop(epoch=3)
    assert not is_present(broker.disk, "/a")
    report = broker.start()
    assert report.unclean_directories == ["/a"]
    assert broker.manager.offline_partitions == []
    assert broker.values(ONE) == ([b"a"] if how == "cut" else [])
    assert broker.values(TWO) == [b"a", b"b", b"c"]
    broker.put(ONE, b"again")
    assert broker.values(ONE)[-1] == b"again"


def test_a_failed_partition_can_be_deleted_and_made_again() -> None:
    broker = filled()
    cut(broker, active_path(broker.manager.get(ONE)))
    run_blocking(broker.manager.check_directories_steps())
    broker.manager.delete(ONE)
    assert broker.manager.offline_partitions == []
    broker.create(ONE)
    broker.put(ONE, b"new")
    assert broker.manager.directories[0].failed_partitions == {}
    broker.restart()
    assert broker.values(ONE) == [b"new"]
