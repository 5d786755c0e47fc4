"""What a start of the log manager finds, trusts and does not touch."""

import pytest

from kits.storage.manager_stories import ONE, OTHER_ID, TOPIC_ID, TWO, Broker
from millstream.model.errors import (
    LogDirectoryLocked,
    StorageFailed,
    UnknownPartition,
)
from millstream.model.ids import NO_BROKER_EPOCH, Offset, TopicId, TopicPartition
from millstream.runtime.disk import remove_tree
from millstream.storage import names
from millstream.storage.directories.clean_shutdown import is_present
from millstream.storage.directories.partition_metadata import encode_topic_id
from millstream.storage.manager.log_manager import NewPartition
from millstream.testing.log_kit import SMALL_SEGMENTS

# -- what a start finds


def test_leftovers_of_deletions_are_removed_and_nothing_else() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.stop()
    doomed = f"/a/events-7.{'ab' * 16}-delete"
    broker.disk.make_directories(f"{doomed}/deeper")
    broker.write_file(f"{doomed}/{0:020d}.log", b"x")
    for name in ("do-not-delete", "events-8-delete", "backup", "events-9-future"):
        broker.disk.make_directories(f"/a/{name}")
        broker.write_file(f"/a/{name}/file", b"precious")
    broker.write_file("/a/notes-1", b"a file, not a partition")
    broker.start()
    assert not broker.disk.exists(doomed)
    for name in ("do-not-delete", "events-8-delete", "backup", "events-9-future"):
        assert broker.disk.list_directory(f"/a/{name}") == ["file"]
    assert [log.partition for log in broker.manager] == [ONE]


@pytest.mark.parametrize("name", ["events-00", "events-01", "events-٣", "events-99999999999", "-1"])
def test_directories_that_only_look_like_partitions_are_left_alone(name: str) -> None:
    broker = Broker()
    broker.create(ONE)
    broker.stop()
    broker.disk.make_directories(f"/a/{name}")
    broker.start()
    assert [log.partition for log in broker.manager] == [ONE]
    assert broker.disk.list_directory(f"/a/{name}") == []


def test_kafkas_own_metadata_log_is_not_ours() -> None:
    broker = Broker()
    broker.stop()
    broker.disk.make_directories("/a/__cluster_metadata-0")
    broker.write_file(f"/a/__cluster_metadata-0/{0:020d}.log", b"not for us")
    broker.start()
    assert len(broker.manager) == 0
    assert broker.disk.list_directory("/a/__cluster_metadata-0") == [f"{0:020d}.log"]


def copied(broker: Broker, source: str, target: str) -> None:
    broker.disk.make_directories(target)
    for name in broker.disk.list_directory(source):
        with broker.disk.open_read(f"{source}/{name}") as file:
            broker.write_file(f"{target}/{name}", file.read_at(0, 1 << 20))


def in_two_places() -> tuple[Broker, str, str]:
    """A broker with data in ONE, stopped; (broker, ONE's directory, where a copy could be)."""
    broker = Broker(roots=("/a", "/b"))
    broker.create(ONE, TWO)
    broker.put(ONE, b"a")
    broker.put(TWO, b"fine")
    context = broker.manager.get(ONE).context.directory
    broker.stop(epoch=5)
    return broker, context, "/b/events-0" if context.startswith("/a") else "/a/events-0"


def test_a_partition_with_records_in_two_directories_is_set_aside_and_kept() -> None:
    """Which of them is the right one only the operator can know; the others start."""
    broker, context, other = in_two_places()
    copied(broker, context, other)
    broker.write_file(f"{other}/note", b"precious")
    report = broker.start()
    assert "/a" in report.unusable_partitions[ONE]
    assert "/b" in report.unusable_partitions[ONE]
    assert broker.values(TWO) == [b"fine"]
    with pytest.raises(UnknownPartition):
        broker.manager.get(ONE)
    with pytest.raises(StorageFailed):
        broker.create(ONE)
    broker.stop()
    assert broker.disk.exists(f"{other}/note")
    remove_tree(broker.disk, other)
    broker.start()
    assert broker.values(ONE) == [b"a"]


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize("has_segment", [True, False])
def test_an_empty_copy_of_a_partition_gives_way(has_metadata: bool, has_segment: bool) -> None:
    """An interrupted creation left it; later, as the only copy, it would pass for the partition."""
    broker, context, other = in_two_places()
    broker.disk.make_directories(other)
    if has_metadata:
        copied(broker, context, other)
        for name in broker.disk.list_directory(other):
            if name != names.PARTITION_METADATA:
                broker.disk.remove(f"{other}/{name}")
    if has_segment:
        for suffix in names.SEGMENT_SUFFIXES:
            broker.write_file(f"{other}/{0:020d}{suffix}", b"")
    report = broker.start()
    assert broker.values(ONE) == [b"a"]
    assert report.surplus_copies == [other]
    assert report.unusable_partitions == {}
    assert report.last_broker_epoch == 5
    assert broker.restart().surplus_copies == []


