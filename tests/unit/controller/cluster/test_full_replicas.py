"""A broker says that its disk is full: who leads then, and what it may not while it is."""

import pytest

from kits.controller.cluster_plans_kit import (
    apply,
    as_values,
    broker,
    difference,
    ids,
    image,
    only,
    partition,
    policy,
    registered,
    registration,
    topic,
    tree_of,
)
from millstream.controller.cluster.brokers import brokers_changed
from millstream.controller.cluster.errors import IneligibleReplica, StaleBrokerEpoch
from millstream.controller.cluster.full_replicas import RoomResults, plan_full_replicas_steps
from millstream.controller.cluster.image_loader import load
from millstream.controller.cluster.isr_changes import isr_changes
from millstream.controller.cluster.leadership import balance_leaders_steps, elect_leaders, shut_down
from millstream.controller.cluster.lost_replicas import lose_replicas
from millstream.controller.cluster.plans import Plan
from millstream.controller.cluster.port import ElectionKind, IsrChange, LostReplica, ReplicaName
from millstream.controller.image import NO_LEADER, ClusterImage, PartitionImage
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition
from millstream.runtime.scheduler import run_blocking

ONE, TWO, THREE = ids(1, 2, 3)


def cluster(*partitions: PartitionImage) -> ClusterImage:
    """Brokers 1, 2 and 3 with the epochs 11, 12 and 13."""
    return image([broker(one, epoch=10 + one) for one in (1, 2, 3)], topic("t", *partitions))


def note(before: ClusterImage, by: int, *, is_full: bool = True) -> Plan[RoomResults]:
    """The plan, carried out on nodes, from which the next controller reads the same."""
    plan = run_blocking(
        plan_full_replicas_steps(
            before,
            [ReplicaName(before.topics["t"].topic_id, 0)],
            policy(),
            broker_id=BrokerId(by),
            broker_epoch=BrokerEpoch(10 + by),
            is_full=is_full,
        )
    )
    tree = tree_of(before)
    apply(tree, plan)
    assert load(tree.found(), controller_id=ONE).image.topics == plan.image.topics
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    assert plan.result.errors == [None]
    return plan


def full(before: ClusterImage, *brokers: int) -> ClusterImage:
    for one in brokers:
        before = note(before, one).image
    return before


def test_a_full_leader_is_followed_by_another_in_sync() -> None:
    plan = note(cluster(partition(1, 2, 3)), 1)
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr, found.full) == (2, (2, 3), (), (1,))
    assert (plan.result.marked, plan.result.moved) == (1, 1)


def test_a_full_follower_leaves_and_the_leader_stays() -> None:
    found = only(note(cluster(partition(1, 2, 3)), 2).image)
    assert (found.leader, found.isr, found.full) == (1, (1, 3), (2,))


def test_who_left_a_small_isr_has_everything_and_stays_eligible() -> None:
    found = only(note(cluster(partition(1, 2, 3, isr=[1, 2])), 1).image)
    assert (found.leader, found.isr, found.elr, found.full) == (2, (2,), (1,), (1,))


@pytest.mark.parametrize("isr", [[1], [1, 2, 3]])
def test_where_no_other_has_room_the_last_one_stays(isr: list[int]) -> None:
    found = only(full(cluster(partition(1, 2, 3, isr=isr)), *reversed(isr)))
    assert found.leader == 1
    assert found.isr == (1,)
    assert sorted(found.full) == isr


def test_it_steps_back_once_another_with_room_is_in_sync() -> None:
    before = full(cluster(partition(1, 2, 3, isr=[1])), 1)
    (answer,) = grow(before, 1, 2)
    assert isinstance(answer.result[0], PartitionImage)
    found = only(note(answer.image, 1).image)
    assert (found.leader, found.isr) == (2, (2,))


def grow(before: ClusterImage, *isr: int) -> list[Plan[list[object]]]:
    now = only(before)
    change = IsrChange(
        before.topics["t"].topic_id,
        0,
        now.leader_epoch,
        now.partition_epoch,
        tuple((BrokerId(one), BrokerEpoch(10 + one)) for one in isr),
    )
    plan = isr_changes(
        before, [change], policy(), broker_id=now.leader, broker_epoch=BrokerEpoch(10 + now.leader)
    )
    return [Plan(list(plan.result), plan.image, plan.groups, plan.change)]


def test_a_full_replica_does_not_join_until_it_is_usable() -> None:
    before = full(cluster(partition(1, 2, 3)), 1)
    (refused,) = grow(before, 2, 3, 1)
    assert isinstance(refused.result[0], IneligibleReplica)
    usable = note(before, 1, is_full=False).image
    assert only(usable).full == ()
    (joined,) = grow(usable, 2, 3, 1)
    assert isinstance(joined.result[0], PartitionImage)


def test_an_election_takes_a_full_replica_last() -> None:
    """Also after a shutdown of the others, and it is better than no leader."""
    before = cluster(partition(1, 2, 3)._replace(full=(TWO,)))
    found = only(shut_down(before, policy(), broker_id=ONE, broker_epoch=BrokerEpoch(11)).image)
    assert found.leader == 3
    alone = cluster(partition(1, 2, 3, isr=[1, 2])._replace(full=(TWO,)))
    found = only(shut_down(alone, policy(), broker_id=ONE, broker_epoch=BrokerEpoch(11)).image)
    assert found.leader == 2


def test_a_full_preferred_leader_is_not_preferred() -> None:
    before = cluster(partition(1, 2, 3, leader=2)._replace(full=(ONE,)))
    plan = run_blocking(balance_leaders_steps(before, policy(), percentage=0))
    assert plan.result == 0
    name = TopicPartition("t", 0)
    asked = elect_leaders(before, ElectionKind.PREFERRED, [name], policy())
    assert asked.result.errors[name] is not None
    usable = note(before, 1, is_full=False).image
    assert run_blocking(balance_leaders_steps(usable, policy(), percentage=0)).result == 1


def test_a_registration_removes_the_mark() -> None:
    before = full(cluster(partition(1, 2, 3)), 1)
    back = [registration(1, epoch=21), registration(2, epoch=12), registration(3, epoch=13)]
    assert only(brokers_changed(before, registered(*back), policy()).image).full == ()


def test_a_lost_replica_that_is_usable_again_may_join_but_not_without_a_leader() -> None:
    lost = [LostReplica(cluster(partition(1, 2, 3)).topics["t"].topic_id, 0)]

    def lose(before: ClusterImage) -> ClusterImage:
        return lose_replicas(
            before, lost, policy(), broker_id=ONE, broker_epoch=BrokerEpoch(11)
        ).image

    led = lose(cluster(partition(1, 2, 3)))
    assert only(note(led, 1, is_full=False).image).lost == ()
    leaderless = lose(cluster(partition(1, 2, 3, isr=[1])))
    assert only(leaderless).leader == NO_LEADER
    assert only(note(leaderless, 1, is_full=False).image).lost == (1,)


def test_an_earlier_incarnation_says_nothing() -> None:
    before = cluster(partition(1, 2, 3))
    with pytest.raises(StaleBrokerEpoch):
        run_blocking(
            plan_full_replicas_steps(
                before, [], policy(), broker_id=ONE, broker_epoch=BrokerEpoch(9), is_full=True
            )
        )
