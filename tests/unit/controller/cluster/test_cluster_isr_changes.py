"""AlterPartition: what a leader may ask for, and what becomes of it."""

import pytest

from kits.controller.cluster_plans_kit import (
    apply,
    as_values,
    broker,
    difference,
    image,
    partition,
    policy,
    topic,
    tree_of,
)
from millstream.controller.cluster import nodes
from millstream.controller.cluster.errors import (
    IneligibleReplica,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
)
from millstream.controller.cluster.isr_changes import IsrResults, isr_changes
from millstream.controller.cluster.plans import Plan
from millstream.controller.cluster.port import IsrChange
from millstream.controller.errors import InvalidRequest
from millstream.controller.image import BrokerImage, ClusterImage, PartitionImage
from millstream.coordination.port import Set
from millstream.model.errors import (
    FencedLeaderEpoch,
    OperatingError,
    UnknownPartition,
    UnknownTopicId,
)
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch

BROKERS = [broker(one, epoch=10 + one) for one in (1, 2, 3, 4)]


def cluster(*partitions: PartitionImage, changed: BrokerImage | None = None) -> ClusterImage:
    brokers = {one.broker_id: one for one in BROKERS}
    if changed is not None:
        brokers[changed.broker_id] = changed
    return image(brokers.values(), topic("t", *partitions))


def ask(before: ClusterImage, *isr: int, index: int = 0, **changed: int) -> IsrChange:
    """By the leader, based on the partition as it is."""
    told = before.topics["t"]
    one = told.partitions[index]
    return IsrChange(
        told.topic_id,
        index,
        LeaderEpoch(changed.get("leader_epoch", one.leader_epoch)),
        changed.get("partition_epoch", one.partition_epoch),
        tuple((BrokerId(member), BrokerEpoch(10 + member)) for member in isr),
    )


def decide(before: ClusterImage, *changes: IsrChange, by: int = 1) -> Plan[IsrResults]:
    plan = isr_changes(
        before,
        changes,
        policy(),
        broker_id=BrokerId(by),
        broker_epoch=BrokerEpoch(10 + by),
    )
    apply(tree_of(before), plan)
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    return plan


def result(before: ClusterImage, change: IsrChange, *, by: int = 1) -> PartitionImage:
    plan = decide(before, change, by=by)
    (one,) = plan.result
    assert isinstance(one, PartitionImage)
    assert plan.image.topics["t"].partitions[change.partition] == one
    return one


def refusal(before: ClusterImage, change: IsrChange, *, by: int = 1) -> OperatingError:
    plan = decide(before, change, by=by)
    (one,) = plan.result
    assert isinstance(one, OperatingError)
    assert not plan.groups
    assert plan.image is before
    return one


def test_a_leader_brings_a_replica_in() -> None:
    before = cluster(partition(1, 2, 3, isr=[1, 2]))
    found = result(before, ask(before, 1, 2, 3))
    assert (found.isr, found.leader_epoch, found.partition_epoch) == ((1, 2, 3), 5, 10)


def test_who_leaves_a_set_that_becomes_too_small_stays_eligible() -> None:
    before = cluster(partition(1, 2, 3))
    assert result(before, ask(before, 1)).elr == (2, 3)


def test_who_leaves_a_set_that_stays_large_enough_is_not_eligible() -> None:
    before = cluster(partition(1, 2, 3))
    assert result(before, ask(before, 1, 2)).elr == ()


def test_the_eligible_ones_are_forgotten_once_the_set_is_large_enough() -> None:
    before = cluster(partition(1, 2, 3, isr=[1], elr=[2]))
    found = result(before, ask(before, 1, 3))
    assert (found.isr, found.elr) == ((1, 3), ())


def test_the_same_set_makes_a_new_partition_epoch() -> None:
    """By it a change that its leader has lost sight of is refused, should it come yet."""
    before = cluster(partition(1, 2, 3))
    lost = ask(before, 1, 2)
    plan = decide(before, ask(before, 1, 2, 3))
    then = before.topics["t"].partitions[0]
    assert plan.result == [then._replace(partition_epoch=then.partition_epoch + 1)]
    assert len(plan.groups) == 1
    assert isinstance(decide(plan.image, lost).result[0], InvalidUpdateVersion)


