"""SyncGroup (key 14), versions 0-5: the leader hands out the assignment, everybody gets its part.

v3 static members · v5 protocol type and name, which must be the group's.
Nobody gets an assignment before it is written: after a failover the next coordinator must know
what the members work by.
Invariants: I-27, I-28.
"""

from typing import Final

from millstream.groups.classic.core import Assigning, Core
from millstream.groups.classic.members import Member
from millstream.groups.classic.rebalance import (
    assignment_answer,
    give_assignments,
    give_up_assignment,
    prepare,
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
"""From here on the request must tell protocol type and name."""


def sync(core: Core, caller: Caller, request: SyncGroupRequest, now_ms: int) -> None:
    """Answered when the assignment counts."""
    member = _check(core, caller, request)
    if core.state is GroupState.PREPARING:
        raise RebalanceInProgress
    core.touch(member, now_ms)
    core.pending_sync.discard(member.member_id)
    if not core.pending_sync:
        core.sync_deadline_ms = None
    if core.state is GroupState.STABLE:
        core.outbox.reply(caller, assignment_answer(core, member))
        return
    if member.sync_caller is not None:
        # Its client has given up on it (see `joining`).
        core.refuse_sync(member.sync_caller, ErrorCode.NOT_COORDINATOR)
    member.sync_caller = caller
    # A leader that asks again while its assignment is being written waits for that one: a second
    # one, with other contents, would make two assignments of one generation.
    if core.roster.leader_id == member.member_id and core.assigning is None:
        _assign(core, request)


def _check(core: Core, caller: Caller, request: SyncGroupRequest) -> Member:
    """In the order in which Kafka looks: clients act on the first thing that is wrong."""
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


def _differ(told: str | None, ours: str | None) -> bool:
    return told is not None and ours is not None and told != ours


def _assign(core: Core, request: SyncGroupRequest) -> None:
    """Members that the leader forgot get nothing; strangers in its list are left out."""
    told = {one.member_id: bytes(one.assignment) for one in request.assignments}
    assignments = {one.member_id: told.get(one.member_id, b"") for one in core.roster}
    what = Assigning(core.generation_id, assignments)
    core.assigning = core.write_and_hear(core.entry(assignments), what)


def written(core: Core, ticket: Ticket, what: Assigning, now_ms: int) -> None:
    """The assignment counts, unless the group has gone on meanwhile."""
    if core.assigning != ticket:
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
    give_assignments(core, now_ms)


def refused(core: Core, ticket: Ticket, error: OperatingError, now_ms: int) -> Entry | None:
    """Members hear why, and join again."""
    if core.assigning != ticket:
        return None
    give_up_assignment(core, error, now_ms)
    return prepare(core, Event.ASSIGNMENT_REFUSED, f"the log refused it: {error}", now_ms)
