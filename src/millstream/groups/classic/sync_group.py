"""SyncGroup (key 14), versions 0-5: the leader sends the assignment, every member gets its part.

v3 static members · v5 protocol type and name, which must be the group's.
No member gets an assignment before it is committed: after a failover the next coordinator must know
the assignment that the members use.
Invariants: I-27, I-28.
"""

from typing import Final

from millstream.groups.classic.core import AssignmentWrite, Core
from millstream.groups.classic.members import Member
from millstream.groups.classic.rebalance import (
    abort_assignment,
    prepare,
    send_assignments,
    sync_response,
)
from millstream.groups.classic.states import Event, GroupState
from millstream.groups.errors import (
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    UnknownMember,
)
from millstream.groups.records.entries import Entry
from millstream.model.errors import OperatingError
from millstream.model.ids import InstanceId, MemberId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller, Ticket
from millstream.shards.errors import CoordinatorNotAvailable
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupRequest

PROTOCOL_VERSION: Final = 5
"""From this version on, the request must have protocol type and name."""


def sync(core: Core, caller: Caller, request: SyncGroupRequest, now_ms: int) -> None:
    """Answered when the assignment is committed."""
    member = _check(core, caller, request)
    if core.state is GroupState.PREPARING:
        raise RebalanceInProgress
    core.touch(member, now_ms)
    core.pending_sync.discard(member.member_id)
    if not core.pending_sync:
        core.sync_deadline_ms = None
    if core.state is GroupState.STABLE:
        core.outbox.reply(caller, sync_response(core, member))
        return
    if member.sync_caller is not None:
        # Its client has given up on it (see `join_group`).
        core.refuse_sync(member.sync_caller, ErrorCode.NOT_COORDINATOR)
    member.sync_caller = caller
    # A leader that retries while its assignment is being written waits for that one: a second
    # one, with other contents, would make two assignments of one generation.
    if core.roster.leader_id == member.member_id and core.assignment_ticket is None:
        _assign(core, request)


def _check(core: Core, caller: Caller, request: SyncGroupRequest) -> Member:
    """In Kafka's order: clients act on the first error."""
    if core.state is GroupState.DEAD:
        raise CoordinatorNotAvailable
    is_named = request.protocol_type is not None and request.protocol_name is not None
    if caller.version >= PROTOCOL_VERSION and not is_named:
        raise InconsistentProtocol
    if core.state is GroupState.EMPTY:
        raise UnknownMember
    instance = request.group_instance_id
    member = core.check_member(
        MemberId(request.member_id), None if instance is None else InstanceId(instance)
    )
    if request.generation_id != core.generation_id:
        raise IllegalGeneration
    if _differ(request.protocol_type, core.protocol_type) or _differ(
        request.protocol_name, core.protocol_name
    ):
        raise InconsistentProtocol
    return member


def _differ(theirs: str | None, ours: str | None) -> bool:
    return theirs is not None and ours is not None and theirs != ours


def _assign(core: Core, request: SyncGroupRequest) -> None:
    """Members missing in the leader's list get nothing; unknown members in it are ignored."""
    received = {one.member_id: bytes(one.assignment) for one in request.assignments}
    assignments = {one.member_id: received.get(one.member_id, b"") for one in core.roster}
    what = AssignmentWrite(core.generation_id, assignments)
    core.assignment_ticket = core.write_with_ticket(core.entry(assignments), what)


def on_written(core: Core, ticket: Ticket, what: AssignmentWrite, now_ms: int) -> None:
    """The assignment is committed; ignored if the group has moved on meanwhile."""
    if core.assignment_ticket != ticket:
        return
    invariant(
        core.state is GroupState.COMPLETING
        and what.generation_id == core.generation_id
        and what.assignments.keys() == core.roster.ids,
        "I-27 an assignment of other members or another generation",
        state=core.state,
        generation_id=core.generation_id,
        written=what.generation_id,
    )
    for member in core.roster:
        member.assignment = what.assignments[member.member_id]
        member.assigned_in = what.generation_id
    core.move(Event.ASSIGNMENT_WRITTEN)
    send_assignments(core, now_ms)


def on_refused(core: Core, ticket: Ticket, error: OperatingError, now_ms: int) -> Entry | None:
    """Members get the error, and rejoin."""
    if core.assignment_ticket != ticket:
        return None
    abort_assignment(core, error, now_ms)
    return prepare(core, Event.ASSIGNMENT_REFUSED, f"the log refused it: {error}", now_ms)
