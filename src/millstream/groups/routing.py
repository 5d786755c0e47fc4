"""Routes requests of the membership protocols to groups, and creates and converts groups.

- A group is created by the first JoinGroup without a member id, or by the first
  ConsumerGroupHeartbeat with epoch 0.
- An empty group of either type becomes one of the other type when a member of that protocol joins;
  its offsets stay.
- A classic group with members becomes a consumer group when a member of that protocol joins, if
  `group.consumer.migration.policy` allows it. The downgrade is started by the group itself, when
  its last member of the consumer protocol leaves.
"""

from millstream.groups import kinds
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.consumer.checks import check_request
from millstream.groups.consumer.conversion import upgrade_entries
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.member import JOINING_EPOCH
from millstream.groups.errors import GroupNotFound, InvalidGroupId, UnknownMember
from millstream.groups.memory import joining_bytes, subscribing_bytes
from millstream.groups.parts import Chain, Group, Parts
from millstream.groups.records.entries import Entry
from millstream.model.ids import GroupId, MemberId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest


def join_group(parts: Parts, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
    group_id = _validated_id(request.group_id)
    group = parts.groups.get(group_id)
    _check_memory(parts, group, request.member_id, joining_bytes(caller, request))
    if isinstance(group, ConsumerGroup) and group.is_empty:
        # Its tombstones first: if the log refuses them the group is unchanged.
        chain = Chain(caller, lambda: _join_after(parts, caller, request, now_ms))
        parts.write_then(tuple(kinds.tombstones(group)), chain)
        return
    if group is None:
        _create_classic(parts, caller, request, now_ms)
    else:
        group.join(caller, request, now_ms)


def _join_after(parts: Parts, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
    gone = GroupId(request.group_id) not in parts.groups
    invariant(gone, "I-31 a group is there after its tombstones", group=request.group_id)
    join_group(parts, caller, request, now_ms)


def _create_classic(parts: Parts, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
    """A member id means that there was a group once: the member must rejoin without it."""
    if request.member_id:
        raise UnknownMember
    group = parts.new_classic(GroupId(request.group_id))
    group.join(caller, request, now_ms)
    has_offsets = bool(parts.offsets.keys_of(group.group_id))
    # A group whose first member was refused is not kept.
    if has_offsets or not group.is_simple:
        parts.groups[group.group_id] = group


def sync_group(parts: Parts, caller: Caller, request: SyncGroupRequest, now_ms: int) -> None:
    _existing_group(parts, request.group_id).sync(caller, request, now_ms)


def heartbeat(parts: Parts, caller: Caller, request: HeartbeatRequest, now_ms: int) -> None:
    group = _existing_group(parts, request.group_id)
    if isinstance(group, ClassicGroup):
        group.heartbeat(caller, request, now_ms)
    else:
        group.classic_heartbeat(caller, request, now_ms)


def leave_group(parts: Parts, caller: Caller, request: LeaveGroupRequest, now_ms: int) -> None:
    _existing_group(parts, request.group_id).leave(caller, request, now_ms)


def consumer_group_heartbeat(
    parts: Parts, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
) -> None:
    group_id = GroupId(request.group_id)
    group = parts.groups.get(group_id)
    size = subscribing_bytes(request)
    if size:
        _check_memory(parts, group, request.member_id, size)
    if isinstance(group, ConsumerGroup):
        group.heartbeat(caller, request, now_ms)
        return
    check_request(request, caller.version, parts.settings.consumer_assignors)
    if request.member_epoch != JOINING_EPOCH:
        raise GroupNotFound(_not_found_message(group, request))
    created, first = _create_consumer(parts, group_id, group, now_ms)
    created.heartbeat(caller, request, now_ms, first)
    parts.unwritten_groups[group_id] = created


def _not_found_message(group: ClassicGroup | None, request: ConsumerGroupHeartbeatRequest) -> str:
    if group is not None:
        return f"Group {request.group_id} is not a consumer group."
    is_leaving = request.member_epoch < JOINING_EPOCH
    return f"{'Group' if is_leaving else 'Consumer group'} {request.group_id} not found."


def _create_consumer(
    parts: Parts, group_id: GroupId, classic: ClassicGroup | None, now_ms: int
) -> tuple[ConsumerGroup, list[Entry]]:
    """A new group, and the entries that are written before its own first ones.

    Until these are in the log the classic group is unchanged: the log may refuse them.
    """
    created = parts.new_consumer(group_id)
    if classic is None:
        return created, []
    if kinds.is_empty(classic):
        return created, kinds.tombstones(classic)
    protocols: dict[str, list[tuple[str, bytes]]] = {
        member.member_id: list(member.facts.protocols.items()) for member in classic.members
    }
    first = upgrade_entries(group_id, classic.as_record(), parts.topics, parts.settings, protocols)
    created.adopt(first, now_ms)
    return created, first


def _check_memory(parts: Parts, group: Group | None, member_id: str, size_bytes: int) -> None:
    """Raise unless there is room for what the member would keep in memory."""
    known, group_bytes = 0, 0
    if group is not None:
        known, group_bytes = group.member_bytes(MemberId(member_id)), group.size_bytes
    parts.groups.memory.check(size_bytes - known, group_bytes=group_bytes)


def _validated_id(group_id: str) -> GroupId:
    if not group_id:
        raise InvalidGroupId
    return GroupId(group_id)


def _existing_group(parts: Parts, group_id: str) -> Group:
    group = parts.groups.get(_validated_id(group_id))
    if group is None:
        raise UnknownMember
    return group
