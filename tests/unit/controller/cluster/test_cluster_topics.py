"""Topics are created, grown, configured and deleted in a cluster."""

from typing import Any

import pytest

from kits.controller.cluster_plans_kit import (
    NodeTree,
    apply,
    as_values,
    broker,
    difference,
    ids,
    image,
    only,
    partition,
    policy,
    topic,
    tree_of,
)
from millstream.controller.cluster import nodes
from millstream.controller.cluster.plans import Plan
from millstream.controller.cluster.topics_plans import (
    alter_broker_configs,
    alter_topic_configs,
    create_partitions,
    create_topics,
    delete_topics,
)
from millstream.controller.errors import (
    InvalidPartitionCount,
    InvalidRequest,
    TopicExists,
    UnknownTopic,
)
from millstream.controller.image import ClusterImage, TopicImage
from millstream.controller.topics import MorePartitions, NewTopic, Rules, TopicDefaults
from millstream.model.errors import UnknownTopicId
from millstream.model.ids import BrokerId
from millstream.runtime.randomness import SeededRandomness

RULES = Rules(TopicDefaults(), lambda _: None, SeededRandomness(1))
BROKERS = [broker(1, epoch=11), broker(2, epoch=12, fenced=True), broker(3, epoch=13)]


def carried_out(before: ClusterImage, plan: Plan[Any]) -> NodeTree:
    tree = tree_of(before)
    apply(tree, plan)
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    return tree


def by_hand(*replicas: int, configs: dict[str, str | None] | None = None) -> NewTopic:
    return NewTopic(name="t", assignments=[(0, ids(*replicas))], configs=configs or {})


def test_a_new_partition_is_in_sync_where_brokers_are_alive() -> None:
    before = image(BROKERS)
    plan = create_topics(before, [by_hand(2, 3, 1, configs={"a": "b"})], RULES, policy())
    found = only(plan.image)
    assert (found.replicas, found.isr, found.leader) == ((2, 3, 1), (3, 1), 3)
    assert (found.leader_epoch, found.partition_epoch) == (0, 0)
    tree = carried_out(before, plan)
    assert tree.nodes[nodes.topic_configs_path("t")].data == nodes.encode_configs({"a": "b"})
    assert tree.nodes[nodes.state_path("t", 0)].version == 0


def test_who_is_leaving_is_not_in_sync_with_anything_new() -> None:
    before = image([broker(1, epoch=11, leaving=True), broker(3, epoch=13)])
    plan = create_topics(before, [by_hand(1, 3)], RULES, policy())
    assert (only(plan.image).isr, only(plan.image).leader) == ((3,), 3)
    assert plan.image.brokers == before.brokers


def test_a_topic_that_exists_is_told_and_the_others_are_made() -> None:
    before = image(BROKERS, topic("old", partition(1)))
    wanted = [NewTopic(name="old", partition_count=1), NewTopic(name="new", partition_count=2)]
    plan = create_topics(before, wanted, RULES, policy())
    assert isinstance(plan.result[0], TopicExists)
    assert isinstance(plan.result[1], TopicImage)
    assert [one.name for one in plan.change.created] == ["new"]
    carried_out(before, plan)


def test_a_topic_too_large_for_a_node_is_refused() -> None:
    wanted = [NewTopic(name="t", partition_count=10_000)]
    assert isinstance(create_topics(image(BROKERS), wanted, RULES, policy()).result[0], TopicImage)
    large = image(BROKERS, topic("t", *[partition(1)] * 39_000))
    plan = create_partitions(large, [MorePartitions(name="t", total_count=48_000)], RULES, policy())
    assert isinstance(plan.result[0], InvalidPartitionCount)
    assert not plan.groups


def test_a_topic_grows_with_the_factor_it_is_on_its_way_to() -> None:
    one = partition(3, 1, isr=[1], adding=[3], removing=[1])
    before = image(BROKERS, topic("t", one))
    wanted = [MorePartitions(name="t", total_count=3), MorePartitions(name="x", total_count=2)]
    plan = create_partitions(before, wanted, RULES, policy())
    assert plan.result[0] is None
    assert isinstance(plan.result[1], UnknownTopic)
    first, *added = plan.image.topics["t"].partitions
    assert first == before.topics["t"].partitions[0]
    assert [len(one.replicas) for one in added] == [1, 1]
    tree = carried_out(before, plan)
    told = nodes.decode_topic("t", tree.nodes[nodes.topic_path("t")].data)
    assert len(told.assignments) == 3
    assert told.assignments[0].adding == (3,)


