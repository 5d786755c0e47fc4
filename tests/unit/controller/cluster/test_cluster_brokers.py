"""What becomes of partitions when brokers come, go, and come again."""

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
from millstream.controller.cluster import nodes
from millstream.controller.cluster.brokers import BrokerChanges, brokers_changed, unregister_broker
from millstream.controller.cluster.errors import BrokerIdNotRegistered
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.errors import InvalidRequest
from millstream.controller.image import NO_LEADER, ClusterImage, PartitionImage
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition

ALL = [registration(one, epoch=10 + one) for one in (1, 2, 3)]


def cluster(one: PartitionImage, *, absent: tuple[int, ...] = ()) -> ClusterImage:
    """Brokers 1, 2 and 3 with the epochs 11, 12 and 13, and one partition."""
    brokers = [broker(number, epoch=10 + number, fenced=number in absent) for number in (1, 2, 3)]
    return image(brokers, topic("t", one))


def look(
    before: ClusterImage, *brokers: Registration, rules: Policy | None = None
) -> Plan[BrokerChanges]:
    """The plan, carried out on nodes and compared with the image it promises."""
    plan = brokers_changed(before, registered(*brokers), rules or policy())
    tree = tree_of(before)
    apply(tree, plan)
    for name, told in plan.image.topics.items():
        for part in told.partitions:
            node = tree.nodes[nodes.state_path(name, part.index)]
            assert node.version == part.partition_epoch
            assert node.data == nodes.encode_state(part, controller_epoch=7) or part in (
                before.topics[name].partitions
            )
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    return plan


def test_nothing_new_is_no_plan() -> None:
    before = cluster(partition(1, 2, 3))
    plan = look(before, *ALL)
    assert not plan.groups
    assert plan.image is before
    assert plan.result == BrokerChanges()


def test_a_dead_leader_is_followed_by_the_first_replica_in_sync() -> None:
    plan = look(cluster(partition(1, 2, 3, isr=[1, 3])), ALL[1], ALL[2])
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr) == (3, (3,), (1,))
    assert (found.leader_epoch, found.partition_epoch) == (6, 10)
    assert plan.result.left == (1,)
    assert plan.image.brokers[BrokerId(1)].is_fenced
    assert plan.image.brokers[BrokerId(1)].endpoints == ALL[0].endpoints


def test_a_dead_follower_leaves_without_a_new_leader_epoch() -> None:
    found = only(look(cluster(partition(1, 2, 3)), ALL[0], ALL[1]).image)
    assert (found.leader, found.isr, found.elr, found.leader_epoch) == (1, (1, 2), (), 5)


def test_the_last_member_is_kept_as_eligible_without_a_leader() -> None:
    plan = look(cluster(partition(1, 2, 3, isr=[1])), ALL[1], ALL[2])
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr) == (NO_LEADER, (), (1,))
    assert (found.leader_epoch, found.last_known_leader) == (6, 1)


def test_an_eligible_one_leads_when_the_in_sync_ones_are_gone() -> None:
    found = only(look(cluster(partition(1, 2, 3, isr=[1], elr=[2])), ALL[1], ALL[2]).image)
    assert (found.leader, found.isr, found.elr, found.last_known_leader) == (2, (2,), (1,), -1)


def test_the_eligible_ones_are_forgotten_when_one_alone_may_move_the_high_watermark() -> None:
    """With min.insync.replicas of one the new leader goes on without the others."""
    before = cluster(partition(1, 2, 3, isr=[1, 2]))
    plan = look(before, ALL[2], rules=policy(in_sync_min=1))
    assert only(plan.image).elr == (1, 2)
    back = registration(2, epoch=20, previous=12)
    found = only(look(plan.image, ALL[2], back, rules=policy(in_sync_min=1)).image)
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())


def test_a_clean_restart_between_two_looks_is_a_new_election() -> None:
    """I-15. The same broker leads again, under another epoch: what it had in flight is void."""
    back = registration(1, epoch=20, previous=11)
    plan = look(cluster(partition(1, 2, 3, isr=[1])), back, ALL[1], ALL[2])
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr) == (1, (1,), ())
    assert found.leader_epoch > 5
    assert plan.result == BrokerChanges(restarted=ids(1))


def test_a_restarted_broker_is_out_of_sync_until_its_leader_brings_it_in() -> None:
    back = registration(1, epoch=20, previous=11)
    found = only(look(cluster(partition(1, 2, 3)), back, ALL[1], ALL[2]).image)
    assert (found.leader, found.isr) == (2, (2, 3))


def test_an_unproved_broker_leaves_isr_and_elr_before_it_counts_as_alive() -> None:
    """Trap 15: it may have lost its unsynced tail."""
    back = registration(1, epoch=20)
    plan = look(cluster(partition(1, 2, 3, isr=[1, 2])), back, ALL[1], ALL[2])
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())
    assert plan.result == BrokerChanges(restarted=ids(1), unproved=ids(1))


def test_two_sessions_lost_between_two_looks_are_proved_by_the_older_epoch() -> None:
    """The same process: what it had under the epoch that is known is still on its disk."""
    before = cluster(partition(1, 2, 3, isr=[1], elr=[2]))
    told = registration(2, epoch=30, previous=20)
    plan = look(before, ALL[0], told._replace(earlier_epochs=(BrokerEpoch(12),)), ALL[2])
    assert plan.result.unproved == ()
    assert only(plan.image).elr == (2,)
    plan = look(before, ALL[0], told._replace(earlier_epochs=(BrokerEpoch(11),)), ALL[2])
    assert plan.result.unproved == (2,)
    assert only(plan.image).elr == ()


