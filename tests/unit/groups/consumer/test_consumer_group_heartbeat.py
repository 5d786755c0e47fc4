"""ConsumerGroupHeartbeat: who joins, stays, is fenced and leaves, as Apache Kafka 4.3 has it."""

from typing import Any

import pytest

from kits.groups.consumer_group_kit import GROUP, FakeSettings, FakeTopics, GroupWorld, facts_of
from millstream.groups.consumer.member import MemberState
from millstream.groups.consumer.state import ConsumerGroupState
from millstream.groups.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    InvalidGroupRequest,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from millstream.groups.records import keys
from millstream.groups.records.entries import Entry
from millstream.groups.records.values import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupPartitionMetadataValue,
    CurrentTopicPartitions,
)
from millstream.model.ids import MemberId
from millstream.shards.errors import CoordinatorNotAvailable


def a_world(**settings: Any) -> GroupWorld:
    return GroupWorld(FakeTopics(orders=4), FakeSettings(**settings))


def kinds(log: list[Entry]) -> list[str]:
    """What was written, in order; a tombstone has a minus."""
    return [("-" if one.value is None else "") + type(one.key).__name__ for one in log]


def two_members(world: GroupWorld) -> None:
    """Members a and b, with two partitions each, in epoch 3."""
    world.join("a", "orders")
    world.join("b", "orders")
    world.heartbeat("a", 2, owned={"orders": [0, 1, 2, 3]})
    world.heartbeat("a", 2, owned={"orders": [0, 1]})
    world.heartbeat("b", 3)
    assert world.group.state is ConsumerGroupState.STABLE


# -- joining ---------------------------------------------------------------------------------------


def test_the_first_member_has_all_partitions_in_epoch_two() -> None:
    world = a_world()
    answer = world.join("a", "orders")
    assert (answer.member_id, answer.member_epoch) == ("a", 2)
    assert answer.heartbeat_interval_ms == 5_000
    assert world.assignment_in(answer) == {"orders": [0, 1, 2, 3]}


def test_the_records_of_a_join_are_in_kafkas_order() -> None:
    world = a_world()
    world.join("a", "orders")
    assert kinds(world.log) == [
        "ConsumerMemberKey",
        "ConsumerGroupKey",
        "TargetMemberKey",
        "TargetAssignmentKey",
        "CurrentAssignmentKey",
    ]


def test_a_member_that_subscribes_to_nothing_raises_no_epoch() -> None:
    """A group and its target begin in epoch 1, and nothing is written to say so."""
    world = a_world()
    assert world.join("a").member_epoch == 1
    assert kinds(world.log) == ["ConsumerMemberKey", "CurrentAssignmentKey"]
    group = world.group.describe()
    assert (group.group_epoch, group.assignment_epoch, group.group_state) == (
        1,
        1,
        "Stable",
    )
    world.group = world.reload()
    answer = world.heartbeat("a", 1, owned={}, subscribed_topic_names=["orders"])
    assert (answer.member_epoch, world.assignment_in(answer)) == (2, {"orders": [0, 1, 2, 3]})
    world.heartbeat("a", -1)
    assert world.group.epoch == 3


def test_version_0_has_its_member_id_made_by_the_server() -> None:
    world = a_world()
    answer = world.join("", "orders", version=0)
    assert answer.member_id == "server-made-1"
    assert world.heartbeat("server-made-1", 2).member_epoch == 2


