"""Logs that metadata does not know: Kafka's are taken in, deleted topics never come back."""

from uuid import UUID

import pytest

from kits.controller.controller_kit import METADATA, create, made, new_disk, run, started
from millstream.controller.standalone.adoption import ADOPTED_TOPIC_CONFIGS
from millstream.controller.standalone.controller import StandaloneController
from millstream.model.config import validate_topic_configs
from millstream.model.ids import LeaderEpoch, TopicId, TopicPartition
from millstream.testing.sim.disk import SimDisk

A, B = TopicId(UUID(int=0xA)), TopicId(UUID(int=0xB))


def at(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition)


def next_start(disk: SimDisk) -> tuple[StandaloneController, SimDisk]:
    disk.kill()
    metadata_follower = disk.after_kill()
    return started(metadata_follower, seed=9), metadata_follower


def test_a_kafka_directory_is_taken_in_and_stays() -> None:
    disk = new_disk()
    controller = started(disk)
    found = {at("t", 0): A, at("t", 2): A, at("t", 1): A, at("u", 0): B}
    outcome = controller.adopt(found)
    assert sorted(one.name for one in outcome.adopted) == ["t", "u"]
    assert (outcome.to_delete, outcome.refused, outcome.missing) == ([], {}, [])
    topics = next_start(disk)[0].image.topics
    assert topics["t"].topic_id == A
    assert topics["u"].topic_id == B
    assert [one.leader for one in topics["t"].partitions] == [1, 1, 1]


def test_adopting_again_changes_nothing() -> None:
    controller = started(new_disk())
    found = {at("t", 0): A, at("t", 1): A}
    controller.adopt(found)
    version = controller.image.version
    outcome = controller.adopt(found, is_complete=True)
    assert (outcome.adopted, outcome.changed) == ([], [])
    assert controller.image.version == version


def test_adopted_topics_keep_everything_until_somebody_says_otherwise() -> None:
    """Kafka's settings are not known: a compacted topic must not lose data to a default."""
    controller = started(new_disk())
    controller.adopt({at("t", 0): A, at("__consumer_offsets", 0): B})
    topics = controller.image.topics
    assert topics["t"].configs == ADOPTED_TOPIC_CONFIGS
    assert topics["t"].configs["retention.ms"] == "-1"
    assert topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"


def test_settings_of_adopted_topics_are_such_as_a_topic_may_have() -> None:
    controller = started(new_disk())
    names = ["t", "__consumer_offsets", "__transaction_state"]
    controller.adopt({at(name, 0): None for name in names})
    for name in names:
        validate_topic_configs(controller.image.topics[name].configs)


def test_leader_epochs_begin_above_those_of_the_logs() -> None:
    """A leader with an older epoch than its log could not append."""
    controller = started(new_disk())
    found = {at("t", 0): A, at("t", 1): A}
    controller.adopt(found, leader_epochs={at("t", 0): LeaderEpoch(7)})
    epochs = [one.leader_epoch for one in controller.image.topics["t"].partitions]
    assert epochs == [8, 0]
    outcome = controller.adopt(found, leader_epochs={at("t", 1): LeaderEpoch(0)})
    assert [one.name for one in outcome.changed] == ["t"]
    assert [one.leader_epoch for one in controller.image.topics["t"].partitions] == [8, 1]


def test_topics_without_ids_get_one_that_stays() -> None:
    disk = new_disk()
    controller = started(disk)
    controller.adopt({at("t", 0): None, at("t", 1): None})
    given = controller.image.topics["t"].topic_id
    controller, _ = next_start(disk)
    controller.adopt({at("t", 0): None, at("t", 1): given})
    assert controller.image.topics["t"].topic_id == given


def test_partitions_that_come_back_from_an_offline_disk_belong_to_their_topic() -> None:
    controller = started(new_disk())
    outcome = controller.adopt({at("t", 0): A, at("t", 2): A})
    assert outcome.missing == [at("t", 1)]
    outcome = controller.adopt({at("t", index): A for index in range(5)})
    assert [len(one.partitions) for one in outcome.changed] == [5]


