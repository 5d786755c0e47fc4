"""AlterPartition: a leader proposes another in-sync set.

Checks and their order are those of Kafka 4's controller. A leader with newer epochs than ours got
them from a newer controller: then this one has been deposed.
"""

from collections.abc import Sequence

from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.elections import AllRules, Electorate, elect
from millstream.controller.cluster.errors import (
    IneligibleReplica,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
)
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import IsrChange
from millstream.controller.cluster.targets import completed
from millstream.controller.errors import InvalidRequest
from millstream.controller.image import ClusterImage, PartitionImage, TopicImage
from millstream.model.errors import (
    FencedLeaderEpoch,
    OperatingError,
    UnknownPartition,
    UnknownTopicId,
    without_frames,
)
from millstream.model.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

IsrResults = list[PartitionImage | OperatingError]


def isr_changes(
    image: ClusterImage,
    changes: Sequence[IsrChange],
    policy: Policy,
    *,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> Plan[IsrResults]:
    """Each partition after the change, or why it was refused; raises StaleBrokerEpoch.

    A change that completes a reassignment may give the partition another leader.
    """
    steps = plan_isr_changes_steps(
        image, changes, policy, broker_id=broker_id, broker_epoch=broker_epoch
    )
    return run_blocking(steps)


def plan_isr_changes_steps(
    image: ClusterImage,
    changes: Sequence[IsrChange],
    policy: Policy,
    *,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> StepGenerator[Plan[IsrResults]]:
    """`isr_changes` in steps."""
    check_broker_epoch(image, broker_id, broker_epoch)
    draft = Draft(image, policy)
    electorate = Electorate.of(image.brokers)
    all_rules = AllRules(policy)
    results: IsrResults = []
    pace = YieldCounter()
    for change in changes:
        try:
            topic, partition = find_by_id(draft, change.topic_id, change.partition)
            _check_based_on(topic, partition, change, broker_id)
            _check_members(image, topic, partition, change)
        except OperatingError as error:
            results.append(without_frames(error))
            continue
        isr = tuple([member for member, _ in change.isr])
        after, isr = completed(partition, isr)
        outcome = elect(after, all_rules.of(topic), electorate, isr=isr)
        # Also where nothing changes: a leader that proposes the current ISR does not know the
        # outcome of an earlier proposal, and with the new partition epoch that one is refused from
        # now on.
        results.append(draft.put(topic, outcome.partition))
        if pace.is_due():
            yield None
    return (yield from draft.plan_steps(results))


def check_broker_epoch(image: ClusterImage, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
    """Raise StaleBrokerEpoch unless it is the registered incarnation (I-17)."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.is_fenced or broker.epoch != epoch:
        raise StaleBrokerEpoch(broker_id, epoch)


def find_by_id(draft: Draft, topic_id: TopicId, index: int) -> tuple[TopicImage, PartitionImage]:
    """The partition as it will be; raises UnknownTopicId or UnknownPartition."""
    topic = draft.image.topics_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicId(topic_id)
    partitions = draft.partitions(topic)
    if not 0 <= index < len(partitions):
        raise UnknownPartition(TopicPartition(topic.name, index))
    return topic, partitions[index]


def _check_based_on(
    topic: TopicImage, partition: PartitionImage, change: IsrChange, broker_id: BrokerId
) -> None:
    name = TopicPartition(topic.name, partition.index)
    if change.leader_epoch > partition.leader_epoch:
        raise NotController
    if change.partition_epoch > partition.partition_epoch:
        raise NotController
    if change.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(ours=partition.leader_epoch, theirs=change.leader_epoch)
    if broker_id != partition.leader:
        raise InvalidRequest(f"{name} is led by {partition.leader}, not by {broker_id}")
    if change.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion(
            name, ours=partition.partition_epoch, theirs=change.partition_epoch
        )


def _check_members(
    image: ClusterImage, topic: TopicImage, partition: PartitionImage, change: IsrChange
) -> None:
    name = TopicPartition(topic.name, partition.index)
    members = {broker_id for broker_id, _ in change.isr}
    if len(members) < len(change.isr) or not members.issubset(partition.replicas):
        raise InvalidRequest(f"not all of {sorted(members)} are replicas of {name}, each once")
    if partition.leader not in members:
        raise InvalidRequest(f"the leader of {name} is not among {sorted(members)}")
    for broker_id, epoch in change.isr:
        broker = image.brokers.get(broker_id)
        if broker is None or broker.is_fenced or broker.epoch != epoch:
            raise IneligibleReplica(name, broker_id)
        # What it fetched before its log failed, and its leader saw late, is gone.
        if broker_id in partition.lost:
            raise IneligibleReplica(name, broker_id)
        # It could not take the next record, and acks=all would wait for it.
        if broker_id in partition.full and broker_id not in partition.isr:
            raise IneligibleReplica(name, broker_id)
        # A broker in shutdown may stay until it leaves: its leader must be able to add others.
        if broker.is_leaving and broker_id not in partition.isr:
            raise IneligibleReplica(name, broker_id)
