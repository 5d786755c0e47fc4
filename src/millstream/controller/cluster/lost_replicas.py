"""Replicas whose logs have failed: a broker says so of its own (KIP-858, directory LOST).

Such a replica leaves the in-sync set and those that are eligible, another one leads, and a mark in
the partition's state keeps it from being elected or brought in again: its broker is alive, so
nothing else would. The mark is written with the state, so that a next controller knows it, too. It
goes when the broker registers anew: then the log may be there again, or the broker says it again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.elections import (
    AllRules,
    ElectionResult,
    Electorate,
    TopicRules,
    UncleanElection,
    elect,
    unclean_election,
)
from millstream.controller.cluster.errors import NoReplicaThere
from millstream.controller.cluster.isr_changes import check_broker_epoch, find_by_id
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import LostReplica
from millstream.controller.image import ClusterImage, PartitionImage
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking


class LostResults(NamedTuple):
    """What became of each, and what is to be reported."""

    errors: list[OperatingError | None]
    unclean_elections: list[UncleanElection]
    marked: int
    """Partitions that were not known to be lost before."""


def lose_replicas(
    image: ClusterImage,
    lost: Sequence[LostReplica],
    policy: Policy,
    *,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> Plan[LostResults]:
    """Take them out of everything; raises StaleBrokerEpoch. Again is as good as once."""
    steps = plan_lost_replicas_steps(
        image, lost, policy, broker_id=broker_id, broker_epoch=broker_epoch
    )
    return run_blocking(steps)


def plan_lost_replicas_steps(
    image: ClusterImage,
    lost: Sequence[LostReplica],
    policy: Policy,
    *,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> StepGenerator[Plan[LostResults]]:
    """`lose_replicas` in steps."""
    check_broker_epoch(image, broker_id, broker_epoch)
    draft = Draft(image, policy)
    electorate = Electorate.of(image.brokers)
    all_rules = AllRules(policy)
    errors: list[OperatingError | None] = []
    unclean: list[UncleanElection] = []
    marked = 0
    pace = YieldCounter()
    for one in lost:
        try:
            topic, partition = find_by_id(draft, one.topic_id, one.partition)
            if broker_id not in partition.replicas:
                raise NoReplicaThere(TopicPartition(topic.name, partition.index), broker_id)
        except OperatingError as error:
            errors.append(error)
            continue
        errors.append(None)
        if broker_id in partition.lost:
            continue
        outcome = _without(partition, broker_id, all_rules.of(topic), electorate)
        draft.put(topic, outcome.partition)
        marked += 1
        if outcome.is_unclean:
            unclean.append(unclean_election(topic, outcome))
        if pace.is_due():
            yield None
    return (yield from draft.plan_steps(LostResults(errors, unclean, marked)))


def _without(
    partition: PartitionImage, broker_id: BrokerId, rules: TopicRules, electorate: Electorate
) -> ElectionResult:
    marked = partition._replace(lost=(*partition.lost, broker_id))
    isr = tuple([one for one in partition.isr if one != broker_id])
    return elect(marked, rules, electorate, isr=isr, lost=(broker_id,))