def test_what_cannot_be_told_is_left_alone() -> None:
    controller = started(new_disk())
    run(lambda: create(controller, "known"))
    known = controller.image.topics["known"].topic_id
    found = {
        at("known", 0): A,  # another topic of the same name
        at("known", 5): None,  # beyond its partitions, of nobody
        at("mixed", 0): A,
        at("mixed", 1): B,
        at("thief", 0): known,
        at("vast", 2**31 - 1): TopicId(UUID(int=0xC)),
    }
    before = controller.image.topics
    outcome = controller.adopt(found)
    assert set(outcome.refused) == set(found)
    assert (outcome.adopted, outcome.changed, outcome.to_delete) == ([], [], [])
    assert controller.image.topics == before


# -- deletion ----------------------------------------------------------------------------------


def deleted_with_logs_left(disk: SimDisk) -> tuple[StandaloneController, SimDisk, TopicId]:
    """A topic was deleted and the broker died before its logs were removed."""
    controller = started(disk)
    topic_id = run(lambda: create(controller, "t", partitions=2))[0].topic_id
    run(lambda: controller.delete_topics(["t"]))
    return *next_start(disk), topic_id


def test_logs_of_a_deleted_topic_are_doomed_and_not_taken_in() -> None:
    controller, _, topic_id = deleted_with_logs_left(new_disk())
    outcome = controller.adopt({at("t", 1): topic_id, at("other", 0): B}, is_complete=True)
    assert outcome.to_delete == [at("t", 1)]
    assert sorted(controller.image.topics) == ["other"]


def test_a_log_without_an_id_of_a_deleted_topics_name_is_doomed() -> None:
    """A crash while the partition was made: its directory was there, its id was not."""
    controller, _, _ = deleted_with_logs_left(new_disk())
    assert controller.adopt({at("t", 0): None}, is_complete=True).to_delete == [at("t", 0)]
    assert controller.image.topics == {}


def test_old_logs_are_doomed_beside_the_topic_that_was_created_again() -> None:
    controller, _, topic_id = deleted_with_logs_left(new_disk())
    fresh = run(lambda: create(controller, "t", partitions=2))[0].topic_id
    outcome = controller.adopt({at("t", 0): fresh, at("t", 1): topic_id}, is_complete=True)
    assert outcome.to_delete == [at("t", 1)]
    assert outcome.refused == {}
    assert controller.image.topics["t"].topic_id == fresh


def test_a_log_without_an_id_belongs_to_the_topic_that_exists() -> None:
    """Ids are written before records: it is empty, and the topic's own to use."""
    controller, _, _ = deleted_with_logs_left(new_disk())
    run(lambda: create(controller, "t"))
    outcome = controller.adopt({at("t", 0): None}, is_complete=True)
    assert (outcome.to_delete, outcome.refused) == ([], {})


def test_a_deletion_is_remembered_until_its_logs_are_surely_gone() -> None:
    controller, disk, topic_id = deleted_with_logs_left(new_disk())
    controller.adopt({}, is_complete=False)  # a directory is offline: they may be in there
    controller, disk = next_start(disk)
    assert controller.adopt({at("t", 0): topic_id}, is_complete=True).to_delete == [at("t", 0)]
    controller, disk = next_start(disk)
    assert len(controller.deleted_topics) == 1
    controller.adopt({}, is_complete=True)
    assert controller.deleted_topics == []
    assert not [name for name in disk.list_directory(METADATA) if name.endswith(".deleted")]
    controller, _ = next_start(disk)
    assert controller.deleted_topics == []


def test_a_deletion_can_be_forgotten_while_running() -> None:
    controller, disk, topic_id = deleted_with_logs_left(new_disk())
    run(lambda: controller.forget_deleted([topic_id, A]))
    assert controller.deleted_topics == []
    assert not [name for name in disk.list_directory(METADATA) if name.endswith(".deleted")]


def test_the_image_is_needed_before_anything_is_adopted() -> None:
    with pytest.raises(BaseException, match="before it was loaded"):
        made(new_disk()).adopt({})