def test_two_changes_of_one_partition_are_one_and_a_refusal() -> None:
    before = cluster(partition(1, 2, 3))
    plan = decide(before, ask(before, 1, 2), ask(before, 1, 3))
    assert isinstance(plan.result[0], PartitionImage)
    assert isinstance(plan.result[1], InvalidUpdateVersion)
    assert len(plan.groups) == 1


def test_a_stale_incarnation_is_refused_as_a_whole() -> None:
    before = cluster(partition(1, 2, 3))
    with pytest.raises(StaleBrokerEpoch):
        isr_changes(
            before,
            [ask(before, 1)],
            policy(),
            broker_id=BrokerId(1),
            broker_epoch=BrokerEpoch(10),
        )


def test_unknown_topics_and_partitions() -> None:
    before = cluster(partition(1, 2, 3))
    other = topic("other", partition(1)).topic_id
    assert isinstance(refusal(before, ask(before, 1)._replace(topic_id=other)), UnknownTopicId)
    assert isinstance(refusal(before, ask(before, 1)._replace(partition=7)), UnknownPartition)


def test_a_leader_that_knows_more_than_the_controller_is_sent_to_another() -> None:
    before = cluster(partition(1, 2, 3))
    assert isinstance(refusal(before, ask(before, 1, leader_epoch=6)), NotController)
    assert isinstance(refusal(before, ask(before, 1, partition_epoch=10)), NotController)


def test_older_epochs_and_others_than_the_leader_are_refused_in_kafkas_order() -> None:
    before = cluster(partition(1, 2, 3))
    older = ask(before, 1, leader_epoch=4, partition_epoch=3)
    assert isinstance(refusal(before, older, by=2), FencedLeaderEpoch)
    stale = ask(before, 1, partition_epoch=8)
    assert isinstance(refusal(before, stale, by=2), InvalidRequest)
    assert isinstance(refusal(before, stale), InvalidUpdateVersion)


def test_sets_that_make_no_sense_are_refused() -> None:
    before = cluster(partition(1, 2, 3))
    for members in ((1, 4), (2, 3), (1, 2, 2), ()):
        assert isinstance(refusal(before, ask(before, *members)), InvalidRequest)


def test_members_must_be_the_incarnation_that_is_there() -> None:
    """KIP-903: a broker that was restarted since it fetched has lost its right."""
    one = partition(1, 2, 3, isr=[1])
    for changed in (
        broker(2, epoch=12, fenced=True),
        broker(2, epoch=12, leaving=True),
        broker(2, epoch=99),
    ):
        before = cluster(one, changed=changed)
        assert isinstance(refusal(before, ask(before, 1, 2)), IneligibleReplica)


def test_who_is_shutting_down_can_still_bring_others_in() -> None:
    before = cluster(partition(1, 2, 3, isr=[1]), changed=broker(1, epoch=11, leaving=True))
    assert result(before, ask(before, 1, 2)).isr == (1, 2)


def test_a_reassignment_is_done_when_its_target_is_in_sync() -> None:
    before = cluster(partition(4, 2, 1, isr=[1, 2], adding=[4], removing=[1], leader=2))
    plan = decide(before, ask(before, 1, 2, 4), by=2)
    found = plan.image.topics["t"].partitions[0]
    assert (found.replicas, found.isr, found.adding, found.removing) == ((4, 2), (2, 4), (), ())
    assert (found.leader, found.leader_epoch) == (2, 6), (
        "I-13 a fetch that 1 sent before does not count when it is a replica again"
    )
    (group,) = plan.groups
    assert [one.path for one in group] == [nodes.topic_path("t"), nodes.state_path("t", 0)]
    assert isinstance(group[1], Set)
    assert group[1].version == 9


def test_a_reassignment_that_removes_the_leader_elects_another() -> None:
    before = cluster(partition(4, 2, 1, isr=[1, 2], adding=[4], removing=[1], leader=1))
    found = result(before, ask(before, 1, 2, 4))
    assert (found.leader, found.leader_epoch, found.isr, found.elr) == (4, 6, (2, 4), ())
