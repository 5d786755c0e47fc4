"""Partitions that move to other brokers (KIP-455)."""

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
    topic,
    tree_of,
)
from millstream.controller.cluster import nodes
from millstream.controller.cluster.drafts import GROUP_BYTES_MAX, GROUP_OPERATIONS_MAX
from millstream.controller.cluster.errors import NoReassignmentInProgress
from millstream.controller.cluster.leadership import PartitionResults
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.reassignments import reassign, reassignments
from millstream.controller.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from millstream.controller.image import ClusterImage, PartitionImage
from millstream.coordination.port import Set
from millstream.model.errors import UnknownPartition
from millstream.model.ids import BrokerId, TopicPartition

NAME = TopicPartition("t", 0)
Fields = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def cluster(one: PartitionImage) -> ClusterImage:
    return image([broker(number, epoch=10 + number) for number in range(1, 7)], topic("t", one))


def ask(
    before: ClusterImage, *replicas: int, rules: Policy | None = None, keep_factor: bool = False
) -> Plan[PartitionResults]:
    """No replicas give the reassignment up."""
    wanted: dict[TopicPartition, tuple[BrokerId, ...] | None] = {NAME: ids(*replicas) or None}
    plan = reassign(before, wanted, rules or policy(), may_change_factor=not keep_factor)
    apply(tree_of(before), plan)
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    return plan


def fields(plan: Plan[PartitionResults]) -> Fields:
    assert plan.result.errors == {NAME: None}
    one = only(plan.image)
    return one.replicas, one.adding, one.removing


def test_new_replicas_come_first_and_the_old_ones_stay_until_it_is_done() -> None:
    plan = ask(cluster(partition(1, 2, 3)), 4, 5, 3)
    assert fields(plan) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    found = only(plan.image)
    assert (found.isr, found.leader, found.leader_epoch, found.partition_epoch) == (
        (1, 2, 3),
        1,
        5,
        10,
    )
    (group,) = plan.groups
    assert [one.path for one in group] == [nodes.topic_path("t"), nodes.state_path("t", 0)]


def test_another_target_replaces_the_first_one() -> None:
    """What the first one was adding goes; where it all began is not forgotten."""
    before = cluster(partition(4, 5, 3, 1, 2, isr=[1, 2, 3, 4], adding=[4, 5], removing=[1, 2]))
    plan = ask(before, 6, 5, 1)
    assert fields(plan) == ((6, 5, 1, 3, 2), (6, 5), (3, 2))
    assert only(plan.image).isr == (1, 2, 3)
    assert fields(ask(plan.image)) == ((1, 3, 2), (), ())


def test_a_new_order_or_fewer_replicas_are_done_at_once() -> None:
    assert fields(ask(cluster(partition(1, 2, 3)), 3, 2, 1)) == ((3, 2, 1), (), ())
    plan = ask(cluster(partition(1, 2, 3)), 2, 3)
    assert fields(plan) == ((2, 3), (), ())
    found = only(plan.image)
    assert (found.leader, found.leader_epoch, found.isr, found.elr) == (2, 6, (2, 3), ())


def test_fewer_replicas_wait_until_those_that_stay_are_in_sync() -> None:
    plan = ask(cluster(partition(1, 2, 3, isr=[1, 3])), 2, 3)
    assert fields(plan) == ((2, 3, 1), (), (1,))


def test_the_same_replicas_are_no_change() -> None:
    assert not ask(cluster(partition(1, 2, 3)), 1, 2, 3).groups


def test_giving_up_takes_out_what_was_added() -> None:
    before = cluster(partition(4, 3, 1, 2, isr=[4, 1, 2], leader=4, adding=[4], removing=[1, 2]))
    plan = ask(before)
    assert fields(plan) == ((3, 1, 2), (), ())
    found = only(plan.image)
    assert (found.isr, found.leader, found.leader_epoch) == ((1, 2), 1, 6)


def test_giving_up_needs_one_of_the_old_ones_with_everything() -> None:
    before = cluster(partition(4, 1, isr=[4], adding=[4], removing=[1]))
    refused = ask(before)
    assert isinstance(refused.result.errors[NAME], InvalidReplicaAssignment)
    assert not refused.groups
    plan = ask(before, rules=policy(unclean=True))
    assert fields(plan) == ((1,), (), ())
    assert [one.leader for one in plan.result.unclean_elections] == [1]


