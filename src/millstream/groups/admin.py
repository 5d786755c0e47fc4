"""Requests of administrators: DeleteGroups (42), OffsetDelete (47), ListGroups (16), DescribeGroups
(15) and ConsumerGroupDescribe (69), one group at a time.

A group is deleted with its offsets, which may be many: in batches of bounded size, the group itself
in the last one. An interrupted deletion leaves a group with fewer offsets, which can be deleted
again; it never leaves offsets without a group.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from millstream.groups import kinds
from millstream.groups.classic.group import ClassicGroup, GroupState
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.errors import GroupNotFound, InvalidGroupId
from millstream.groups.offsets import requests
from millstream.groups.parts import Chain, Group, Parts
from millstream.groups.records.entries import Entry
from millstream.model.ids import GroupId
from millstream.shards.effects import Caller, Reply, Write
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from millstream.wire.messages.delete_groups import DeletableGroupResult
from millstream.wire.messages.describe_groups import DescribedGroup
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest

TOMBSTONES_MAX: Final = 1_000
"""In one batch: half a megabyte with names of topics and groups of 250 characters, which
`message.max.bytes` allows."""
NOT_FOUND_VERSION: Final = 6
"""From this version of DescribeGroups on, an unknown group is an error (KIP-1043)."""


def chunks(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Split into batches that the log accepts."""
    for at in range(0, len(entries), TOMBSTONES_MAX):
        yield tuple(entries[at : at + TOMBSTONES_MAX])


# -- DeleteGroups ------------------------------------------------------------------------------


def delete_group(parts: Parts, caller: Caller, group_id: GroupId) -> None:
    """Raises GroupNotFound, or GroupNotEmpty while it has members."""
    group = _existing(parts, group_id)
    group.check_delete()
    entries = requests.delete_all(parts.offsets, group_id)
    parts.counts.offset_deletions += len(entries)
    _delete_next_batch(parts, caller, group, list(chunks(entries)))


def _delete_next_batch(
    parts: Parts, caller: Caller, group: Group, batches: list[tuple[Entry, ...]]
) -> None:
    """Write the next batch. Nothing is called between two of them, so the group is unchanged."""
    if len(batches) > 1:
        rest = batches[1:]
        chain = Chain(caller, lambda: _delete_next_batch(parts, caller, group, rest))
        parts.write_then(batches[0], chain)
        return
    entries = (*(batches[0] if batches else ()), *kinds.tombstones(group))
    result = DeletableGroupResult(group_id=group.group_id)
    parts.outbox.write(Write(entries, (Reply(caller.token, result),)))


# -- OffsetDelete ------------------------------------------------------------------------------


def offset_delete(parts: Parts, caller: Caller, request: OffsetDeleteRequest) -> None:
    """Topics that the group subscribes to are refused individually."""
    if not request.group_id:
        raise InvalidGroupId
    group = _existing(parts, GroupId(request.group_id))
    if isinstance(group, ClassicGroup):
        group.check_offset_delete()
    made = requests.delete(parts.offsets, request, lambda topic: kinds.is_subscribed(group, topic))
    if not made.entries:
        parts.outbox.reply(caller, made.response)
        return
    parts.counts.offset_deletions += len(made.entries)
    parts.outbox.write(Write(made.entries, (Reply(caller.token, made.response),)))


# -- lists and descriptions --------------------------------------------------------------------


def list_groups(parts: Parts, caller: Caller, request: ListGroupsRequest) -> None:
    """Filter by states and types, case-insensitively; an unknown name matches nothing."""
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.strip().lower() for name in request.types_filter}
    found: list[ListedGroup] = []
    for group in parts.groups.values():
        one = kinds.listed_group(group)
        has_state = not states or one.group_state.lower() in states
        if has_state and (not types or one.group_type in types):
            found.append(one)
    parts.outbox.reply(caller, found)


def describe_group(parts: Parts, caller: Caller, group_id: GroupId) -> None:
    """Describe a classic group. For older clients any other group is dead."""
    group = parts.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        parts.outbox.reply(caller, group.describe())
        return
    described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if caller.version >= NOT_FOUND_VERSION:
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = _not_found_message(group, group_id, kinds.CLASSIC)
    parts.outbox.reply(caller, described)


def consumer_group_describe(parts: Parts, caller: Caller, group_id: GroupId) -> None:
    """Describe a group of the consumer protocol."""
    if not group_id:
        raise InvalidGroupId
    group = parts.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        parts.outbox.reply(caller, group.describe())
        return
    described = DescribedConsumerGroup(
        group_id=group_id,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=_not_found_message(group, group_id, kinds.CONSUMER),
    )
    parts.outbox.reply(caller, described)


def _existing(parts: Parts, group_id: GroupId) -> Group:
    group = parts.groups.get(group_id)
    if group is None:
        raise GroupNotFound
    return group


def _not_found_message(group: Group | None, group_id: GroupId, kind: str) -> str:
    if group is None:
        return f"Group {group_id} not found."
    return f"Group {group_id} is not a {kind} group."
