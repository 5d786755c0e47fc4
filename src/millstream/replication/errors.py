"""What the leader of a partition refuses, beyond what its log does."""

from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId, LeaderEpoch, TopicPartition


class UnknownLeaderEpoch(OperatingError):
    """A request of a newer leader epoch than ours: this broker has not heard of it yet (I-15)."""

    def __init__(self, *, ours: LeaderEpoch, theirs: LeaderEpoch) -> None:
        self.ours, self.theirs = ours, theirs
        super().__init__(f"leader epoch {theirs} is newer than {ours}")


class NotLeader(OperatingError):
    """The partition exists and another broker leads it."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"this broker does not lead {partition}")


class UnknownReplica(OperatingError):
    """A follower's fetch from a broker that is no replica of the partition."""

    def __init__(self, partition: TopicPartition, replica_id: BrokerId) -> None:
        self.partition, self.replica_id = partition, replica_id
        super().__init__(f"broker {replica_id} is no replica of {partition}")


class NotEnoughReplicas(OperatingError):
    """Fewer replicas are in sync than `min.insync.replicas` asks for; nothing was written."""

    def __init__(self, partition: TopicPartition, *, in_sync: int, wanted: int) -> None:
        self.partition, self.in_sync, self.wanted = partition, in_sync, wanted
        super().__init__(f"{partition} has {in_sync} replicas in sync and needs {wanted}")


class ReplicationTimedOut(OperatingError):
    """The records are in the leader's log, and its time ran out before the rest was done."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"{partition}: written, and not acknowledged in time")


class NotEnoughReplicasAfterAppend(NotEnoughReplicas):
    """The same, found out when the records were in the leader's log: they may yet count."""


class ProposalRefused(OperatingError):
    """The controller has looked at a change of the in-sync replicas, and surely not made it."""


class OffsetNotAvailable(OperatingError):
    """A new leader does not know yet how far its log is replicated (KIP-207)."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"{partition}: the leader is new, its high watermark is not known yet")
