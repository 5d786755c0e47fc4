"""Functions over groups of either type, for callers that do not depend on the type."""

from collections.abc import Iterator
from typing import Final

from millstream.groups.classic.group import ClassicGroup, GroupState
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.parts import Group
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import ClassicGroupKey
from millstream.wire.messages.list_groups import ListedGroup

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""Types of groups, and the protocol type of consumers."""


def type_name(group: Group) -> str:
    """As reported by ListGroups."""
    return CLASSIC if isinstance(group, ClassicGroup) else CONSUMER


def is_empty(group: Group) -> bool:
    """Whether it has no members."""
    if isinstance(group, ClassicGroup):
        return group.state is GroupState.EMPTY
    return group.is_empty


def is_subscribed(group: Group, topic: str) -> bool:
    """Whether a member subscribes to the topic, as far as that is known."""
    if isinstance(group, ClassicGroup):
        return group.is_subscribed_to(topic)
    return topic in group.subscribed_topics()


def waiting_tokens(group: Group) -> Iterator[object]:
    """The tokens of requests that wait in memory, not for a write."""
    return group.waiting_tokens() if isinstance(group, ClassicGroup) else iter(())


def listed_group(group: Group) -> ListedGroup:
    """One group of ListGroupsResponse."""
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=(group.protocol_type or "") if isinstance(group, ClassicGroup) else CONSUMER,
        group_state=group.state.value,
        group_type=type_name(group),
    )


def tombstones(group: Group) -> list[Entry]:
    """What removes the group from the log, without its offsets."""
    if isinstance(group, ConsumerGroup):
        return group.tombstones()
    return [Entry(ClassicGroupKey(group.group_id), None)]


def has_pending_members(group: Group) -> bool:
    """Whether an empty group waits for members that were given an id and will join."""
    return group.next_deadline_ms() is not None
