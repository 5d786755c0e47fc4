"""What the two kinds of groups answer differently, for all who do not care which kind it is."""

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
    """As ListGroups tells it."""
    return CLASSIC if isinstance(group, ClassicGroup) else CONSUMER


def is_empty(group: Group) -> bool:
    """Whether it has no members."""
    if isinstance(group, ClassicGroup):
        return group.state is GroupState.EMPTY
    return group.is_empty


def is_subscribed(group: Group, topic: str) -> bool:
    """Whether a member uses the topic, as far as that can be known."""
    if isinstance(group, ClassicGroup):
        return group.is_subscribed_to(topic)
    return topic in group.subscribed_topics()


def waiting_tokens(group: Group) -> Iterator[object]:
    """Who waits in memory, and not for a write."""
    return group.waiting_tokens() if isinstance(group, ClassicGroup) else iter(())


def listed(group: Group) -> ListedGroup:
    """One group of ListGroupsResponse."""
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=(group.protocol_type or "") if isinstance(group, ClassicGroup) else CONSUMER,
        group_state=group.state.value,
        group_type=type_name(group),
    )


def tombstones(group: Group) -> list[Entry]:
    """What removes the group from the log; its offsets are not in it."""
    if isinstance(group, ConsumerGroup):
        return group.tombstones()
    return [Entry(ClassicGroupKey(group.group_id), None)]


def is_awaited(group: Group) -> bool:
    """Whether an empty group waits for something: members that were given an id and will join."""
    return group.next_deadline_ms() is not None
