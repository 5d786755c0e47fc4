"""The registry of partitions follows the metadata: logs come and go, settings change."""

from dataclasses import replace
from uuid import UUID

import pytest

from kits.broker.data_plane import DataPlane, topic_image
from kits.storage.log_stories import batch_of
from millstream.controller.image import GrownTopic, ImageChange
from millstream.model.errors import StorageFailed, UnknownPartition, UnknownTopicId
from millstream.model.ids import BrokerId, TopicId, TopicPartition
from millstream.replication.partitions import Partitions
from millstream.storage.log.reader import Isolation
from millstream.testing.log_kit import SMALL_SEGMENTS


def test_partitions_are_found_by_name_and_by_id() -> None:
    plane = DataPlane()
    topic = plane.create("t", 2)
    leader = plane.partitions.get(TopicPartition("t", 1))
    assert plane.partitions.get_by_id(topic.topic_id, 1) is leader
    assert leader.partition == ("t", 1)
    assert [one.partition.partition for one in plane.partitions] == [0, 1]
    with pytest.raises(UnknownPartition):
        plane.partitions.get(("t", 2))
    with pytest.raises(UnknownPartition):
        plane.partitions.get_by_id(topic.topic_id, 2)
    with pytest.raises(UnknownTopicId):
        plane.partitions.get_by_id(TopicId(UUID(int=1)), 0)


def test_a_topic_grows() -> None:
    plane = DataPlane()
    plane.create("t", 1)
    plane.fill("t", b"a")
    grown = topic_image("t", partitions=3)
    plane.apply(ImageChange(grown=[GrownTopic(grown, 1)]))
    assert len(plane.partitions) == 3
    assert plane.leader("t", 0).log_end == 1
    assert plane.leader("t", 2).log_end == 0


def test_a_deleted_topic_is_gone_and_a_new_one_of_that_name_is_another() -> None:
    plane = DataPlane()
    old = plane.create("t")
    plane.fill("t", b"a")
    plane.delete("t")
    for look_up in (
        lambda: plane.partitions.get(("t", 0)),
        lambda: plane.logs.get(TopicPartition("t", 0)),
    ):
        with pytest.raises(UnknownPartition):
            look_up()
    with pytest.raises(UnknownTopicId):
        plane.partitions.get_by_id(old.topic_id, 0)
    plane.create("t", number=8)
    assert plane.leader("t").log_end == 0


def test_a_deleted_partition_takes_no_more_plain_requests() -> None:
    plane = DataPlane()
    topic = plane.create("t")
    slot = plane.leader("t").slot
    assert plane.table.find(b"t", 0) is slot
    assert plane.table.find_by_id(topic.topic_id.bytes, 0) is slot
    plane.delete("t")
    assert plane.table.find(b"t", 0) is None
    assert plane.table.find_by_id(topic.topic_id.bytes, 0) is None
    assert slot.leader_epoch == -1


def test_internal_topics_are_not_written_to_past_the_handler() -> None:
    plane = DataPlane()
    plane.create("__consumer_offsets")
    assert plane.table.find(b"__consumer_offsets", 0) is None


def test_settings_change_without_a_restart() -> None:
    plane = DataPlane()
    plane.create("t", 2)
    before = plane.partitions.generation
    plane.settings.config = replace(SMALL_SEGMENTS, max_message_bytes=99)
    topic = topic_image("t", partitions=2, configs={"min.insync.replicas": "1"})
    plane.apply(ImageChange(reconfigured=[topic]))
    assert plane.leader("t", 1).log.config.max_message_bytes == 99
    assert plane.partitions.generation > before


def test_changed_broker_defaults_reach_every_topic() -> None:
    plane = DataPlane()
    plane.create("t")
    plane.create("u", number=8)
    plane.settings.config = replace(SMALL_SEGMENTS, max_message_bytes=99)
    plane.apply(ImageChange(brokers_reconfigured=True))
    assert {one.log.config.max_message_bytes for one in plane.partitions} == {99}


def test_a_start_leads_what_is_there_and_makes_what_is_not() -> None:
    """A crash came between the metadata and the log of the second partition."""
    plane = DataPlane()
    plane.create("t", 1)
    plane.fill("t", b"a")
    image = plane.controller.image
    plane.controller.image = image.changed(put=[topic_image("t", partitions=2, epoch=3)])
    plane.disk.kill()
    plane.disk = plane.disk.after_kill()
    plane.start()
    assert [plane.leader("t", index).log_end for index in (0, 1)] == [1, 0]
    assert plane.leader("t").leader_epoch == 3


def test_a_partition_that_there_was_no_room_for_comes_when_there_is() -> None:
    plane = DataPlane()
    storage = plane.disk.storage
    storage.capacity_bytes = storage.used_bytes
    plane.create("t", 2)
    plane.create("gone", number=8)
    plane.delete("gone")
    with pytest.raises(StorageFailed):
        plane.leader("t", 1)
    generation = plane.partitions.generation
    plane.partitions.retry_missing()
    assert plane.partitions.generation == generation
    storage.capacity_bytes = None
    plane.partitions.retry_missing()
    assert [one.partition for one in plane.partitions] == [("t", 0), ("t", 1)]
    assert plane.partitions.generation > generation
    plane.fill("t", b"a")


def test_a_partition_that_cannot_be_made_is_offline_and_the_others_are_not() -> None:
    plane = DataPlane()
    plane.create("t", 1)
    # A directory that came from elsewhere stands where the log should be made.
    plane.disk.make_directories("/data/u-1")
    plane.create("u", 3, number=8)
    with pytest.raises(StorageFailed):
        plane.partitions.get(("u", 1))
    assert plane.leader("u", 0).log_end == plane.leader("u", 2).log_end == 0


def test_a_failed_directory_changes_the_generation() -> None:
    plane = DataPlane()
    plane.create("t")
    before = plane.partitions.generation
    plane.leader("t").log.owner.failed(OSError(5, "gone"))
    assert plane.partitions.generation > before
    plane.delete("t")
    with pytest.raises(UnknownPartition):
        plane.partitions.get(("t", 0))


def test_only_partitions_of_this_broker_are_led() -> None:
    plane = DataPlane()
    others = Partitions(plane.logs, plane.settings, broker_id=BrokerId(2))
    others.apply(ImageChange(created=[topic_image("t", partitions=2)]))
    assert len(others) == 0


def test_waiting_readers_are_woken_once_for_all_partitions_that_moved() -> None:
    plane = DataPlane()
    plane.create("t", 2)
    plane.partitions.deadlines(plane.timers)
    woken: list[object] = []

    class Reader:
        def progressed(self, mark: object) -> None:
            woken.append(mark)

    reader = Reader()
    plane.leader("t", 0).readers[reader] = "zero"
    plane.leader("t", 1).readers[reader] = "one"
    plane.fill("t", b"a", b"b", index=1)
    plane.fill("t", b"a", index=0)
    assert not woken
    plane.timers.fire()
    assert woken == ["one", "zero"]


def test_an_append_by_the_connection_core_moves_the_high_watermark() -> None:
    plane = DataPlane()
    plane.create("t")
    leader = plane.leader("t")
    assert leader.log.after_write is not None
    plane.fill("t", b"a")
    leader.log.append_as_leader(batch_of(b"b"), leader_epoch=leader.leader_epoch)
    leader.log.after_write()
    assert leader.high_watermark == 2
    assert leader.read(leader.log_start, size_max=10, isolation=Isolation.COMMITTED).data.size_bytes