@pytest.mark.parametrize(
    ("version", "said", "why"),
    [
        (1, {"member_id": ""}, "MemberId"),
        (0, {"member_id": "", "member_epoch": 3}, "MemberId"),
        (0, {"member_id": "", "member_epoch": -1}, "MemberId"),
        (1, {"instance_id": ""}, "InstanceId"),
        (1, {"rack_id": " "}, "RackId"),
        (1, {"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs"),
        (1, {"owned": None}, "TopicPartitions"),
        (1, {"owned": {"orders": [1]}}, "TopicPartitions"),
        (1, {"subscribed_topic_names": None}, "SubscribedTopic"),
        (1, {"member_epoch": -2}, "InstanceId"),
        (1, {"member_epoch": -3}, "MemberEpoch"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(
    version: int, said: dict[str, Any], why: str
) -> None:
    world = a_world()
    asked = {"member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 30_000, "owned": {}}
    asked |= {"subscribed_topic_names": ["orders"]} | said
    member_id, epoch = asked.pop("member_id"), asked.pop("member_epoch")
    with pytest.raises(InvalidGroupRequest, match=why):
        world.heartbeat(str(member_id), int(str(epoch)), version=version, **asked)
    assert not world.log


def test_an_assignor_that_the_broker_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedAssignor, match="uniform, range"):
        a_world().join("a", "orders", server_assignor="sticky")


def test_the_assignor_that_most_members_name_is_taken() -> None:
    world = GroupWorld(FakeTopics(orders=2, payments=2))
    world.join("a", "orders", "payments", server_assignor="range")
    assert world.group.describe().assignor_name == "range"
    world.join("b", "orders", "payments")
    world.join("c", "orders", "payments", server_assignor="uniform")
    world.join("d", "orders", "payments", server_assignor="uniform")
    assert world.group.describe().assignor_name == "uniform"


def test_a_full_group_takes_no_more_members() -> None:
    world = a_world(consumer_group_size_max=1)
    world.join("a", "orders")
    with pytest.raises(GroupFull):
        world.join("b", "orders")
    assert world.join("a", "orders").member_epoch == 2


def test_a_heartbeat_to_a_group_that_is_not_there() -> None:
    with pytest.raises(GroupNotFound):
        a_world().heartbeat("a", 4)


# -- staying ---------------------------------------------------------------------------------------


def test_a_partition_changes_hands_only_when_its_owner_reports_without_it() -> None:
    """I-27."""
    world = a_world()
    world.join("a", "orders")
    joined = world.join("b", "orders")
    assert (joined.member_epoch, world.assignment_in(joined)) == (3, {})
    response = world.heartbeat("a", 2, owned={"orders": [0, 1, 2, 3]})
    assert (response.member_epoch, world.assignment_in(response)) == (2, {"orders": [0, 1]})
    assert world.assignment_in(world.heartbeat("b", 3)) is None
    assert world.heartbeat("a", 2).member_epoch == 2  # silence is no release
    assert world.heartbeat("a", 2, owned={"orders": [0, 1]}).member_epoch == 3
    assert world.assignment_in(world.heartbeat("b", 3)) == {"orders": [2, 3]}
    assert world.group.state is ConsumerGroupState.STABLE


def test_states_on_the_way() -> None:
    world = a_world(consumer_assignment_interval_ms=1_000)
    states = [world.group.state]
    world.join("a", "orders")
    world.join("b", "orders")
    states.append(world.group.state)
    world.pass_ms(1_000)
    world.heartbeat("b", 2)
    states.append(world.group.state)
    assert states == [
        ConsumerGroupState.EMPTY,
        ConsumerGroupState.ASSIGNING,
        ConsumerGroupState.RECONCILING,
    ]


def test_a_heartbeat_with_nothing_new_writes_nothing_and_tells_nothing() -> None:
    world = a_world()
    two_members(world)
    written = len(world.log)
    answer = world.heartbeat("a", 3, owned={"orders": [0, 1]})
    assert (answer.member_epoch, answer.assignment) == (3, None)
    assert len(world.log) == written


def test_who_says_everything_is_told_everything() -> None:
    world = a_world()
    two_members(world)
    full: dict[str, Any] = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": ["orders"]}
    answer = world.heartbeat("a", 3, owned={"orders": [0, 1]}, **full)
    assert world.assignment_in(answer) == {"orders": [0, 1]}


def test_the_epoch_before_is_accepted_from_a_member_that_has_nothing_else() -> None:
    """The answer with the new epoch was lost."""
    world = a_world()
    world.join("a", "orders")
    world.join("b", "orders")
    world.heartbeat("a", 2, owned={"orders": [0, 1, 2, 3]})
    world.heartbeat("a", 2, owned={"orders": [0, 1]})
    assert world.heartbeat("a", 2, owned={"orders": [0]}).member_epoch == 3
    with pytest.raises(FencedMemberEpoch):
        world.heartbeat("a", 2, owned={"orders": [0, 1, 2]})
    with pytest.raises(FencedMemberEpoch):
        world.heartbeat("a", 2)


@pytest.mark.parametrize("epoch", [1, 2, 4, 99])
def test_any_other_epoch_is_fenced(epoch: int) -> None:
    """I-28."""
    world = a_world()
    two_members(world)
    with pytest.raises(FencedMemberEpoch):
        world.heartbeat("b", epoch, owned={"orders": [2, 3]})
    assert world.heartbeat("b", 3).member_epoch == 3


def test_a_member_that_nobody_knows() -> None:
    world = a_world()
    world.join("a", "orders")
    with pytest.raises(UnknownMember):
        world.heartbeat("b", 2)


def test_a_fenced_member_joins_again_and_keeps_its_place() -> None:
    world = a_world()
    two_members(world)
    answer = world.join("b", "orders")
    assert (answer.member_epoch, world.assignment_in(answer)) == (3, {"orders": [2, 3]})


def test_assignments_are_not_made_more_often_than_the_interval() -> None:
    world = a_world(consumer_assignment_interval_ms=1_000)
    world.join("a", "orders")
    for name in "bcd":
        assert world.join(name, "orders").member_epoch == 2
    targets = kinds(world.log).count("TargetAssignmentKey")
    world.pass_ms(999)
    world.heartbeat("b", 2)
    assert kinds(world.log).count("TargetAssignmentKey") == targets == 1
    world.pass_ms(1)
    assert world.heartbeat("b", 2).member_epoch == 5
    assert kinds(world.log).count("TargetAssignmentKey") == 2


def test_more_partitions_and_new_topics_are_noticed_by_the_next_heartbeat() -> None:
    world = a_world()
    world.join("a", "orders", "payments")
    world.topics.grow("orders", 6)
    assert world.assignment_in(world.heartbeat("a", 2)) == {"orders": [0, 1, 2, 3, 4, 5]}
    world.topics.create("payments", 1)
    assert world.assignment_in(world.heartbeat("a", 3)) == {
        "orders": [0, 1, 2, 3, 4, 5],
        "payments": [0],
    }
    world.topics.create("other", 1)
    assert world.heartbeat("a", 4).member_epoch == 4


def test_a_topic_that_is_not_subscribed_any_more_is_taken_at_once() -> None:
    """Before there is a new target: the interval has not passed."""
    world = GroupWorld(
        FakeTopics(orders=2, payments=2), FakeSettings(consumer_assignment_interval_ms=5_000)
    )
    world.join("a", "orders", "payments")
    owned = {"orders": [0, 1], "payments": [0, 1]}
    response = world.heartbeat("a", 2, owned=owned, subscribed_topic_names=["orders"])
    assert world.assignment_in(response) == {"orders": [0, 1]}
    assert world.group._core.state.members[MemberId("a")].state is MemberState.UNREVOKED_PARTITIONS


def test_a_state_of_a_newer_coordinator_begins_anew() -> None:
    world = a_world()
    world.join("a", "orders")
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=2, previous_member_epoch=0, state=42,
        assigned_partitions=[
            CurrentTopicPartitions(topic_id=world.topics.id_of("orders"), partitions=[0])
        ],
    )  # fmt: skip
    world.group.apply(Entry(keys.CurrentAssignmentKey(GROUP, MemberId("a")), value))
    world.join("b", "orders")
    with pytest.raises(FencedMemberEpoch):
        world.heartbeat("a", 2, owned={"orders": [0]})
    assert world.heartbeat("a", 2, owned={}).member_epoch == 3


def test_a_log_in_which_two_members_have_a_partition_is_set_right() -> None:
    """I-27. The one that was given it last has it; the other one must begin anew."""
    world = a_world()
    two_members(world)
    topic_id = world.topics.id_of("orders")
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=2, previous_member_epoch=0, state=0,
        assigned_partitions=[CurrentTopicPartitions(topic_id=topic_id, partitions=[0, 1, 2])],
    )  # fmt: skip
    world.log.append(Entry(keys.CurrentAssignmentKey(GROUP, MemberId("a")), value))
    world.group = world.reload()
    world.join("c", "orders")
    with pytest.raises(FencedMemberEpoch):
        world.heartbeat("a", 2, owned={"orders": [0, 1, 2]})
    assert world.assignment_in(world.heartbeat("b", 3, owned={"orders": [2, 3]})) == {"orders": [2]}
    assert world.assignment_in(world.join("a", "orders")) == {"orders": [0, 1]}


def test_the_record_that_kafka_wrote_before_4_1_is_deleted() -> None:
    world = a_world()
    value = ConsumerGroupPartitionMetadataValue()
    world.group.apply(Entry(keys.ConsumerPartitionMetadataKey(GROUP), value))
    world.join("a", "orders")
    assert "-ConsumerPartitionMetadataKey" in kinds(world.log)
    written = len(world.log)
    world.topics.create("other", 1)
    world.heartbeat("a", 2)
    assert len(world.log) == written


# -- going -----------------------------------------------------------------------------------------


def test_a_member_that_leaves_frees_its_partitions() -> None:
    world = a_world()
    two_members(world)
    before = len(world.log)
    answer = world.heartbeat("b", -1)
    assert (answer.member_id, answer.member_epoch) == ("b", -1)
    assert kinds(world.log[before:]) == [
        "-CurrentAssignmentKey",
        "-TargetMemberKey",
        "-ConsumerMemberKey",
        "ConsumerGroupKey",
    ]
    assert world.assignment_in(world.heartbeat("a", 3)) == {"orders": [0, 1, 2, 3]}


def test_a_silent_member_is_fenced_after_its_session_and_not_before() -> None:
    """I-30."""
    world = a_world()
    two_members(world)
    world.pass_ms(44_999)
    world.heartbeat("a", 3)
    assert world.group.member_count == 2
    world.pass_ms(1)
    assert world.group.member_count == 1
    with pytest.raises(UnknownMember):
        world.heartbeat("b", 3)
    assert world.assignment_in(world.heartbeat("a", 3)) == {"orders": [0, 1, 2, 3]}


def test_a_member_that_does_not_give_back_in_time_is_fenced() -> None:
    """It heartbeats all the time: only the rebalance timeout can end it."""
    world = a_world()
    world.join("a", "orders", rebalance_timeout_ms=10_000)
    world.join("b", "orders")
    owned = {"orders": [0, 1, 2, 3]}
    world.heartbeat("a", 2, owned=owned)
    world.pass_ms(9_999)
    world.heartbeat("a", 2, owned=owned)
    world.pass_ms(1)
    with pytest.raises(UnknownMember):
        world.heartbeat("a", 2, owned=owned)
    assert world.assignment_in(world.heartbeat("b", 3)) == {"orders": [0, 1, 2, 3]}


def test_several_silent_members_are_fenced_in_one_write() -> None:
    world = a_world()
    two_members(world)
    epoch = world.group.epoch
    world.pass_ms(60_000)
    assert world.group.is_empty
    assert world.group.epoch == epoch + 1


def test_fencing_is_tried_again_when_the_log_refuses() -> None:
    world = a_world()
    world.join("a", "orders")
    world.refuses = True
    world.pass_ms(45_000)
    assert world.group.member_count == 1
    world.refuses = False
    world.pass_ms(499)
    assert world.group.member_count == 1
    world.pass_ms(1)
    assert world.group.is_empty


def test_a_refused_write_leaves_no_trace() -> None:
    world = a_world()
    two_members(world)
    before = facts_of(world.group)
    world.refuses = True
    with pytest.raises(CoordinatorNotAvailable):
        world.join("c", "orders")
    with pytest.raises(CoordinatorNotAvailable):
        world.heartbeat("b", -1)
    assert facts_of(world.group) == before
    world.refuses = False
    assert world.join("c", "orders").member_epoch == 4


def test_a_group_with_members_is_not_deleted() -> None:
    world = a_world()
    world.join("a", "orders")
    with pytest.raises(GroupNotEmpty):
        world.group.check_delete()
    world.heartbeat("a", -1)
    world.group.check_delete()
    assert kinds(world.group.tombstones()) == [
        "-TargetAssignmentKey",
        "-ConsumerPartitionMetadataKey",
        "-ConsumerGroupKey",
    ]


# -- static members --------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance() -> None:
    world = a_world()
    world.join("a", "orders", instance_id="i")
    epoch = world.group.epoch
    answer = world.heartbeat("a", -2, instance_id="i")
    assert answer.member_epoch == -2
    before = len(world.log)
    back = world.join("a2", "orders", instance_id="i")
    assert (back.member_epoch, world.assignment_in(back)) == (2, {"orders": [0, 1, 2, 3]})
    assert world.group.epoch == epoch
    assert kinds(world.log[before:]) == [
        "-CurrentAssignmentKey",
        "-TargetMemberKey",
        "-ConsumerMemberKey",
        "ConsumerMemberKey",
        "TargetMemberKey",
        "CurrentAssignmentKey",
        "CurrentAssignmentKey",
    ]
    with pytest.raises(FencedInstance):
        world.heartbeat("a", 2, instance_id="i")


def test_the_partitions_of_a_static_member_are_kept_until_its_session_ends() -> None:
    world = a_world()
    world.join("a", "orders", instance_id="i")
    world.heartbeat("a", -2, instance_id="i")
    joined = world.join("b", "orders")
    assert world.assignment_in(joined) == {}
    world.pass_ms(44_000)
    world.heartbeat("b", 3)
    world.pass_ms(1_000)
    assert world.assignment_in(world.heartbeat("b", 3)) == {"orders": [0, 1, 2, 3]}


def test_the_place_of_a_static_member_that_has_not_left_is_not_given_away() -> None:
    world = a_world()
    world.join("a", "orders", instance_id="i")
    with pytest.raises(UnreleasedInstance):
        world.join("b", "orders", instance_id="i")
    assert world.join("a", "orders", instance_id="i").member_epoch == 2  # it is the same one


def test_an_instance_id_that_nobody_has() -> None:
    world = a_world()
    world.join("a", "orders")
    with pytest.raises(UnknownMember, match="Instance id"):
        world.heartbeat("a", 2, instance_id="i")
    with pytest.raises(UnknownMember, match="Instance id"):
        world.heartbeat("a", -2, instance_id="i")


def test_a_static_member_that_leaves_for_good_is_gone() -> None:
    world = a_world()
    world.join("a", "orders", instance_id="i")
    world.heartbeat("a", -1, instance_id="i")
    assert world.group.is_empty
    assert world.join("b", "orders", instance_id="i").member_epoch == 4
