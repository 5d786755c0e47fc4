"""What a standalone broker answers where a cluster would move leaders and replicas. No I/O.

Every partition has one replica, which leads: nothing can be elected, and nothing moved.
"""

from collections.abc import Mapping, Sequence

from millstream.controller.cluster.errors import (
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    NoReassignmentInProgress,
)
from millstream.controller.cluster.port import ElectionKind, Reassignment
from millstream.controller.errors import InvalidReplicaAssignment, InvalidRequest
from millstream.controller.image import ClusterImage, PartitionImage
from millstream.model.errors import OperatingError, UnknownPartition
from millstream.model.ids import BrokerId, TopicPartition

Outcomes = dict[TopicPartition, OperatingError | None]


class StandaloneAdministration:
    """The part of `ClusterController` that operators use, over the image of one broker."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Sequence[TopicPartition] | None
    ) -> Outcomes:
        """For every kind of election: the only replica leads already."""
        del kind
        return {
            one: ElectionNotNeeded(one) if self._find(one) is not None else UnknownPartition(one)
            for one in partitions or ()
        }

    async def reassign_partitions(
        self,
        wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
        *,
        may_change_factor: bool = True,
    ) -> Outcomes:
        """The current replicas are no change; there are no other brokers to move to."""
        del may_change_factor
        return {one: self._refusal(one, replicas) for one, replicas in wanted.items()}

    def reassignments(self, partitions: Sequence[TopicPartition] | None) -> list[Reassignment]:
        """There is never one under way."""
        del partitions
        return []

    async def unregister_broker(self, broker_id: BrokerId) -> None:
        """The only broker cannot be unregistered while it is running."""
        if broker_id not in self._image.brokers:
            raise BrokerIdNotRegistered(broker_id)
        raise InvalidRequest(f"broker {broker_id} is alive")

    def _refusal(
        self, partition: TopicPartition, replicas: tuple[BrokerId, ...] | None
    ) -> OperatingError | None:
        found = self._find(partition)
        if found is None:
            return UnknownPartition(partition)
        if replicas is None:
            return NoReassignmentInProgress(partition)
        if replicas != found.replicas:
            there = ", ".join(map(str, self._image.brokers))
            return InvalidReplicaAssignment(f"replicas {list(replicas)}: there is only {there}")
        return None

    def _find(self, partition: TopicPartition) -> PartitionImage | None:
        topic = self._image.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]
