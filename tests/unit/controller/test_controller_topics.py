"""Which topics may be created and grown, and how their replicas are laid out."""

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import pytest

from kits.controller.controller_kit import brokers_of, image_of, rules, topic_of
from millstream.controller.errors import (
    InvalidPartitionCount,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    NullConfigValue,
    TooManyPartitions,
    TopicExists,
    UnknownTopic,
)
from millstream.controller.image import ClusterImage, GrownTopic, TopicImage
from millstream.controller.placement import place
from millstream.controller.topics import (
    MorePartitions,
    NewTopic,
    check_topic_name,
    is_internal,
    new_topic_id,
    plan_creation,
    plan_growth,
)
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId, TopicId
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.directories.partition_metadata import format_topic_id

THREE = brokers_of([None, None, None])
OLD_ID = TopicId(UUID(int=77))


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def plan_one(topic: NewTopic, image: ClusterImage | None = None) -> TopicImage | OperatingError:
    return plan_creation(image or image_of(THREE), [topic], rules())[0]


def grow_one(more: MorePartitions, image: ClusterImage) -> GrownTopic | OperatingError:
    return plan_growth(image, [more], rules())[0]


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "..a", "...", "-", "a" * 249, "__mine"])
def test_legal_names_are_taken(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a" * 250,
        "a b",
        "a/b",
        "../etc",
        "ä",
        "a\n",
        "a\x00",
        "日本",
        "a,b",
        "a\u0660",
    ],
)
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)
    assert isinstance(plan_one(NewTopic(name=name)), InvalidTopicName)


def test_kafkas_own_topics_are_internal() -> None:
    assert [is_internal(name) for name in ("__consumer_offsets", "__transaction_state")] == [
        True
    ] * 2
    assert not is_internal("__mine")


