"""A broker says that its log of a partition has failed: who leads then, and what it may not."""

from uuid import UUID

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
from millstream.controller.cluster.elections import UncleanElection
from millstream.controller.cluster.errors import (
    IneligibleReplica,
    NoReplicaThere,
    StaleBrokerEpoch,
)
from millstream.controller.cluster.image_loader import load
from millstream.controller.cluster.isr_changes import isr_changes
from millstream.controller.cluster.leadership import elect_leaders, shut_down
from millstream.controller.cluster.lost_replicas import LostResults, lose_replicas
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import ElectionKind, IsrChange, LostReplica
from millstream.controller.cluster.reassignments import reassign
from millstream.controller.image import NO_LEADER, BrokerImage, ClusterImage, PartitionImage
from millstream.controller.views import PartitionViews
from millstream.model.errors import UnknownPartition, UnknownTopicId
from millstream.model.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition

ONE, TWO, THREE = ids(1, 2, 3)
BROKERS = [broker(one, epoch=10 + one) for one in (1, 2, 3)]
ALL = [registration(one, epoch=10 + one) for one in (1, 2, 3)]


def cluster(*partitions: PartitionImage, changed: BrokerImage | None = None) -> ClusterImage:
    """Brokers 1, 2 and 3 with the epochs 11, 12 and 13."""
    brokers = {one.broker_id: one for one in BROKERS}
    if changed is not None:
        brokers[changed.broker_id] = changed
    return image(brokers.values(), topic("t", *partitions))


def lose(
    before: ClusterImage, by: int, *indexes: int, rules: Policy | None = None
) -> Plan[LostResults]:
    """The plan, carried out on nodes, from which the next controller reads the same."""
    topic_id = before.topics["t"].topic_id
    plan = lose_replicas(
        before,
        [LostReplica(topic_id, index) for index in indexes or (0,)],
        rules or policy(),
        broker_id=BrokerId(by),
        broker_epoch=BrokerEpoch(10 + by),
    )
    tree = tree_of(before)
    apply(tree, plan)
    assert load(tree.found(), controller_id=ONE).image.topics == plan.image.topics
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    assert plan.result.errors == [None] * len(indexes or (0,))
    return plan


def come(
    before: ClusterImage, *brokers: Registration, rules: Policy | None = None
) -> PartitionImage:
    return only(brokers_changed(before, registered(*brokers), rules or policy()).image)


# -- who leads ---------------------------------------------------------------------------------


def test_a_leader_without_its_log_is_followed_by_another_in_sync() -> None:
    found = only(lose(cluster(partition(1, 2, 3)), 1).image)
    assert (found.leader, found.isr, found.elr, found.lost) == (2, (2, 3), (), (1,))
    assert (found.leader_epoch, found.partition_epoch) == (6, 10)


def test_a_follower_without_its_log_leaves_at_once_and_the_leader_stays() -> None:
    found = only(lose(cluster(partition(1, 2, 3)), 2).image)
    assert (found.leader, found.isr, found.elr, found.lost) == (1, (1, 3), (), (2,))
    assert (found.leader_epoch, found.partition_epoch) == (5, 10)


def test_it_is_not_eligible_although_the_others_are_too_few() -> None:
    """It is alive: as an eligible one it would be elected as soon as the others are gone."""
    found = only(lose(cluster(partition(1, 2, 3, isr=[1, 2])), 1).image)
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())
    found = only(lose(cluster(partition(1, 2, 3, isr=[1], elr=[2, 3])), 2).image)
    assert (found.leader, found.isr, found.elr, found.lost) == (1, (1,), (3,), (2,))


def test_an_eligible_one_leads_where_nobody_else_is_in_sync() -> None:
    found = only(lose(cluster(partition(1, 2, 3, isr=[1], elr=[3])), 1).image)
    assert (found.leader, found.isr, found.elr, found.lost) == (3, (3,), (), (1,))


@pytest.mark.parametrize("in_sync_min", [1, 2])
def test_the_last_one_is_remembered_and_nobody_leads(in_sync_min: int) -> None:
    """Others are alive and behind: an acknowledged record may be in the lost log alone."""
    plan = lose(cluster(partition(1, 2, 3, isr=[1])), 1, rules=policy(in_sync_min=in_sync_min))
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr) == (NO_LEADER, (), ())
    assert (found.last_known_leader, found.leader_epoch) == (1, 6)
    assert plan.result.unclean_elections == []
    asked = [TopicPartition("t", 0)]
    after = elect_leaders(plan.image, ElectionKind.PREFERRED, asked, policy())
    assert only(after.image) == found


def test_where_unclean_elections_are_allowed_another_leads_and_it_is_reported() -> None:
    plan = lose(cluster(partition(1, 2, 3, isr=[1])), 1, rules=policy(unclean=True))
    found = only(plan.image)
    assert (found.leader, found.isr, found.lost) == (2, (2,), (1,))
    reported = UncleanElection(TopicPartition("t", 0), TWO, is_last_known=False)
    assert plan.result.unclean_elections == [reported]


