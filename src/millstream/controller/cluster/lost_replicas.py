"""Replicas whose logs have failed, as their broker reports (KIP-858, directory LOST).

Such a replica leaves the ISR and the ELR, another one leads, and a mark in the partition's state
keeps it from being elected or added again: its broker is alive, so nothing else would. The mark is
written with the state, so that the next controller has it too. It is removed when the broker
registers again: then the log may be usable again, or the broker reports it again.
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
from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking


class LostResults(NamedTuple):
    """The result for each replica, and what to log."""

    errors: list[OperatingError | None]
    unclean_elections: list[UncleanElection]
    marked: int
    """Partitions newly marked as lost."""


def lose_replicas(
    image: ClusterImage,
    lost: Sequence[LostReplica],
    policy: Policy,
    *,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> Plan[LostResults]:
    """Remove them from the ISR and ELR; raises StaleBrokerEpoch. Idempotent."""
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
            errors.append(without_frames(error))
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
