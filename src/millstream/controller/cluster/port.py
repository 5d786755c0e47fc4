"""What a broker requests from the cluster's controller.

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
    """The values that ElectLeaders has on the wire."""

    PREFERRED = 0
    UNCLEAN = 1


class IsrChange(NamedTuple):
    """The ISR that a leader proposes (AlterPartition)."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]


class ReplicaName(NamedTuple):
    """A replica of which its broker reports something (AssignReplicasToDirs)."""

    topic_id: TopicId
    partition: int


LostReplica = ReplicaName
"""One whose log has failed."""


class FeedPosition(NamedTuple):
    """How far a broker is in the controller's changes."""

    controller_epoch: int
    version: int


class MetadataDelta(NamedTuple):
    """What changed since a position: the whole image, or the changes that lead to it."""

    position: FeedPosition
    image: ClusterImage
    changes: Sequence[ImageChange] | None
    """None: the broker applies the image as a snapshot. Empty: nothing is new."""


class Reassignment(NamedTuple):
    """A reassignment that is under way."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


class ClusterController(Protocol):
    """Every coroutine raises NotController when the controller has been deposed; then nothing was
    changed, or the next controller finds what was changed.
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
        """Sent by the leader; each partition as it is now, or why it was refused."""

    async def lose_replicas(
        self, lost: Sequence[LostReplica], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[OperatingError | None]:
        """Sent by the broker that has them; why some were refused."""

    async def note_room(
        self,
        replicas: Sequence[ReplicaName],
        *,
        is_full: bool,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
    ) -> list[OperatingError | None]:
        """Sent by the broker that has them: they cannot grow, or are usable again."""

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, OperatingError | None]:
        """None means all partitions; then only those that needed an election are returned."""

    async def reassign_partitions(
        self,
        wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, OperatingError | None]:
        """New replicas in their order, or None to cancel a reassignment that is under way."""

    def reassignments(self, partitions: Sequence[TopicPartition] | None) -> list[Reassignment]: ...

    async def unregister_broker(self, broker_id: BrokerId) -> None:
        """Unregister a broker that is gone for good; raises why it cannot be."""

    async def shut_down(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Move its leaderships and remove it from in-sync sets; whether nothing is left to be
        moved.
        """

    async def changes_since(self, position: FeedPosition, *, wait_s: float) -> MetadataDelta:
        """What changed since the position; waits that long for a change."""
