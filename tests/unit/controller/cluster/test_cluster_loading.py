"""What a new controller reads, and what it finishes first."""

import pytest

from kits.controller.cluster_plans_kit import (
    NodeTree,
    apply,
    broker,
    ids,
    image,
    partition,
    policy,
    registration,
    topic,
    tree_of,
)
from millstream.controller.cluster import nodes
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.image_loader import load, recovery
from millstream.controller.image import NO_LEADER, ClusterImage
from millstream.coordination.port import Create
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId

ME = BrokerId(1)


def register(
    tree: NodeTree, broker_id: int, *, epoch: int, previous: int = NO_BROKER_EPOCH
) -> None:
    """As the incarnation with this epoch."""
    told = registration(broker_id, epoch=epoch, previous=previous)
    path = nodes.broker_path(BrokerId(broker_id))
    tree.multi([Create(path=path, data=nodes.encode_registration(told, timestamp_ms=0))])
    tree.nodes[path] = tree.nodes[path]._replace(czxid=epoch)


def recovered(tree: NodeTree) -> ClusterImage:
    plan = recovery(load(tree.found(), controller_id=ME), policy())
    apply(tree, plan)
    again = recovery(load(tree.found(), controller_id=ME), policy())
    assert not again.groups
    assert again.image.topics == plan.image.topics
    return plan.image


def cluster() -> tuple[ClusterImage, NodeTree]:
    """Three brokers that are there, and a topic."""
    brokers = [broker(one, epoch=10 + one) for one in (1, 2, 3)]
    told = topic("t", partition(1, 2, 3), partition(2, 3, isr=[2], elr=[3]), configs={"a": "b"})
    before = image(brokers, told)
    tree = tree_of(before)
    for one in (1, 2, 3):
        register(tree, one, epoch=10 + one)
    return before, tree


def test_what_was_written_is_read() -> None:
    before, tree = cluster()
    path = nodes.broker_configs_path("")
    tree.multi([Create(path=path, data=nodes.encode_configs({"x": "y"}))])
    loaded = load(tree.found(), controller_id=ME)
    assert loaded.image.topics == before.topics
    assert loaded.image.brokers == before.brokers
    assert loaded.image.broker_configs == {"": {"x": "y"}}
    assert loaded.image.cluster_id == before.cluster_id
    assert loaded.image.controller_id == ME
    assert not loaded.unfinished
    assert not loaded.leftovers
    plan = recovery(loaded, policy())
    assert not plan.groups


def test_brokers_that_came_and_went_meanwhile_are_dealt_with() -> None:
    _, tree = cluster()
    del tree.nodes[nodes.broker_path(BrokerId(1))], tree.nodes[nodes.broker_path(BrokerId(2))]
    register(tree, 2, epoch=50)
    found = recovered(tree)
    first, second = found.topics["t"].partitions
    assert (first.leader, first.isr) == (3, (3,))
    assert (second.leader, second.isr, second.elr) == (3, (3,), ())
    gone = found.brokers[BrokerId(1)]
    assert gone.is_fenced
    assert [one.host for one in gone.endpoints] == ["host-1"]
    assert found.brokers[BrokerId(2)].epoch == BrokerEpoch(50)


def test_partitions_that_are_missing_are_made() -> None:
    before, tree = cluster()
    del tree.nodes[nodes.state_path("t", 1)]
    found = recovered(tree)
    first, second = found.topics["t"].partitions
    assert first == before.topics["t"].partitions[0]
    assert (second.leader, second.isr, second.partition_epoch) == (2, (2, 3), 0)


def test_a_topic_without_any_partition_is_made() -> None:
    _, tree = cluster()
    for path in [one for one in tree.nodes if one.startswith(nodes.partitions_path("t"))]:
        del tree.nodes[path]
    del tree.nodes[nodes.topic_configs_path("t")]
    found = recovered(tree)
    assert [one.isr for one in found.topics["t"].partitions] == [(1, 2, 3), (2, 3)]
    assert found.topics["t"].configs == {}


