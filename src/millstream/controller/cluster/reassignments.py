"""Partition reassignments (KIP-455): started, replaced, cancelled, completed.

While one is under way the replicas are the new ones in their order, then those to be removed. It is
done when all new ones are in sync: see `targets.completed`, which every change of an in-sync set
calls.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.controller.cluster import nodes
from millstream.controller.cluster.drafts import TOPIC_NODE_BYTES_MAX, Draft
from millstream.controller.cluster.elections import (
    AllRules,
    Electorate,
    TopicRules,
    elect,
    unclean_election,
)
from millstream.controller.cluster.errors import NoReassignmentInProgress
from millstream.controller.cluster.leadership import PartitionResults, find
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import Reassignment
from millstream.controller.cluster.targets import completed, is_reassigning, original, target
from millstream.controller.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
)
from millstream.controller.image import ClusterImage, PartitionImage, TopicImage
from millstream.controller.topics import check_assignment
from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import BrokerId, TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

Replicas = tuple[BrokerId, ...]
Wanted = Mapping[TopicPartition, Replicas | None]


def reassign(
    image: ClusterImage, wanted: Wanted, policy: Policy, *, may_change_factor: bool = True
) -> Plan[PartitionResults]:
    """New replicas in their order, or None to cancel a reassignment that is under way."""
    return run_blocking(
        plan_reassignments_steps(image, wanted, policy, may_change_factor=may_change_factor)
    )


def plan_reassignments_steps(
    image: ClusterImage, wanted: Wanted, policy: Policy, *, may_change_factor: bool = True
) -> StepGenerator[Plan[PartitionResults]]:
    """`reassign` in steps."""
    work = _Work(Draft(image, policy), AllRules(policy), Electorate.of(image.brokers), {})
    results = PartitionResults({}, [])
    pace = YieldCounter()
    for name, replicas in wanted.items():
        try:
            topic, partition = find(work.draft, name)
            if replicas is None:
                after = _cancel(name, partition)
            else:
                _check(image, partition, replicas, may_change_factor=may_change_factor)
                after = _begin(partition, replicas)
            work.put(topic, partition, after, results)
            results.errors[name] = None
        except OperatingError as error:
            results.errors[name] = without_frames(error)
        if pace.is_due():
            yield None
    return (yield from work.draft.plan_steps(results))


def _check(
    image: ClusterImage, partition: PartitionImage, replicas: Replicas, *, may_change_factor: bool
) -> None:
    check_assignment(image, replicas, index=partition.index, factor=None)
    count = len(target(partition))
    if not may_change_factor and len(replicas) != count:
        raise InvalidReplicationFactor(
            f"partition {partition.index} has {count} replicas and must not get {len(replicas)}"
        )


def _begin(partition: PartitionImage, replicas: Replicas) -> PartitionImage:
    """Based on the replicas before any reassignment: one that is under way is replaced."""
    before = original(partition)
    removing = tuple([one for one in before if one not in replicas])
    return partition._replace(
        replicas=replicas + removing,
        adding=tuple([one for one in replicas if one not in before]),
        removing=removing,
    )


def _cancel(name: TopicPartition, partition: PartitionImage) -> PartitionImage:
    if not is_reassigning(partition):
        raise NoReassignmentInProgress(name)
    return partition._replace(replicas=original(partition), adding=(), removing=())


class _Work(NamedTuple):
    draft: Draft
    rules: AllRules
    electorate: Electorate
    sizes: dict[str, int]
    """Upper bounds of the sizes of the topics' nodes in bytes."""

    def put(
        self,
        topic: TopicImage,
        before: PartitionImage,
        after: PartitionImage,
        results: PartitionResults,
    ) -> None:
        """Apply the new replicas, with the leader that follows from them."""
        if after == before:
            return
        rules = self.rules.of(topic)
        isr = tuple([one for one in before.isr if one in after.replicas])
        elr = tuple([one for one in before.elr if one in after.replicas])
        if not rules.is_unclean_allowed:
            _check_holders(topic, before, after, rules)
        self._take_room(topic, before, after)
        after, isr = completed(after._replace(elr=elr), isr)
        # The new replicas decide which brokers leave the sets, the old ones which were in them.
        outcome = elect(after, rules, self.electorate, isr=isr)
        self.draft.put(topic, outcome.partition)
        if outcome.is_unclean:
            results.unclean_elections.append(unclean_election(topic, outcome))

    def _take_room(self, topic: TopicImage, before: PartitionImage, after: PartitionImage) -> None:
        size = self.sizes.get(topic.name)
        if size is None:
            size = len(nodes.encode_topic(topic.topic_id, topic.partitions))
        size += max(0, _size(after) - _size(before))
        if size > TOPIC_NODE_BYTES_MAX:
            raise InvalidRequest(
                f"too many partitions of {topic.name} would be reassigned at once: the"
                f" assignment takes {size} bytes, a topic's node may have {TOPIC_NODE_BYTES_MAX}"
            )
        self.sizes[topic.name] = size


def _check_holders(
    topic: TopicImage, before: PartitionImage, after: PartitionImage, rules: TopicRules
) -> None:
    """Raise where too few of the remaining replicas would have everything.

    A remaining replica may have died without that being known yet: as many must stay as it takes
    for a record to be acknowledged (I-01). Kafka's controller requires only one.
    """
    holders = (*before.isr, *before.elr)
    left = len([one for one in holders if one in after.replicas])
    if left < min(len(holders), len(after.replicas), max(1, rules.in_sync_min)):
        raise InvalidReplicaAssignment(
            f"{TopicPartition(topic.name, before.index)}: only {left} of the remaining replicas are"
            f" in the ISR or the ELR, but min.insync.replicas is {rules.in_sync_min}; retry when"
            " more have caught up"
        )


def _size(partition: PartitionImage) -> int:
    lists = (partition.replicas, partition.adding, partition.removing)
    return sum(len(str(partition.index)) + 6 + sum(len(str(r)) + 1 for r in one) for one in lists)


def reassignments(
    image: ClusterImage, partitions: Sequence[TopicPartition] | None
) -> list[Reassignment]:
    """The reassignments that are under way: of these partitions, or all."""
    if partitions is None:
        names = [name for topic in image.topics.values() for name in topic.names_of_partitions()]
    else:
        names = [
            name
            for name in partitions
            if name.topic in image.topics
            and 0 <= name.partition < len(image.topics[name.topic].partitions)
        ]
    found = []
    for name in names:
        one = image.topics[name.topic].partitions[name.partition]
        if is_reassigning(one):
            found.append(Reassignment(name, one.replicas, one.adding, one.removing))
    return found