def test_a_lost_replica_is_never_elected_uncleanly() -> None:
    before = cluster(partition(1, 2, isr=[1]))
    plan = lose(lose(before, 1).image, 2, rules=policy(unclean=True))
    assert only(plan.image).leader == NO_LEADER
    asked = [TopicPartition("t", 0)]
    after = elect_leaders(plan.image, ElectionKind.UNCLEAN, asked, policy(unclean=True))
    assert only(after.image).leader == NO_LEADER


def test_several_partitions_are_lost_with_one_directory() -> None:
    plan = lose(cluster(partition(1, 2), partition(2, 1), partition(2, 3)), 1, 0, 1)
    first, second, third = plan.image.topics["t"].partitions
    assert (first.leader, second.isr, third.partition_epoch) == (2, (2,), 9)
    assert plan.result.marked == 2


def test_saying_it_again_changes_nothing() -> None:
    """Its answer may be lost, or the controller."""
    after = lose(cluster(partition(1, 2, 3)), 1).image
    plan = lose(after, 1)
    assert not plan.groups
    assert plan.image is after
    assert plan.result.marked == 0


# -- until it registers anew -------------------------------------------------------------------


def test_its_leader_cannot_bring_it_in_again() -> None:
    """A fetch from before the failure, heard of after it."""
    after = lose(cluster(partition(2, 1, 3)), 1).image
    found = only(after)
    isr = tuple((one, BrokerEpoch(10 + one)) for one in (TWO, ONE, THREE))
    topic_id = after.topics["t"].topic_id
    change = IsrChange(topic_id, 0, found.leader_epoch, found.partition_epoch, isr)
    plan = isr_changes(after, [change], policy(), broker_id=TWO, broker_epoch=BrokerEpoch(12))
    (refused,) = plan.result
    assert isinstance(refused, IneligibleReplica)
    assert plan.image is after


def test_the_mark_stays_while_the_broker_is_the_same_or_away() -> None:
    after = lose(cluster(partition(1, 2, 3, isr=[1])), 1).image
    assert come(after, *ALL).lost == (1,)
    found = come(after, ALL[1], ALL[2])
    assert (found.leader, found.lost, found.last_known_leader) == (NO_LEADER, (1,), 1)


def test_a_new_registration_forgets_the_mark() -> None:
    """Without proof, as of everybody whose directory failed: in sync only through its leader."""
    after = lose(cluster(partition(1, 2, 3)), 1).image
    found = come(after, registration(1, epoch=20), ALL[1], ALL[2])
    assert (found.leader, found.isr, found.elr, found.lost) == (2, (2, 3), (), ())


def test_the_last_one_leads_again_when_it_comes_back() -> None:
    after = lose(cluster(partition(1, 2, 3, isr=[1])), 1).image
    found = come(after, registration(1, epoch=20), ALL[1], ALL[2])
    assert (found.leader, found.isr, found.lost) == (1, (1,), ())


def test_marks_of_others_stay() -> None:
    after = lose(lose(cluster(partition(3, 2, 1)), 1).image, 2).image
    assert only(after).lost == (1, 2)
    found = come(after, registration(1, epoch=20), ALL[1], ALL[2])
    assert (found.isr, found.lost) == ((3,), (2,))


def test_a_shutdown_waits_for_nobody_who_has_no_log() -> None:
    """The other replica can never come to lead what the leaving broker leads."""
    after = lose(cluster(partition(2, 1)), 1).image
    plan = shut_down(after, policy(), broker_id=TWO, broker_epoch=BrokerEpoch(12))
    assert plan.result == []


def test_a_replica_that_goes_takes_its_mark_with_it() -> None:
    after = lose(cluster(partition(2, 1)), 1).image
    moved = reassign(after, {TopicPartition("t", 0): ids(2)}, policy())
    assert (only(moved.image).replicas, only(moved.image).lost) == ((2,), ())


def test_clients_are_told_that_it_is_offline() -> None:
    after = lose(cluster(partition(1, 2, 3)), 1).image
    view = PartitionViews(after, "PLAINTEXT", version=9).of(only(after))
    assert (view.leader, view.offline) == (2, [1])


# -- who may say so ----------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [9, 12])
def test_an_earlier_incarnation_says_nothing(epoch: int) -> None:
    """I-17: its successor may have the log."""
    before = cluster(partition(1, 2, 3))
    lost = [LostReplica(before.topics["t"].topic_id, 0)]
    with pytest.raises(StaleBrokerEpoch):
        lose_replicas(before, lost, policy(), broker_id=ONE, broker_epoch=BrokerEpoch(epoch))


def test_what_is_not_there_is_refused_one_by_one() -> None:
    before = cluster(partition(1, 2), partition(2, 3))
    told = before.topics["t"].topic_id
    other = TopicId(UUID(int=77))
    lost = [LostReplica(*one) for one in ((other, 0), (told, 2), (told, -1), (told, 1), (told, 0))]
    plan = lose_replicas(before, lost, policy(), broker_id=ONE, broker_epoch=BrokerEpoch(11))
    kinds = [type(one) for one in plan.result.errors]
    assert kinds[:4] == [UnknownTopicId, UnknownPartition, UnknownPartition, NoReplicaThere]
    assert plan.result.errors[4] is None
    assert plan.image.topics["t"].partitions[0].lost == (1,)
