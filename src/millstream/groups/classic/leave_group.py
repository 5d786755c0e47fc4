"""LeaveGroup (key 13), versions 0-5, and expired sessions: members leave, the others rebalance.

v3 several members in one request, static ones also by instance id only, as an administrator
removes them · v5 a reason for each.
Invariants: I-28, I-30.
"""

from typing import Final

from millstream.groups.classic.core import Core
from millstream.groups.classic.members import NO_MEMBER
from millstream.groups.classic.rebalance import complete_if_all_joined, complete_join, rebalance
from millstream.groups.classic.states import Event, GroupState
from millstream.groups.errors import FencedInstance, UnknownMember
from millstream.groups.records.entries import Entry
from millstream.model.ids import InstanceId, MemberId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller
from millstream.shards.errors import CoordinatorNotAvailable
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

BATCH_VERSION: Final = 3


def leave(core: Core, caller: Caller, request: LeaveGroupRequest, now_ms: int) -> None:
    """Each member has its own result. If the group becomes empty, that is written first."""
    if core.state is GroupState.DEAD:
        raise CoordinatorNotAvailable
    is_batch = caller.version >= BATCH_VERSION
    leaving = request.members if is_batch else [MemberIdentity(member_id=request.member_id)]
    count_before = len(core.roster)
    results = [_leave_one(core, one) for one in leaving]
    entry = None
    if len(core.roster) < count_before:
        reasons = "; ".join(sorted({one.reason or "not given" for one in leaving}))
        entry = rebalance(core, Event.MEMBER_LOST, f"members left: {reasons}", now_ms)
    elif core.state is GroupState.PREPARING:
        # The rebalance may have waited only for a pending member.
        entry = complete_if_all_joined(core, now_ms)
    response = LeaveGroupResponse(
        error_code=ErrorCode.NONE if is_batch else results[0].error_code,
        members=results if is_batch else [],
    )
    core.reply_after(entry, caller, response)


def _leave_one(core: Core, one: MemberIdentity) -> MemberResponse:
    code = ErrorCode.NONE
    try:
        _remove(core, one)
    except UnknownMember:
        code = ErrorCode.UNKNOWN_MEMBER_ID
    except FencedInstance:
        code = ErrorCode.FENCED_INSTANCE_ID
    return MemberResponse(
        member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code
    )


def _remove(core: Core, one: MemberIdentity) -> None:
    member_id = MemberId(one.member_id)
    instance_id = None if one.group_instance_id is None else InstanceId(one.group_instance_id)
    if member_id in core.roster.pending:
        core.remove_pending(member_id)
        return
    if member_id == NO_MEMBER and instance_id is not None:
        member_id = core.roster.instances.get(instance_id, NO_MEMBER)
    core.remove(core.check_member(member_id, instance_id))


def expire_session(core: Core, member_id: MemberId, now_ms: int) -> Entry | None:
    """Remove a member that sent nothing for its session timeout."""
    if member_id in core.roster.pending:
        core.remove_pending(member_id)
    else:
        member = core.roster.get(member_id)
        if member is None or member.is_heartbeat_exempt:
            # A member that waits for our response gets a new session with it.
            return None
        invariant(
            core.sessions.of(member_id) is None,
            "I-30 a member is removed whose session has begun again",
            member_id=member_id,
        )
        core.remove(member)
        if core.state is not GroupState.PREPARING:
            why = f"the session of {member_id} is over"
            return rebalance(core, Event.MEMBER_LOST, why, now_ms)
    is_preparing = core.state is GroupState.PREPARING
    return complete_join(core, now_ms) if is_preparing and core.roster.has_all_joined else None


def expire_pending_sync(core: Core, now_ms: int) -> Entry | None:
    """Remove members that did not send SyncGroup in time (KAFKA-12890)."""
    core.sync_deadline_ms = None
    late = [core.roster[member_id] for member_id in sorted(core.pending_sync)]
    for member in late:
        core.remove(member)
    why = f"{len(late)} members did not send SyncGroup in time"
    return rebalance(core, Event.SYNC_TIMED_OUT, why, now_ms)
