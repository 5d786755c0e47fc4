"""The entries of a group, made in one place so that all decisions write them the same way."""

from collections.abc import Iterable
from typing import NamedTuple

from millstream.groups.consumer.member import Assignment, ConsumerMember
from millstream.groups.records import keys
from millstream.groups.records.entries import Entry
from millstream.groups.records.values import (
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
)
from millstream.model.ids import GroupId, MemberId


class ResolvedRegex(NamedTuple):
    """The topics that a pattern matched, in that version of the cluster's topics."""

    topics: frozenset[str]
    version: int
    wall_ms: int


def group_epoch(group_id: GroupId, epoch: int, metadata_hash: int) -> Entry:
    """The group is in a new epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Entry(keys.ConsumerGroupKey(group_id), value)


def member_metadata(group_id: GroupId, member: ConsumerMember) -> Entry:
    """The member's metadata: what it sent about itself."""
    return Entry(keys.ConsumerMemberKey(group_id, member.member_id), member.metadata_value())


def current_assignment(group_id: GroupId, member: ConsumerMember) -> Entry:
    """The member's current assignment and epoch."""
    return Entry(keys.CurrentAssignmentKey(group_id, member.member_id), member.current_value())


def target_member(group_id: GroupId, member_id: MemberId, assignment: Assignment) -> Entry:
    """The member's target assignment."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
        ]
    )
    return Entry(keys.TargetMemberKey(group_id, member_id), value)


def target_epoch(group_id: GroupId, epoch: int, wall_ms: int) -> Entry:
    """The target assignment is that of this group epoch; written after all members' targets."""
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=wall_ms
    )
    return Entry(keys.TargetAssignmentKey(group_id), value)


def resolved_regex(group_id: GroupId, expression: str, resolved: ResolvedRegex) -> Entry:
    """The topics that a pattern matches."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.wall_ms
    )
    return Entry(keys.RegularExpressionKey(group_id, expression), value)


def regex_tombstone(group_id: GroupId, expression: str) -> Entry:
    """No member subscribes to the pattern any more."""
    return Entry(keys.RegularExpressionKey(group_id, expression), None)


def member_tombstones(group_id: GroupId, member_id: MemberId) -> list[Entry]:
    """The member has left. In Kafka's order: a reader frees its partitions first."""
    return [
        Entry(keys.CurrentAssignmentKey(group_id, member_id), None),
        Entry(keys.TargetMemberKey(group_id, member_id), None),
        Entry(keys.ConsumerMemberKey(group_id, member_id), None),
    ]


def group_tombstones(
    group_id: GroupId, member_ids: Iterable[MemberId], expressions: Iterable[str]
) -> list[Entry]:
    """The whole group is deleted."""
    members = list(member_ids)
    return [
        *(Entry(keys.CurrentAssignmentKey(group_id, one), None) for one in members),
        *(Entry(keys.TargetMemberKey(group_id, one), None) for one in members),
        Entry(keys.TargetAssignmentKey(group_id), None),
        *(Entry(keys.ConsumerMemberKey(group_id, one), None) for one in members),
        *(regex_tombstone(group_id, one) for one in expressions),
        Entry(keys.ConsumerPartitionMetadataKey(group_id), None),
        Entry(keys.ConsumerGroupKey(group_id), None),
    ]
