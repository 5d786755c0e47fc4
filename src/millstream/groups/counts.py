"""Counters of a shard, for metrics; the docstrings have Kafka's names.

A rebalance is counted when its record is in the log, so a refused one is not counted.
"""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counts:
    """Monotonic counters. Those of all shards of a broker are added up."""

    offset_commits: int = 0
    """OffsetCommitCount: partitions, not requests."""
    offset_expirations: int = 0
    """OffsetExpirationCount"""
    offset_deletions: int = 0
    """OffsetDeletionCount: by OffsetDelete, DeleteGroups, and because topics were deleted."""
    completed_rebalances: int = 0
    """CompletedRebalanceCount: generations of classic groups."""
    consumer_rebalances: int = 0
    """consumer-group-rebalance-count: group epochs of consumer groups."""
    expired_groups: int = 0
    """Groups without members and offsets that were removed."""

    def add(self, other: "Counts") -> None:
        """Add those of another shard, or of one that was unloaded."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
