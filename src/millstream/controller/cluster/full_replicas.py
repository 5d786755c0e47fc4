"""Replicas that cannot grow because their disk is full, as their broker reports (ADR 0027).

Unlike a lost replica (`lost_replicas.py`) such a one has all that it had. So it only leaves the ISR
where another member has room, and remains a candidate for every election: the last one. A mark in
the partition's state keeps it from leading, and from joining the ISR, while others can. The mark is
removed when the broker reports that it has room again, or registers again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.elections import AllRules, Electorate, TopicRules, elect
from millstream.controller.cluster.errors import NoReplicaThere
from millstream.controller.cluster.isr_changes import check_broker_epoch, find_by_id
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import ReplicaName
from millstream.controller.image import NO_LEADER, ClusterImage, PartitionImage
from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter


class RoomResults(NamedTuple):
    """The result for each replica, and what to log."""

    errors: list[OperatingError | None]
    marked: int
    """Partitions whose mark was set or removed."""
    moved: int
    """Partitions that the broker no longer leads."""


def plan_full_replicas_steps(
    image: ClusterImage,
    replicas: Sequence[ReplicaName],
    policy: Policy,
    *,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    is_full: bool,
) -> StepGenerator[Plan[RoomResults]]:
    """Mark the broker's replicas as full, or remove the marks; raises StaleBrokerEpoch. Idempotent.

    A replica that is usable again is not lost any more either.
    """
    check_broker_epoch(image, broker_id, broker_epoch)
    draft = Draft(image, policy)
    electorate = Electorate.of(image.brokers)
    all_rules = AllRules(policy)
    errors: list[OperatingError | None] = []
    marked = moved = 0
    pace = YieldCounter()
    for one in replicas:
        try:
            topic, partition = find_by_id(draft, one.topic_id, one.partition)
            if broker_id not in partition.replicas:
                raise NoReplicaThere(TopicPartition(topic.name, partition.index), broker_id)
        except OperatingError as error:
            errors.append(without_frames(error))
            continue
        errors.append(None)
        if is_full:
            after = _marked(partition, broker_id, all_rules.of(topic), electorate)
        else:
            after = _unmarked(partition, broker_id)
        if after != partition:
            draft.put(topic, after)
            marked += after[-2:] != partition[-2:]
            moved += partition.leader == broker_id != after.leader
        if pace.is_due():
            yield None
    return (yield from draft.plan_steps(RoomResults(errors, marked, moved)))


def can_step_back(partition: PartitionImage, broker_id: BrokerId, electorate: Electorate) -> bool:
    """Whether another in-sync replica has room, so that a full one can leave the ISR."""
    return broker_id in partition.isr and any(
        one != broker_id and one not in partition.full and one in electorate.staying
        for one in partition.isr
    )


def _marked(
    partition: PartitionImage, broker_id: BrokerId, rules: TopicRules, electorate: Electorate
) -> PartitionImage:
    if broker_id not in partition.full:
        partition = partition._replace(full=(*partition.full, broker_id))
    if not can_step_back(partition, broker_id, electorate):
        return partition
    isr = tuple([one for one in partition.isr if one != broker_id])
    return elect(partition, rules.clean_only(), electorate, isr=isr).partition


def _unmarked(partition: PartitionImage, broker_id: BrokerId) -> PartitionImage:
    full = tuple([one for one in partition.full if one != broker_id])
    lost = partition.lost
    # Without a leader it could be elected, with a log that has been emptied.
    if partition.leader not in (NO_LEADER, broker_id):
        lost = tuple([one for one in lost if one != broker_id])
    return partition._replace(full=full, lost=lost)
