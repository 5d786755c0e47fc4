"""What the leader of a partition refuses, beyond what its log does."""

from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId, LeaderEpoch, TopicPartition


class UnknownLeaderEpoch(OperatingError):
    """The request names a newer leader epoch than ours: this broker does not have it yet (I-15)."""

    def __init__(self, *, ours: LeaderEpoch, theirs: LeaderEpoch) -> None:
        self.ours, self.theirs = ours, theirs
        super().__init__(f"leader epoch {theirs} is newer than {ours}")


class NotLeader(OperatingError):
    """The partition exists but another broker leads it."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"this broker does not lead {partition}")


class UnknownReplica(OperatingError):
    """A follower fetch from a broker that is not a replica of the partition."""

    def __init__(self, partition: TopicPartition, replica_id: BrokerId) -> None:
        self.partition, self.replica_id = partition, replica_id
        super().__init__(f"broker {replica_id} is no replica of {partition}")


class NotEnoughReplicas(OperatingError):
    """Fewer replicas are in sync than `min.insync.replicas` requires; nothing was written."""

    def __init__(self, partition: TopicPartition, *, in_sync: int, required: int) -> None:
        self.partition, self.in_sync, self.required = partition, in_sync, required
        super().__init__(f"{partition} has {in_sync} replicas in sync and needs {required}")


class ReplicationTimedOut(OperatingError):
    """The records are in the leader's log, but were not replicated before the request timed out."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"{partition}: written, and not acknowledged in time")


class NotEnoughReplicasAfterAppend(NotEnoughReplicas):
    """The same, found when the records were in the leader's log: they may still be committed."""


class ProposalRefused(OperatingError):
    """The controller rejected a change of the in-sync replicas; it was definitely not made."""


class OffsetNotAvailable(OperatingError):
    """A new leader does not know yet how far its log is replicated (KIP-207)."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"{partition}: the leader is new, its high watermark is not known yet")