def test_there_must_be_one_to_be_given_up() -> None:
    plan = ask(cluster(partition(1, 2, 3)))
    assert isinstance(plan.result.errors[NAME], NoReassignmentInProgress)


@pytest.mark.parametrize(
    ("isr", "elr", "in_sync_min", "is_refused"),
    [
        ([4, 3], [], 2, True),  # 3 may be dead already, and 4 be the only one that has everything
        ([4, 3], [], 1, False),
        ([4, 3], [2], 2, False),
        ([4, 3, 2], [], 2, False),
        ([3], [], 2, False),  # it was so before
        ([4], [], 1, True),
        ([4, 3], [], 4, True),
    ],
)
def test_giving_up_leaves_as_many_with_everything_as_an_acknowledgement_takes(
    isr: list[int], elr: list[int], in_sync_min: int, is_refused: bool
) -> None:
    """I-01. Of those that stay one may have died, and that is not known yet."""
    under_way = partition(4, 1, 2, 3, isr=isr, elr=elr, adding=[4], removing=[1])
    before = cluster(under_way)
    plan = ask(before, rules=policy(in_sync_min=in_sync_min))
    error = plan.result.errors[NAME]
    assert isinstance(error, InvalidReplicaAssignment) == is_refused
    if is_refused:
        assert only(plan.image) == under_way
        unclean = ask(before, rules=policy(in_sync_min=in_sync_min, unclean=True))
        assert unclean.result.errors[NAME] is None


def test_what_cannot_be_assigned() -> None:
    before = cluster(partition(1, 2, 3))
    for replicas in ((1, 1), (9,)):
        error = ask(before, *replicas).result.errors[NAME]
        assert isinstance(error, InvalidReplicaAssignment)
    empty = reassign(before, {NAME: ()}, policy()).result.errors[NAME]
    assert isinstance(empty, InvalidReplicaAssignment)
    other = TopicPartition("t", 5)
    assert isinstance(
        reassign(before, {other: ids(1)}, policy()).result.errors[other], UnknownPartition
    )


def test_the_factor_stays_where_it_must() -> None:
    before = cluster(partition(1, 2, 3))
    error = ask(before, 4, 5, keep_factor=True).result.errors[NAME]
    assert isinstance(error, InvalidReplicationFactor)
    assert fields(ask(before, 4, 2, 3, keep_factor=True)) == ((4, 2, 3, 1), (4,), (1,))


def test_those_under_way_are_listed() -> None:
    plan = ask(cluster(partition(1, 2, 3)), 4, 2, 3)
    (found,) = reassignments(plan.image, None)
    assert (found.partition, found.replicas) == (NAME, (4, 2, 3, 1))
    assert (found.adding, found.removing) == ((4,), (1,))
    assert reassignments(plan.image, [TopicPartition("x", 0), TopicPartition("t", 9)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [1000, 6000])
def test_a_large_topic_moves_in_groups_that_fit_into_a_multi(count: int) -> None:
    """Each leaves the topic's node and the states in it agreeing."""
    brokers = [broker(number, epoch=10 + number) for number in range(1, 7)]
    before = image(brokers, topic("t", *[partition(1, 2, 3)] * count))
    wanted = {TopicPartition("t", index): ids(4, 5, 6) for index in range(count)}
    plan = reassign(before, dict(wanted), policy())
    assert plan.result.errors.keys() == wanted.keys()
    done = 0
    for group in plan.groups:
        assert len(group) <= GROUP_OPERATIONS_MAX
        size = sum(len(one.path) + len(one.data) for one in group if isinstance(one, Set))
        assert size <= GROUP_BYTES_MAX
        head = group[0]
        assert isinstance(head, Set)
        told = nodes.decode_topic("t", head.data)
        done += len(group) - 1
        assert sum(bool(one.adding) for one in told.assignments) == done
    accepted = sum(error is None for error in plan.result.errors.values())
    assert done == accepted > 0