def test_a_topic_is_marked_before_anything_of_it_goes() -> None:
    before = image(BROKERS, topic("a", partition(1), partition(1)), topic("b", partition(1)))
    other = before.topics["b"].topic_id
    plan = delete_topics(before, ["a", other, "a", "x", topic("y", partition(1)).topic_id])
    kinds = [type(one) for one in plan.result]
    assert kinds == [type(None), type(None), UnknownTopic, UnknownTopic, UnknownTopicId]
    marks = [[one.path for one in group] for group in plan.groups[:2]]
    assert marks == [[nodes.deletion_path("a")], [nodes.deletion_path("b")]]
    tree = carried_out(before, plan)
    assert plan.image.topics == {}
    for parent in (nodes.TOPICS, nodes.TOPIC_CONFIGS, nodes.DELETIONS):
        assert tree.children(parent) == []


def alter(before: ClusterImage, configs: dict[str, str]) -> Plan[Any]:
    plan = alter_topic_configs(before, "t", configs, policy(), check_configs=lambda _: None)
    carried_out(before, plan)
    return plan


def test_settings_of_a_topic() -> None:
    before = image(BROKERS, topic("t", partition(1), configs={"a": "1"}))
    plan = alter(before, {"b": "2"})
    assert plan.image.topics["t"].configs == {"b": "2"}
    assert plan.change.reconfigured == [plan.image.topics["t"]]
    assert not alter(before, {"a": "1"}).groups
    with pytest.raises(UnknownTopic):
        alter_topic_configs(before, "x", {}, policy(), check_configs=lambda _: None)


def test_with_a_smaller_minimum_the_eligible_are_forgotten_before_the_leader_hears_of_it() -> None:
    before = image(BROKERS, topic("t", partition(1, 2, 3, isr=[1], elr=[3])))
    plan = alter(before, {"min.insync.replicas": "1"})
    assert only(plan.image).elr == ()
    assert only(plan.image).leader_epoch == 5
    paths = [one.path for group in plan.groups for one in group]
    assert paths == [nodes.state_path("t", 0), nodes.topic_configs_path("t")]


def test_where_unclean_elections_become_allowed_they_happen() -> None:
    before = image(BROKERS, topic("t", partition(2, 3, isr=[], elr=[2], last_known=2)))
    plan = alter(before, {"unclean.leader.election.enable": "true"})
    assert only(plan.image).leader == 3
    assert plan.result


def test_settings_of_brokers() -> None:
    before = image(BROKERS, topic("t", partition(1, 2, 3, isr=[1], elr=[3])))
    plan = alter_broker_configs(before, "", {"a": "1"}, policy(in_sync_min=1))
    tree = carried_out(before, plan)
    assert nodes.broker_configs_path("") in tree.nodes
    assert plan.image.broker_configs == {"": {"a": "1"}}
    assert only(plan.image).elr == ()
    changed = alter_broker_configs(plan.image, "", {"a": "2"}, policy())
    apply(tree, changed)
    gone = alter_broker_configs(changed.image, "", {}, policy())
    apply(tree, gone)
    assert gone.image.broker_configs == {}
    assert nodes.broker_configs_path("") not in tree.nodes
    assert not alter_broker_configs(gone.image, "", {}, policy()).groups
    with pytest.raises(InvalidRequest):
        alter_broker_configs(before, "x", {"a": "1"}, policy())


def test_brokers_that_are_fenced_can_have_settings_of_their_own() -> None:
    before = image(BROKERS)
    plan = alter_broker_configs(before, "2", {"a": "1"}, policy())
    assert plan.image.broker_configs == {"2": {"a": "1"}}
    assert plan.image.brokers[BrokerId(2)].is_fenced
