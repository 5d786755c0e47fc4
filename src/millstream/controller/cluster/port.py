"""What a broker asks of the cluster's controller.

The active controller implements it. A broker that is not the controller forwards its clients'
requests instead of calling this, see docs/adr/0018.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from millstream.controller.image import ClusterImage, ImageChange, PartitionImage, TopicImage
from millstream.controller.topics import MorePartitions, NewTopic, TopicDefaults
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition


class ElectionKind(IntEnum):
    """As ElectLeaders has it on the wire."""

    PREFERRED = 0
    UNCLEAN = 1


class IsrChange(NamedTuple):
    """What a leader asks for (AlterPartition)."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]


class LostReplica(NamedTuple):
    """A replica whose log has failed, as its own broker says (AssignReplicasToDirs)."""

    topic_id: TopicId
    partition: int


class FeedPosition(NamedTuple):
    """How much of the controller's changes a broker has."""

    controller_epoch: int
    version: int


class MetadataDelta(NamedTuple):
    """What is new since a position: the image as a whole, or the changes that lead to it."""

    position: FeedPosition
    image: ClusterImage
    changes: Sequence[ImageChange] | None
    """None: the broker takes the image as a snapshot. Empty: nothing is new."""


class Reassignment(NamedTuple):
    """One that is under way."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


class ClusterController(Protocol):
    """Every coroutine raises NotController when it has been deposed; nothing was changed then,
    or what was changed is known to the next controller.
    """

    @property
    def image(self) -> ClusterImage: ...

    @property
    def controller_epoch(self) -> int: ...

    async def create_topics(
        self,
        wanted: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        defaults: TopicDefaults = ...,
    ) -> list[TopicImage | OperatingError]: ...

    async def delete_topics(
        self, topics: Sequence[str | TopicId]
    ) -> list[OperatingError | None]: ...

    async def create_partitions(
        self, wanted: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[OperatingError | None]: ...

    async def alter_topic_configs(
        self, topic: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None: ...

    async def alter_broker_configs(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None: ...

    async def alter_partitions(
        self, changes: Sequence[IsrChange], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[PartitionImage | OperatingError]:
        """By the leader; each as it is now, or why it was refused."""

    async def lose_replicas(
        self, lost: Sequence[LostReplica], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[OperatingError | None]:
        """By the broker that has them; why some were refused."""

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, OperatingError | None]:
        """None asks for all; then only those that were elected are told."""

    async def reassign_partitions(
        self,
        wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, OperatingError | None]:
        """New replicas in their order, or None to give up a reassignment that is under way."""

    def reassignments(self, partitions: Sequence[TopicPartition] | None) -> list[Reassignment]: ...

    async def unregister_broker(self, broker_id: BrokerId) -> None:
        """Forget a broker that is gone for good; raises what keeps it from being forgotten."""

    async def shut_down(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Take its leaderships and its places in sync; whether nothing is left to be moved."""

    async def news(self, position: FeedPosition, *, wait_s: float) -> MetadataDelta:
        """What is new since then; waits for it that long."""