@pytest.mark.parametrize(("old", "new"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_names_that_metrics_cannot_tell_apart_collide(old: str, new: str) -> None:
    image = image_of(THREE, topic_of(old, OLD_ID, [1]))
    assert isinstance(plan_one(NewTopic(name=new), image), InvalidTopicName)
    assert isinstance(plan_one(NewTopic(name=new + "x"), image), TopicImage)


def test_an_existing_topic_is_told_as_such_and_not_as_a_collision() -> None:
    image = image_of(THREE, topic_of("a.b", OLD_ID, [1]))
    assert isinstance(plan_one(NewTopic(name="a.b"), image), TopicExists)


def test_two_colliding_names_in_one_request_give_one_topic() -> None:
    wanted = [NewTopic(name="a.b"), NewTopic(name="a_b")]
    first, second = plan_creation(image_of(THREE), wanted, rules())
    assert isinstance(first, TopicImage)
    assert isinstance(second, InvalidTopicName)


def test_a_name_given_twice_is_refused_both_times_and_others_go_on() -> None:
    wanted = [NewTopic(name=name) for name in ("x", "y", "x")]
    planned = plan_creation(image_of(THREE), wanted, rules())
    assert [type(one) for one in planned] == [InvalidRequest, TopicImage, InvalidRequest]


def test_kafkas_metadata_log_cannot_be_created() -> None:
    assert isinstance(plan_one(NewTopic(name="__cluster_metadata")), InvalidRequest)


# -- counts ------------------------------------------------------------------------------------


def test_minus_one_means_the_brokers_default() -> None:
    planned = plan_one(NewTopic(name="t"))
    assert isinstance(planned, TopicImage)
    assert len(planned.partitions) == 3
    assert {len(one.replicas) for one in planned.partitions} == {1}


@pytest.mark.parametrize("count", [0, -2, -(2**31)])
def test_a_partition_count_below_one_is_refused(count: int) -> None:
    assert isinstance(plan_one(NewTopic(name="t", partition_count=count)), InvalidPartitionCount)


@pytest.mark.parametrize("factor", [0, -2, 4, 32767])
def test_a_replication_factor_that_cannot_be_is_refused(factor: int) -> None:
    topic = NewTopic(name="t", partition_count=0, replication_factor=factor)
    if factor > 0:
        topic = NewTopic(name="t", partition_count=1, replication_factor=factor)
    assert isinstance(plan_one(topic), InvalidReplicationFactor)


def test_a_request_for_too_many_partitions_is_refused_as_a_whole() -> None:
    wanted = [NewTopic(name=f"t{number}", partition_count=5_000) for number in range(3)]
    plan_creation(image_of(THREE), wanted[:2], rules())
    with pytest.raises(TooManyPartitions):
        plan_creation(image_of(THREE), wanted, rules())


def test_defaults_and_assignments_count_towards_the_limit() -> None:
    wanted = [NewTopic(name=f"t{number}") for number in range(3_334)]
    with pytest.raises(TooManyPartitions):
        plan_creation(image_of(THREE), wanted, rules())
    by_hand = [(index, ids(1)) for index in range(10_001)]
    with pytest.raises(TooManyPartitions):
        plan_creation(image_of(THREE), [NewTopic(name="t", assignments=by_hand)], rules())


def test_negative_counts_do_not_make_room_for_others() -> None:
    wanted = [
        NewTopic(name="a", partition_count=-(2**31)),
        NewTopic(name="b", partition_count=10_001),
    ]
    with pytest.raises(TooManyPartitions):
        plan_creation(image_of(THREE), wanted, rules())


# -- assignments by hand -----------------------------------------------------------------------


def test_an_assignment_by_hand_is_taken_as_it_is() -> None:
    planned = plan_one(NewTopic(name="t", assignments=[(1, ids(3, 1)), (0, ids(2, 3))]))
    assert isinstance(planned, TopicImage)
    assert [one.replicas for one in planned.partitions] == [ids(2, 3), ids(3, 1)]
    assert [one.leader for one in planned.partitions] == [2, 3]
    assert [one.index for one in planned.partitions] == [0, 1]


@pytest.mark.parametrize(
    "assignments",
    [
        [(0, [])],
        [(0, [1, 1])],
        [(0, [1, 9])],
        [(0, [-1])],
        [(0, [1]), (1, [1, 2])],
        [(0, [1]), (0, [2])],
        [(0, [1]), (2, [2])],
        [(1, [1])],
        [(-1, [1]), (0, [1])],
    ],
)
def test_assignments_that_make_no_sense_are_refused(
    assignments: list[tuple[int, list[int]]],
) -> None:
    by_hand = [(index, ids(*brokers)) for index, brokers in assignments]
    assert isinstance(plan_one(NewTopic(name="t", assignments=by_hand)), InvalidReplicaAssignment)


@pytest.mark.parametrize(("count", "factor"), [(1, -1), (-1, 1), (1, 1)])
def test_counts_beside_an_assignment_are_refused(count: int, factor: int) -> None:
    by_hand = [(0, ids(1))]
    topic = NewTopic(
        name="t", partition_count=count, replication_factor=factor, assignments=by_hand
    )
    assert isinstance(plan_one(topic), InvalidRequest)


def test_only_live_replicas_are_in_sync_and_one_must_be() -> None:
    image = image_of(brokers_of([None] * 3, fenced=[2, 3]))
    planned = plan_one(NewTopic(name="t", assignments=[(0, ids(2, 1))]), image)
    assert isinstance(planned, TopicImage)
    assert planned.partitions[0].isr == ids(1)
    assert planned.partitions[0].leader == 1
    dead = plan_one(NewTopic(name="t", assignments=[(0, ids(2, 3))]), image)
    assert isinstance(dead, InvalidReplicaAssignment)


# -- settings and ids --------------------------------------------------------------------------


def test_settings_are_checked_and_kept() -> None:
    seen: list[Mapping[str, str]] = []

    def check(configs: Mapping[str, str]) -> None:
        seen.append(configs)

    topic = NewTopic(name="t", configs={"retention.ms": "5"})
    planned = plan_creation(image_of(THREE), [topic], rules(check=check))[0]
    assert isinstance(planned, TopicImage)
    assert planned.configs == {"retention.ms": "5"} == seen[0]


def test_a_refused_setting_refuses_the_topic() -> None:
    class Refused(OperatingError):
        pass

    def check(configs: Mapping[str, str]) -> None:
        raise Refused

    planned = plan_creation(image_of(THREE), [NewTopic(name="t")], rules(check=check))
    assert [type(one) for one in planned] == [Refused]


def test_a_setting_without_a_value_is_refused_after_the_name_was_looked_at() -> None:
    image = image_of(THREE, topic_of("old", OLD_ID, [1]))
    assert isinstance(plan_one(NewTopic(name="t", configs={"a": None}), image), NullConfigValue)
    assert isinstance(plan_one(NewTopic(name="old", configs={"a": None}), image), TopicExists)


def test_topic_ids_differ_and_their_text_is_no_option() -> None:
    randomness = SeededRandomness(3)
    made = [new_topic_id(randomness) for _ in range(2_000)]
    assert len(set(made)) == len(made)
    assert not any(format_topic_id(one).startswith("-") for one in made)


# -- growth ------------------------------------------------------------------------------------


@pytest.fixture
def grown_from() -> ClusterImage:
    return image_of(THREE, topic_of("t", OLD_ID, [1, 2], [2, 3]))


def test_new_partitions_are_added_behind_the_old_ones(grown_from: ClusterImage) -> None:
    grown = grow_one(MorePartitions(name="t", total_count=5), grown_from)
    assert isinstance(grown, GrownTopic)
    old = grown_from.topics["t"]
    assert grown.first_new_partition == 2
    assert grown.topic.partitions[:2] == old.partitions
    assert [one.index for one in grown.topic.partitions] == list(range(5))
    assert {len(one.replicas) for one in grown.topic.partitions} == {2}
    assert grown.topic.topic_id == old.topic_id


@pytest.mark.parametrize("count", [2, 1, 0, -1, 100_001, 2**31 - 1])
def test_no_increase_or_too_large_a_one_is_refused(count: int, grown_from: ClusterImage) -> None:
    grown = grow_one(MorePartitions(name="t", total_count=count), grown_from)
    assert isinstance(grown, InvalidPartitionCount)


def test_growth_of_more_than_a_request_may_is_refused(grown_from: ClusterImage) -> None:
    with pytest.raises(TooManyPartitions):
        plan_growth(grown_from, [MorePartitions(name="t", total_count=10_003)], rules())


def test_growth_of_an_unknown_topic(grown_from: ClusterImage) -> None:
    assert isinstance(grow_one(MorePartitions(name="u", total_count=9), grown_from), UnknownTopic)


def test_growth_by_hand(grown_from: ClusterImage) -> None:
    more = MorePartitions(name="t", total_count=4, assignments=[ids(3, 1), ids(1, 3)])
    grown = grow_one(more, grown_from)
    assert isinstance(grown, GrownTopic)
    assert [one.replicas for one in grown.topic.partitions[2:]] == [ids(3, 1), ids(1, 3)]


@pytest.mark.parametrize(
    "assignments", [[], [[1, 2]], [[1, 2]] * 3, [[1], [2]], [[1, 1], [2, 3]], [[1, 9], [2, 3]]]
)
def test_growth_by_hand_that_makes_no_sense(
    assignments: list[list[int]], grown_from: ClusterImage
) -> None:
    by_hand = [ids(*one) for one in assignments]
    more = MorePartitions(name="t", total_count=4, assignments=by_hand)
    assert isinstance(grow_one(more, grown_from), InvalidReplicaAssignment)


# -- placement ---------------------------------------------------------------------------------


def test_replicas_reach_every_rack_and_every_broker_evenly() -> None:
    brokers = brokers_of(["a", "b", "c"] * 2)
    placed = place(
        brokers, partition_count=60, replication_factor=3, randomness=SeededRandomness(1)
    )
    rack_of = {one.broker_id: one.rack for one in brokers}
    assert all({rack_of[one] for one in replicas} == {"a", "b", "c"} for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {10}
    held = Counter(one for replicas in placed for one in replicas)
    assert max(held.values()) - min(held.values()) <= 6


def test_a_fenced_broker_never_leads_and_follows_only_where_no_other_is_left() -> None:
    brokers = brokers_of([None] * 4, fenced=[2])
    seeds = range(5)
    for seed in seeds:
        placed = place(
            brokers, partition_count=8, replication_factor=3, randomness=SeededRandomness(seed)
        )
        assert all(2 not in replicas for replicas in placed)
    full = place(brokers, partition_count=8, replication_factor=4, randomness=SeededRandomness(0))
    assert all(replicas[0] != 2 and set(replicas) == {1, 2, 3, 4} for replicas in full)


def test_nothing_is_placed_while_all_brokers_are_fenced() -> None:
    brokers = brokers_of([None] * 2, fenced=[1, 2])
    with pytest.raises(InvalidReplicationFactor):
        place(brokers, partition_count=1, replication_factor=1, randomness=SeededRandomness(0))