def test_a_copy_whose_records_all_expired_is_no_empty_copy() -> None:
    broker, _, other = in_two_places()
    broker.disk.make_directories(other)
    broker.write_file(f"{other}/{500:020d}.log", b"")
    assert list(broker.start().unusable_partitions) == [ONE]
    assert broker.disk.exists(f"{other}/{500:020d}.log")


def test_an_empty_copy_of_another_topic_gives_way_but_stays() -> None:
    broker, _, other = in_two_places()
    broker.disk.make_directories(other)
    broker.write_file(f"{other}/{names.PARTITION_METADATA}", encode_topic_id(OTHER_ID))
    report = broker.start()
    assert broker.values(ONE) == [b"a"]
    assert report.surplus_copies == [other]
    assert broker.disk.exists(other)


@pytest.mark.parametrize("other_id", [TOPIC_ID, OTHER_ID, None])
def test_of_two_empty_copies_the_one_with_a_topic_counts(other_id: TopicId | None) -> None:
    broker = Broker(roots=("/a", "/b"))
    broker.create(ONE)
    context = broker.manager.get(ONE).context.directory
    broker.stop()
    other = "/b/events-0" if context.startswith("/a") else "/a/events-0"
    broker.disk.make_directories(other)
    if other_id is not None:
        broker.write_file(f"{other}/{names.PARTITION_METADATA}", encode_topic_id(other_id))
    report = broker.start()
    assert list(report.unusable_partitions) == ([ONE] if other_id == OTHER_ID else [])
    if other_id != OTHER_ID:
        assert broker.manager.get(ONE).context.topic_id == TOPIC_ID
    if other_id is None:
        assert broker.manager.get(ONE).context.directory == context


def test_a_copy_that_cannot_be_looked_at_leaves_the_other_alone() -> None:
    broker, context, other = in_two_places()
    broker.disk.make_directories(other)
    broker.disk.faults.fail_next("list", path_part=context)
    report = broker.start()
    assert list(report.failed_directories) == [context[:2]]
    assert list(report.unusable_partitions) == [ONE]
    assert broker.disk.exists(other)


def test_a_lock_that_is_taken_costs_the_other_directories_nothing() -> None:
    """The broker epoch of the last clean stop is worth a place in the ISRs."""
    broker = Broker(roots=("/a", "/b"))
    broker.create(ONE, TWO)
    broker.stop(epoch=5)
    lock = broker.disk.another_process().lock_directory("/b")
    with pytest.raises(LogDirectoryLocked):
        broker.start()
    broker.manager.close()
    lock.release()
    report = broker.start()
    assert report.unclean_directories == []
    assert report.last_broker_epoch == 5


def test_a_start_that_failed_leaves_no_proof_of_a_clean_stop() -> None:
    """Its logs were not all opened, and the next start must check them."""
    broker = Broker(roots=("/a", "/b"))
    broker.create(ONE, TWO)
    broker.stop()
    lock = broker.disk.another_process().lock_directory("/b")
    broker.disk.remove("/b/.kafka_cleanshutdown")
    with pytest.raises(LogDirectoryLocked):
        broker.start()
    broker.manager.close()
    assert not is_present(broker.disk, "/b"), "another process runs there"
    lock.release()
    report = broker.start()
    assert report.unclean_directories == ["/b"]
    assert len(broker.manager) == 2


def test_a_locked_directory_is_somebody_elses() -> None:
    broker = Broker()
    with pytest.raises(LogDirectoryLocked):
        Broker.new_manager(broker).start(lambda _partition, _topic_id: SMALL_SEGMENTS)
    broker.stop()
    second = broker.new_manager()
    second.start(lambda _partition, _topic_id: SMALL_SEGMENTS)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"version: 0\n", b"\xff" * 40])