def test_a_new_partition_whose_brokers_are_all_away_waits_for_any_of_them() -> None:
    _, tree = cluster()
    del tree.nodes[nodes.state_path("t", 1)]
    for one in (2, 3):
        del tree.nodes[nodes.broker_path(BrokerId(one))]
    second = recovered(tree).topics["t"].partitions[1]
    assert (second.leader, second.isr, second.elr) == (NO_LEADER, (), (2, 3))
    register(tree, 3, epoch=50)
    tree.nodes[nodes.broker_path(BrokerId(3))] = tree.nodes[
        nodes.broker_path(BrokerId(3))
    ]._replace(
        data=nodes.encode_registration(registration(3, epoch=50, previous=13), timestamp_ms=0)
    )
    assert recovered(tree).topics["t"].partitions[1].leader == 3


def test_a_deletion_that_has_begun_is_finished() -> None:
    _, tree = cluster()
    tree.multi([Create(path=nodes.deletion_path("t"))])
    del tree.nodes[nodes.state_path("t", 0)], tree.nodes[nodes.partition_path("t", 0)]
    tree.multi([Create(path=nodes.deletion_path("never-there"))])
    found = recovered(tree)
    assert found.topics == {}
    for parent in (nodes.TOPICS, nodes.TOPIC_CONFIGS, nodes.DELETIONS):
        assert tree.children(parent) == []


def test_settings_without_a_topic_are_removed() -> None:
    _, tree = cluster()
    tree.multi([Create(path=nodes.topic_configs_path("x"), data=nodes.encode_configs({}))])
    recovered(tree)
    assert tree.children(nodes.TOPIC_CONFIGS) == ["t"]


def test_a_reassignment_whose_target_is_in_sync_is_done() -> None:
    brokers = [broker(one, epoch=10 + one) for one in (1, 2, 3)]
    one = partition(2, 3, 1, isr=[1, 2, 3], leader=1, adding=[2, 3], removing=[1])
    tree = tree_of(image(brokers, topic("t", one)))
    for number in (1, 2, 3):
        register(tree, number, epoch=10 + number)
    (found,) = recovered(tree).topics["t"].partitions
    assert (found.replicas, found.isr, found.leader) == ((2, 3), (2, 3), 2)
    assert (found.adding, found.removing, found.leader_epoch) == ((), (), 6)


def test_what_kafka_left_is_taken_over() -> None:
    """No word of our own nodes: every broker is one that came without proof."""
    tree = NodeTree()
    tree.multi([Create(path=one) for one in nodes.PERSISTENT])
    tree.multi([Create(path=nodes.CLUSTER_ID, data=nodes.encode_cluster_id("c"))])
    topic_data = (
        b'{"removing_replicas":{},"partitions":{"0":[1,2]},"topic_id":"ZgVoLdZDTJ6bB4Mzd6ExVw",'
        b'"adding_replicas":{},"version":3}'
    )
    state = b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":7,"isr":[1,2]}'
    tree.multi(
        [
            Create(path=nodes.topic_path("t"), data=topic_data),
            Create(path=nodes.partitions_path("t")),
            Create(path=nodes.partition_path("t", 0)),
            Create(path=nodes.state_path("t", 0), data=state),
        ]
    )
    register(tree, 1, epoch=50)
    plan = recovery(load(tree.found(), controller_id=ME), policy())
    apply(tree, plan)
    (found,) = plan.image.topics["t"].partitions
    assert (found.leader, found.isr, found.elr) == (NO_LEADER, (), (2,))
    assert plan.result.unproved == ids(1)


def test_damage_stops_the_controller_with_the_path() -> None:
    _, tree = cluster()
    path = nodes.state_path("t", 0)
    kept = tree.nodes[path]
    tree.nodes[path] = kept._replace(data=b"{")
    with pytest.raises(DamagedNode, match=path):
        load(tree.found(), controller_id=ME)
    del tree.nodes[path]
    with pytest.raises(DamagedNode, match=path):
        load(tree.found(), controller_id=ME)
    tree.nodes[path] = kept
    del tree.nodes[nodes.CLUSTER_ID]
    with pytest.raises(DamagedNode, match=nodes.CLUSTER_ID):
        load(tree.found(), controller_id=ME)
