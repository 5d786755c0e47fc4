"""What a shard has done, for metrics; the comments have Kafka's names of them.

Rebalances are counted when their record is in the log, so that one that was refused is none.
"""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counts:
    """Counters that only grow. Those of all shards of a broker are added up."""

    offset_commits: int = 0
    """OffsetCommitCount: partitions, not requests."""
    offset_expirations: int = 0
    """OffsetExpirationCount"""
    offset_deletions: int = 0
    """OffsetDeletionCount: by OffsetDelete, DeleteGroups, and because topics were deleted."""
    completed_rebalances: int = 0
    """CompletedRebalanceCount: generations of classic groups."""
    consumer_rebalances: int = 0
    """consumer-group-rebalance-count: epochs of groups of the next-generation protocol."""
    expired_groups: int = 0
    """Groups without members and offsets that were removed."""

    def add(self, other: "Counts") -> None:
        """Take those of another shard, or of one that was unloaded, into this."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
