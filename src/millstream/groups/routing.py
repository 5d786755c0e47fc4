"""Which group a request of the membership protocols goes to, and what becomes of groups then.

- A group is made by the first JoinGroup without a member id, or by the first
  ConsumerGroupHeartbeat with epoch 0.
- An empty group of either kind becomes one of the other kind when a member of it comes; its offsets
  stay.
- A classic group with members becomes a next-generation group when a member of that protocol comes,
  where `group.consumer.migration.policy` lets it. The way back begins in the group itself, when its
  last member of the new protocol is gone.
"""

from millstream.groups import kinds
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.consumer.checks import check_request
from millstream.groups.consumer.conversion import upgraded
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.member import JOINING_EPOCH
from millstream.groups.errors import GroupNotFound, InvalidGroupId, UnknownMember
from millstream.groups.parts import Chain, Group, Parts
from millstream.groups.records.entries import Entry
from millstream.model.ids import GroupId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest


def join_group(parts: Parts, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
    group_id = _named(request.group_id)
    group = parts.groups.get(group_id)
    if isinstance(group, ConsumerGroup) and group.is_empty:
        # Its tombstones first: if the log does not take them it is still what it was.
        again = Chain(caller, lambda: _join_after(parts, caller, request, now_ms))
        parts.write_then(tuple(kinds.tombstones(group)), again)
        return
    if group is None:
        _found_classic(parts, caller, request, now_ms)
    else:
        group.join(caller, request, now_ms)


def _join_after(parts: Parts, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
    gone = GroupId(request.group_id) not in parts.groups
    invariant(gone, "I-31 a group is there after its tombstones", group=request.group_id)
    join_group(parts, caller, request, now_ms)


def _found_classic(parts: Parts, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
    """A member id means that there was a group; whoever has one must begin anew."""
    if request.member_id:
        raise UnknownMember
    group = parts.new_classic(GroupId(request.group_id))
    group.join(caller, request, now_ms)
    has_offsets = bool(parts.offsets.keys_of(group.group_id))
    # One whose first member was refused would only be in the way.
    if has_offsets or not group.is_simple:
        parts.groups[group.group_id] = group


def sync_group(parts: Parts, caller: Caller, request: SyncGroupRequest, now_ms: int) -> None:
    _with_members(parts, request.group_id).sync(caller, request, now_ms)


def heartbeat(parts: Parts, caller: Caller, request: HeartbeatRequest, now_ms: int) -> None:
    group = _with_members(parts, request.group_id)
    if isinstance(group, ClassicGroup):
        group.heartbeat(caller, request, now_ms)
    else:
        group.classic_heartbeat(caller, request, now_ms)


def leave_group(parts: Parts, caller: Caller, request: LeaveGroupRequest, now_ms: int) -> None:
    _with_members(parts, request.group_id).leave(caller, request, now_ms)


def consumer_group_heartbeat(
    parts: Parts, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
) -> None:
    group_id = GroupId(request.group_id)
    group = parts.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        group.heartbeat(caller, request, now_ms)
        return
    check_request(request, caller.version, parts.settings.consumer_assignors)
    if request.member_epoch != JOINING_EPOCH:
        raise GroupNotFound(_why_no_member(group, request))
    founded, first = _founded(parts, group_id, group, now_ms)
    founded.heartbeat(caller, request, now_ms, first)
    parts.founding[group_id] = founded


def _why_no_member(group: ClassicGroup | None, request: ConsumerGroupHeartbeatRequest) -> str:
    if group is not None:
        return f"Group {request.group_id} is not a consumer group."
    is_leaving = request.member_epoch < JOINING_EPOCH
    return f"{'Group' if is_leaving else 'Consumer group'} {request.group_id} not found."


def _founded(
    parts: Parts, group_id: GroupId, classic: ClassicGroup | None, now_ms: int
) -> tuple[ConsumerGroup, list[Entry]]:
    """A new group, and what is written before its own first entries.

    Until that is in the log the classic group is what it was: it may be refused.
    """
    founded = parts.new_consumer(group_id)
    if classic is None:
        return founded, []
    if kinds.is_empty(classic):
        return founded, kinds.tombstones(classic)
    protocols: dict[str, list[tuple[str, bytes]]] = {
        member.member_id: list(member.facts.protocols.items()) for member in classic.members
    }
    first = upgraded(group_id, classic.as_record(), parts.topics, parts.settings, protocols)
    founded.adopt(first, now_ms)
    return founded, first


def _named(group_id: str) -> GroupId:
    if not group_id:
        raise InvalidGroupId
    return GroupId(group_id)


def _with_members(parts: Parts, group_id: str) -> Group:
    group = parts.groups.get(_named(group_id))
    if group is None:
        raise UnknownMember
    return group
