"""Leaderships that move on request, for balance, and before a shutdown."""

import pytest

from kits.controller.cluster_plans_kit import (
    apply,
    as_values,
    broker,
    difference,
    image,
    only,
    partition,
    policy,
    topic,
    tree_of,
)
from millstream.controller.cluster.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    StaleBrokerEpoch,
)
from millstream.controller.cluster.leadership import (
    PartitionResults,
    balance,
    elect_leaders,
    shut_down,
)
from millstream.controller.cluster.plans import Plan
from millstream.controller.cluster.port import ElectionKind
from millstream.controller.image import ClusterImage, PartitionImage
from millstream.model.errors import UnknownPartition
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition

NAME = TopicPartition("t", 0)


def cluster(
    *partitions: PartitionImage, absent: tuple[int, ...] = (), leaving: tuple[int, ...] = ()
) -> ClusterImage:
    brokers = [
        broker(one, epoch=10 + one, fenced=one in absent, leaving=one in leaving)
        for one in (1, 2, 3)
    ]
    return image(brokers, topic("t", *partitions))


def elect(
    before: ClusterImage, kind: ElectionKind, *, every: bool = False
) -> Plan[PartitionResults]:
    plan = elect_leaders(before, kind, None if every else [NAME], policy())
    apply(tree_of(before), plan)
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    return plan


def test_the_preferred_leader_is_elected_when_it_is_in_sync() -> None:
    before = cluster(partition(1, 2, 3, leader=2))
    plan = elect(before, ElectionKind.PREFERRED)
    assert plan.result.errors == {NAME: None}
    assert (only(plan.image).leader, only(plan.image).leader_epoch) == (1, 6)


@pytest.mark.parametrize(
    ("before", "error"),
    [
        (cluster(partition(1, 2, 3)), ElectionNotNeeded),
        (cluster(partition(1, 2, 3, isr=[2, 3])), PreferredLeaderNotAvailable),
        (cluster(partition(1, 2, 3, leader=2), leaving=(1,)), PreferredLeaderNotAvailable),
    ],
)
def test_why_no_preferred_leader_is_elected(before: ClusterImage, error: type) -> None:
    plan = elect(before, ElectionKind.PREFERRED)
    assert isinstance(plan.result.errors[NAME], error)
    assert not plan.groups


def test_an_unclean_election_by_request_needs_no_setting_and_is_reported() -> None:
    before = cluster(partition(1, 2, 3, isr=[], elr=[1], last_known=1), absent=(1,))
    plan = elect(before, ElectionKind.UNCLEAN)
    assert plan.result.errors == {NAME: None}
    assert [one.leader for one in plan.result.unclean_elections] == [2]
    assert (only(plan.image).isr, only(plan.image).elr) == ((2,), ())


def test_why_no_unclean_leader_is_elected() -> None:
    plan = elect(cluster(partition(1, 2, 3)), ElectionKind.UNCLEAN)
    assert isinstance(plan.result.errors[NAME], ElectionNotNeeded)
    nobody = cluster(partition(1, isr=[], elr=[1], last_known=1), absent=(1,))
    plan = elect(nobody, ElectionKind.UNCLEAN)
    assert isinstance(plan.result.errors[NAME], EligibleLeadersNotAvailable)


def test_asked_for_all_those_that_need_none_are_not_told() -> None:
    before = cluster(partition(1, 2, 3), partition(1, 2, 3, leader=2), partition(1, 2, isr=[2]))
    errors = elect(before, ElectionKind.PREFERRED, every=True).result.errors
    assert errors.keys() == {TopicPartition("t", 1), TopicPartition("t", 2)}
    assert errors[TopicPartition("t", 1)] is None


def test_unknown_partitions_are_told() -> None:
    other = TopicPartition("other", 0)
    plan = elect_leaders(cluster(partition(1)), ElectionKind.PREFERRED, [other], policy())
    assert isinstance(plan.result.errors[other], UnknownPartition)


def test_balance_moves_leaders_of_brokers_above_the_percentage_only() -> None:
    """Broker 1 leads 8 of its 10, broker 2 leads 9 of its 10: with ten percent only 1 wants."""
    of_one = [partition(1, 2)] * 8 + [partition(1, 2, leader=2)] * 2
    of_two = [partition(2, 1)] * 9 + [partition(2, 1, leader=1)]
    before = cluster(*of_one, *of_two)
    plan = balance(before, policy(), percentage=10)
    assert plan.result == 2
    leaders = [one.leader for one in plan.image.topics["t"].partitions]
    assert leaders == [1] * 10 + [2] * 9 + [1]
    assert balance(plan.image, policy(), percentage=10).result == 0


def test_balance_leaves_what_cannot_be_led_by_the_preferred() -> None:
    stuck = [partition(1, 2, isr=[2]), partition(1, 2, isr=[], elr=[2], last_known=2)]
    assert balance(cluster(*stuck), policy(), percentage=0).result == 0
    moved = [partition(1, 2, leader=2)] * 5
    assert balance(cluster(*moved), policy(), percentage=10, count_max=3).result == 3
    assert balance(cluster(*moved, leaving=(1,)), policy(), percentage=10).result == 0


def leave(before: ClusterImage, *, epoch: int = 11) -> Plan[list[TopicPartition]]:
    plan = shut_down(before, policy(), broker_id=BrokerId(1), broker_epoch=BrokerEpoch(epoch))
    apply(tree_of(before), plan)
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    return plan


def test_who_shuts_down_leaves_its_leaderships_and_in_sync_sets_to_others() -> None:
    before = cluster(partition(1, 2, 3), partition(2, 1), partition(3, 2))
    plan = leave(before)
    first, second, third = plan.image.topics["t"].partitions
    assert plan.result == []
    assert (first.leader, first.isr, first.leader_epoch) == (2, (2, 3), 6)
    assert (second.leader, second.isr, second.elr, second.leader_epoch) == (2, (2,), (1,), 5)
    assert third == before.topics["t"].partitions[2]
    assert plan.image.brokers[BrokerId(1)].is_leaving
    again = leave(plan.image)
    assert not again.groups
    assert again.image is plan.image


def test_what_somebody_else_could_come_to_lead_is_waited_for() -> None:
    plan = leave(cluster(partition(1, 2, 3, isr=[1])))
    assert plan.result == [NAME]
    assert only(plan.image).leader == 1


def test_an_eligible_replica_takes_over_from_the_only_one_in_sync() -> None:
    found = only(leave(cluster(partition(1, 2, 3, isr=[1], elr=[2]))).image)
    assert (found.leader, found.isr, found.elr) == (2, (2,), (1,))


def test_what_nobody_else_can_lead_is_not_waited_for() -> None:
    """One replica, or all others gone or going too: a whole cluster can stop at once."""
    before = cluster(partition(1), partition(1, 2, 3, isr=[1, 2]), absent=(3,), leaving=(2,))
    plan = leave(before)
    assert plan.result == []
    assert [one.leader for one in plan.image.topics["t"].partitions] == [1, 1]


def test_a_stale_incarnation_cannot_shut_its_successor_down() -> None:
    with pytest.raises(StaleBrokerEpoch):
        leave(cluster(partition(1, 2)), epoch=10)