def test_an_unproved_broker_does_not_stay_eligible() -> None:
    before = cluster(partition(1, 2, 3, isr=[], elr=[1, 2], last_known=2), absent=(1, 2))
    plan = look(before, registration(1, epoch=20, previous=9), ALL[2])
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr, found.leader_epoch) == (NO_LEADER, (), (2,), 5)


def test_where_nobody_is_left_the_last_known_leader_leads_and_it_is_reported() -> None:
    back = registration(1, epoch=20)
    plan = look(cluster(partition(1, 2, 3, isr=[1])), back, ALL[1], ALL[2])
    found = only(plan.image)
    assert (found.leader, found.isr, found.elr, found.last_known_leader) == (1, (1,), (), -1)
    (report,) = plan.result.unclean_elections
    assert (report.partition, report.leader) == (TopicPartition("t", 0), 1)
    assert report.is_last_known


def test_of_two_without_proof_the_one_that_had_it_for_longer_leads() -> None:
    """1 led and lost its word; 2 was eligible until it came back without proof, too."""
    before = cluster(partition(1, 2, 3, isr=[], elr=[2], last_known=1), absent=(2,))
    found = only(look(before, ALL[0], registration(2, epoch=20), ALL[2]).image)
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())


def test_what_restarted_is_dealt_with_before_what_left() -> None:
    """1 was restarted uncleanly and 2 died: 1 is not elected on the word of its predecessor."""
    back = registration(1, epoch=20)
    found = only(look(cluster(partition(1, 2, 3, isr=[2, 1])), back, ALL[2]).image)
    assert (found.leader, found.isr, found.elr) == (NO_LEADER, (), (2,))


def test_unclean_election_only_where_it_is_allowed_and_then_reported() -> None:
    before = cluster(partition(1, 2, 3, isr=[1]))
    allowed = look(before, ALL[1], ALL[2], rules=policy(unclean=True))
    found = only(allowed.image)
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())
    (report,) = allowed.result.unclean_elections
    assert (report.leader, report.is_last_known) == (2, False)


def test_a_clean_candidate_that_just_came_goes_before_an_unclean_one_that_stayed() -> None:
    before = cluster(partition(1, 2, 3, isr=[], elr=[1], last_known=1), absent=(1,))
    back = registration(1, epoch=20, previous=11)
    plan = look(before, back, ALL[1], ALL[2], rules=policy(unclean=True))
    assert only(plan.image).leader == 1
    assert plan.result.unclean_elections == ()


def test_an_unclean_election_prefers_who_had_the_partition_before() -> None:
    before = cluster(partition(3, 2, 1, isr=[1], adding=[3], removing=[1]))
    plan = look(before, ALL[1], ALL[2], rules=policy(unclean=True))
    assert only(plan.image).leader == 2


def test_the_epoch_is_remembered_after_the_unproved_left_and_before_it_is_elected() -> None:
    """Whatever the controller dies between, the next one comes to the same."""
    before = cluster(partition(1, 2, 3, isr=[1]))
    plan = brokers_changed(before, registered(registration(1, epoch=20), *ALL[1:]), policy())
    paths = [one.path for group in plan.groups for one in group]
    state = nodes.state_path("t", 0)
    assert paths == [state, nodes.known_broker_path(BrokerId(1)), state]


def test_a_new_broker_is_known_from_then_on() -> None:
    plan = look(cluster(partition(1, 2, 3)), *ALL, registration(4, epoch=30, rack="r"))
    found = plan.image.brokers[BrokerId(4)]
    assert (found.epoch, found.rack, found.is_fenced) == (30, "r", False)
    (noted,) = [one for group in plan.groups for one in group]
    known = nodes.decode_known_broker(BrokerId(4), getattr(noted, "data", b""))
    assert known == nodes.KnownBroker(found.epoch, "r", found.endpoints)
    assert plan.result == BrokerChanges(joined=ids(4), unproved=ids(4))
    assert plan.change.brokers_changed


def test_another_address_of_the_same_incarnation_changes_no_partition() -> None:
    moved = ALL[0]._replace(endpoints=(ALL[0].endpoints[0]._replace(port=9999),))
    plan = look(cluster(partition(1, 2, 3)), moved, *ALL[1:])
    assert plan.groups == []
    assert plan.change.brokers_changed
    assert plan.image.brokers[BrokerId(1)].endpoints[0].port == 9999


def test_states_that_kafka_left_behind_are_brought_in_order() -> None:
    """Kafka kept the last member in the ISR of a partition without a leader."""
    before = cluster(partition(1, 2, 3, isr=[1], leader=NO_LEADER), absent=(1,))
    found = only(look(before, *ALL[1:]).image)
    assert (found.leader, found.isr, found.elr, found.leader_epoch) == (NO_LEADER, (), (1,), 5)


def test_forgetting_a_broker_gives_up_what_only_it_had() -> None:
    before = cluster(partition(1, 2, 3, isr=[], elr=[1], last_known=2), absent=(1,))
    plan = unregister_broker(before, BrokerId(1), policy())
    found = only(plan.image)
    assert (found.leader, found.elr) == (2, ())
    assert [one.leader for one in plan.result] == [2]
    assert BrokerId(1) not in plan.image.brokers
    tree = tree_of(before)
    apply(tree, plan)
    assert nodes.known_broker_path(BrokerId(1)) not in tree.nodes


def test_a_running_or_unknown_broker_cannot_be_forgotten() -> None:
    with pytest.raises(InvalidRequest):
        unregister_broker(cluster(partition(1)), BrokerId(1), policy())
    with pytest.raises(BrokerIdNotRegistered):
        unregister_broker(cluster(partition(1)), BrokerId(9), policy())
