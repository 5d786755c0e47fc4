"""A rebalance: it starts, members join, the next generation starts.

An empty group that gets its first member waits a little for others, and again after each delay in
which one joined, up to the rebalance timeout: otherwise a group of a hundred consumers that start
together would rebalance a hundred times.
"""

from millstream.groups.classic.core import Core
from millstream.groups.classic.members import Member
from millstream.groups.classic.states import Event, GroupState
from millstream.groups.records.entries import Entry
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_GENERATION
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from millstream.wire.messages.sync_group import SyncGroupResponse

REASON_CHARACTERS_MAX = 255
"""Kafka's clients truncate it to this as well: it is for a log line."""


def rebalance(core: Core, event: Event, reason: str, now_ms: int) -> Entry | None:
    """Start a rebalance, or continue the current one."""
    if core.state is GroupState.PREPARING:
        return complete_if_all_joined(core, now_ms)
    return prepare(core, event, reason, now_ms)


def prepare(core: Core, event: Event, reason: str, now_ms: int) -> Entry | None:
    """Start a rebalance: all members have to rejoin."""
    if core.state is GroupState.COMPLETING:
        abort_assignment(core, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
    core.pending_sync.clear()
    core.sync_deadline_ms = None
    core.is_initial = core.state is GroupState.EMPTY
    core.reason = reason[:REASON_CHARACTERS_MAX]
    core.move(event)
    if not core.is_initial:
        core.join_deadline_ms = core.rebalance_deadline_ms(now_ms)
        return complete_if_all_joined(core, now_ms)
    core.has_new_member = False
    core.initial_delay_ms = core.settings.initial_rebalance_delay_ms
    core.initial_remaining_ms = max(core.roster.rebalance_timeout_ms - core.initial_delay_ms, 0)
    core.join_deadline_ms = now_ms + core.initial_delay_ms
    return None


def complete_if_all_joined(core: Core, now_ms: int) -> Entry | None:
    """An initial rebalance waits for its delay even if all have joined: more may come."""
    if core.is_initial or not core.roster.has_all_joined:
        return None
    return complete_join(core, now_ms)


def expire_join(core: Core, now_ms: int) -> Entry | None:
    """The deadline of the rebalance, or the delay of an initial one, is over."""
    if core.is_initial and core.has_new_member and core.initial_remaining_ms > 0:
        core.has_new_member = False
        waited_ms = core.initial_delay_ms
        core.initial_delay_ms = min(
            core.settings.initial_rebalance_delay_ms, core.initial_remaining_ms
        )
        core.initial_remaining_ms = max(core.initial_remaining_ms - waited_ms, 0)
        core.join_deadline_ms = now_ms + core.initial_delay_ms
        return None
    return complete_join(core, now_ms)


def complete_join(core: Core, now_ms: int) -> Entry | None:
    """Remove dynamic members that have not joined, and start the generation with the others."""
    invariant(core.state is GroupState.PREPARING, "I-31 no joining to complete", state=core.state)
    for member in [one for one in core.roster if not (one.is_awaiting_join or one.is_static)]:
        core.remove(member)
    invariant(
        all(one.is_awaiting_join or one.is_static for one in core.roster),
        "I-30 a member that did not join is kept",
        group_id=core.group_id,
    )
    if not core.roster.elect_joined_leader() and core.roster:
        # Only static members that have not rejoined: they stay until their sessions expire.
        core.join_deadline_ms = core.rebalance_deadline_ms(now_ms)
        return None
    core.join_deadline_ms = None
    core.begin_generation()
    if core.state is GroupState.EMPTY:
        return core.entry({})
    _answer_joins(core, now_ms)
    return None


def _answer_joins(core: Core, now_ms: int) -> None:
    for member in core.roster:
        caller = core.roster.take_join(member)
        if caller is not None:
            core.outbox.reply(caller, join_response(core, member))
        core.touch(member, now_ms)
        member.is_new = False
        core.pending_sync.add(member.member_id)
    core.sync_deadline_ms = core.rebalance_deadline_ms(now_ms)


def join_response(
    core: Core, member: Member, *, with_members: bool = True, skip_assignment: bool = False
) -> JoinGroupResponse:
    """The current generation; the leader gets the members, to compute the assignment."""
    is_leader = core.roster.leader_id == member.member_id
    return JoinGroupResponse(
        generation_id=core.generation_id,
        protocol_type=core.protocol_type,
        protocol_name=core.protocol_name,
        leader=core.roster.leader_id or "",
        skip_assignment=skip_assignment and is_leader,
        member_id=member.member_id,
        members=members_for_leader(core) if is_leader and with_members else [],
    )


def members_for_leader(core: Core) -> list[JoinGroupResponseMember]:
    """The members with their metadata for the selected protocol."""
    name = core.protocol_name
    invariant(name is not None, "I-27 a generation without a protocol", group_id=core.group_id)
    return [
        JoinGroupResponseMember(
            member_id=one.member_id,
            group_instance_id=one.instance_id,
            metadata=one.metadata(name or ""),
        )
        for one in core.roster
    ]


# -- assignments -------------------------------------------------------------------------------


def abort_assignment(core: Core, error: ErrorCode | OperatingError, now_ms: int) -> None:
    """Refuse waiting SyncGroup requests: this generation will have no assignment.

    Each member keeps its last assignment, which belongs to no generation now: a cooperative one
    keeps reading, and if the group is converted its partitions must not be free (I-27).
    """
    for member in core.roster:
        member.assigned_in = NO_GENERATION
        caller = _take_sync(core, member, now_ms)
        if caller is None:
            continue
        if isinstance(error, ErrorCode):
            core.refuse_sync(caller, error)
        else:
            core.outbox.reply(caller, error)


def send_assignments(core: Core, now_ms: int) -> None:
    """Answer waiting SyncGroup requests with the leader's assignment."""
    for member in core.roster:
        caller = _take_sync(core, member, now_ms)
        if caller is not None:
            core.outbox.reply(caller, sync_response(core, member))


def sync_response(core: Core, member: Member) -> SyncGroupResponse:
    """The member's assignment in this generation."""
    invariant(
        core.state is GroupState.STABLE and member.assigned_in == core.generation_id,
        "I-27 an assignment of another generation",
        state=core.state,
        generation_id=core.generation_id,
        assigned_in=member.assigned_in,
    )
    return SyncGroupResponse(
        protocol_type=core.protocol_type,
        protocol_name=core.protocol_name,
        assignment=member.assignment,
    )


def _take_sync(core: Core, member: Member, now_ms: int) -> Caller | None:
    """Its session was paused while it waited for our response, so it restarts."""
    caller, member.sync_caller = member.sync_caller, None
    if caller is not None:
        core.touch(member, now_ms)
    return caller
