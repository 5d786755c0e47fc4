"""The entries of a group, made in one place so that all decisions write them alike."""

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
    """The topics that a pattern stood for, in that version of the cluster's topics."""

    topics: frozenset[str]
    version: int
    wall_ms: int


def group_epoch(group_id: GroupId, epoch: int, metadata_hash: int) -> Entry:
    """The group is in a new epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Entry(keys.ConsumerGroupKey(group_id), value)


def member_metadata(group_id: GroupId, member: ConsumerMember) -> Entry:
    """What the member said of itself."""
    return Entry(keys.ConsumerMemberKey(group_id, member.member_id), member.metadata_value())


def current_assignment(group_id: GroupId, member: ConsumerMember) -> Entry:
    """Where the member is."""
    return Entry(keys.CurrentAssignmentKey(group_id, member.member_id), member.current_value())


def target_member(group_id: GroupId, member_id: MemberId, assignment: Assignment) -> Entry:
    """What the member shall have."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
        ]
    )
    return Entry(keys.TargetMemberKey(group_id, member_id), value)


def target_epoch(group_id: GroupId, epoch: int, wall_ms: int) -> Entry:
    """The target assignment is the one of this group epoch; comes after all its members."""
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=wall_ms
    )
    return Entry(keys.TargetAssignmentKey(group_id), value)


def resolved_regex(group_id: GroupId, expression: str, resolved: ResolvedRegex) -> Entry:
    """The topics a pattern stands for."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.wall_ms
    )
    return Entry(keys.RegularExpressionKey(group_id, expression), value)


def regex_tombstone(group_id: GroupId, expression: str) -> Entry:
    """Nobody subscribes to the pattern any more."""
    return Entry(keys.RegularExpressionKey(group_id, expression), None)


def member_tombstones(group_id: GroupId, member_id: MemberId) -> list[Entry]:
    """The member is gone. In Kafka's order: a reader frees its partitions first."""
    return [
        Entry(keys.CurrentAssignmentKey(group_id, member_id), None),
        Entry(keys.TargetMemberKey(group_id, member_id), None),
        Entry(keys.ConsumerMemberKey(group_id, member_id), None),
    ]


def group_tombstones(
    group_id: GroupId, member_ids: Iterable[MemberId], expressions: Iterable[str]
) -> list[Entry]:
    """The whole group is gone."""
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