def test_a_partition_of_unknown_topic_is_set_aside(content: bytes) -> None:
    """Served under the wrong topic it would be worse than not at all."""
    broker = Broker()
    broker.create(ONE, TWO)
    broker.put(TWO, b"fine")
    broker.stop()
    broker.write_file("/a/events-0/partition.metadata", content)
    report = broker.start()
    assert list(report.unusable_partitions) == [ONE]
    assert broker.values(TWO) == [b"fine"]
    with pytest.raises(UnknownPartition):
        broker.manager.get(ONE)
    with pytest.raises(StorageFailed):
        broker.create(ONE)
    with broker.disk.open_read("/a/events-0/partition.metadata") as file:
        assert file.read_at(0, 99) == content


def test_a_partition_without_an_id_gets_one() -> None:
    """An interrupted creation, or a directory of an old Kafka."""
    broker = Broker()
    broker.create(ONE)
    broker.put(ONE, b"a")
    broker.stop()
    broker.disk.remove("/a/events-0/partition.metadata")
    broker.start()
    broker.create(ONE)
    assert broker.values(ONE) == [b"a"]
    broker.restart()
    assert broker.manager.get(ONE).context.topic_id == TOPIC_ID


def test_one_log_that_cannot_be_understood_does_not_stop_the_others() -> None:
    """Its transactions cannot be followed: a marker in a trusted segment is damaged."""
    broker = Broker()
    broker.create(ONE, TWO)
    broker.fill(ONE, 60)
    broker.put(TWO, b"fine")
    broker.stop()
    for name in broker.disk.list_directory("/a/events-0"):
        if name.endswith((".snapshot", "index")):
            broker.disk.remove(f"/a/events-0/{name}")
    with broker.disk.open_write(f"/a/events-0/{0:020d}.log") as file:
        file.write_at(8, b"\xff\xff\xff\xff")
    report = broker.start()
    assert list(report.unusable_partitions) == [ONE]
    assert broker.values(TWO) == [b"fine"]


# -- the proof of a clean stop


def test_a_clean_stop_is_proven_once() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.put(ONE, b"a")
    broker.stop(epoch=41)
    assert is_present(broker.disk, "/a")
    report = broker.start()
    assert (report.last_broker_epoch, report.unclean_directories) == (41, [])
    assert not is_present(broker.disk, "/a")
    broker.kill()
    report = broker.start()
    assert (report.last_broker_epoch, report.unclean_directories) == (NO_BROKER_EPOCH, ["/a"])


def test_a_crash_while_loading_counts_as_unclean() -> None:
    """The proof is durably gone before the first log is opened."""
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 30)
    broker.stop(epoch=41)
    broker.disk.faults.fail_next("list", path_part="events-0")
    with pytest.raises(StorageFailed):
        broker.start()
    broker.lose_power()
    report = broker.start()
    assert report.unclean_directories == ["/a"]
    assert report.last_broker_epoch == NO_BROKER_EPOCH
    assert len(broker.values(ONE)) == 30


def test_the_epoch_counts_only_when_every_directory_has_it() -> None:
    broker = Broker(roots=("/a", "/b"))
    broker.stop(epoch=41)
    broker.disk.remove("/b/.kafka_cleanshutdown")
    report = broker.start()
    assert report.last_broker_epoch == NO_BROKER_EPOCH
    assert report.unclean_directories == ["/b"]


def with_logs_in_both() -> Broker:
    """Stopped cleanly under an epoch, with a log in each of two directories."""
    broker = Broker(roots=("/a", "/b"))
    broker.create(ONE, TWO)
    broker.put(ONE, b"a")
    broker.put(TWO, b"b")
    broker.stop(epoch=41)
    return broker


def test_a_directory_that_fails_at_the_start_is_no_proof_for_the_broker() -> None:
    """Else it would keep its place in sync for the records that are in that directory."""
    broker = with_logs_in_both()
    broker.disk.faults.fail_next("list", path_part="/b")
    report = broker.start()
    assert list(report.failed_directories) == ["/b"]
    assert report.last_broker_epoch == NO_BROKER_EPOCH


@pytest.mark.parametrize("is_stopped_again", [False, True])
def test_a_directory_that_is_not_named_any_more_is_no_proof(is_stopped_again: bool) -> None:
    """Its proof went with it: the others must know that there was more than they have."""
    broker = with_logs_in_both()
    broker.roots = ("/a",)
    report = broker.start()
    assert (report.last_broker_epoch, report.unclean_directories) == (NO_BROKER_EPOCH, [])
    if is_stopped_again:  # from here on it has what it says
        assert broker.restart(epoch=50).last_broker_epoch == 50


def test_an_empty_directory_in_place_of_another_is_no_proof() -> None:
    broker = with_logs_in_both()
    broker.roots = ("/a", "/c")
    assert broker.start().last_broker_epoch == NO_BROKER_EPOCH


def test_a_log_that_was_removed_while_nothing_ran_is_no_proof() -> None:
    broker = with_logs_in_both()
    remove_tree(broker.disk, "/a/events-0")
    report = broker.start()
    assert list(report.loaded) == [TWO]
    assert report.last_broker_epoch == NO_BROKER_EPOCH


def test_a_log_that_cannot_be_understood_is_no_proof() -> None:
    broker = with_logs_in_both()
    broker.write_file(f"/a/events-0/{names.PARTITION_METADATA}", b"rubbish")
    report = broker.start()
    assert list(report.unusable_partitions) == [ONE]
    assert report.last_broker_epoch == NO_BROKER_EPOCH


def test_a_directory_that_failed_before_the_stop_is_missed_when_it_is_gone() -> None:
    broker = with_logs_in_both()
    broker.start()
    broker.manager.directories[1].failed(OSError(5, "gone"))
    broker.stop(epoch=60)
    broker.roots = ("/a",)
    assert broker.start().last_broker_epoch == NO_BROKER_EPOCH


def test_a_stop_that_could_not_flush_leaves_no_proof() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.put(ONE, b"a")
    broker.disk.faults.fail_next("sync", path_part=".log")
    broker.stop(epoch=3)
    assert not is_present(broker.disk, "/a")


# -- checkpoints


def test_checkpoints_are_stored_and_used() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 60)
    log = broker.manager.get(ONE)
    log.set_high_watermark(Offset(40))
    broker.manager.delete_records(ONE, Offset(10))
    broker.manager.flush(log, lambda _: None)
    broker.manager.store_checkpoints()
    broker.kill()
    report = broker.start()
    log = broker.manager.get(ONE)
    assert (log.log_start, log.high_watermark, log.log_end) == (10, 40, 60)
    assert report.loaded[ONE].recovered_segments == 1, "what was flushed is trusted"


@pytest.mark.parametrize("name", [names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS])
@pytest.mark.parametrize("content", [b"", b"0\n9\n", b"0\n1\nevents 0 x\n", b"\xff\xff"])
def test_a_damaged_checkpoint_means_more_work_and_nothing_lost(name: str, content: bytes) -> None:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 60)
    log = broker.manager.get(ONE)
    log.flush()
    broker.replicate(ONE)
    broker.manager.store_checkpoints()
    broker.kill()
    broker.write_file(f"/a/{name}", content)
    report = broker.start()
    assert len(broker.values(ONE)) == 60
    if name == names.RECOVERY_POINTS:
        assert report.loaded[ONE].recovered_segments > 1
    assert broker.manager.directories[0].damaged_checkpoints == [name]
    broker.manager.store_checkpoints()
    broker.restart()
    assert broker.manager.directories[0].damaged_checkpoints == []


@pytest.mark.slow
def test_a_thousand_partitions_in_two_directories() -> None:
    broker = Broker(roots=("/a", "/b"))
    wanted = [
        NewPartition(TopicPartition("many", number), TOPIC_ID, SMALL_SEGMENTS)
        for number in range(1000)
    ]
    broker.manager.create_many(wanted)
    for number in range(0, 1000, 100):
        broker.put(TopicPartition("many", number), b"%d" % number)
    report = broker.restart()
    assert len(report.loaded) == 1000
    assert all(one.recovered_segments == 0 for one in report.loaded.values())
    for number in range(0, 1000, 100):
        assert broker.values(TopicPartition("many", number)) == [b"%d" % number]
    assert broker.manager.files.open_count <= 512
