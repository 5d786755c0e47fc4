"""Static members that come back (KIP-345): the instance goes on under a new member id.

Whoever still uses the old id is fenced. A stable group stays as it is, as long as the newcomer
wants what its predecessor wanted, but the new id must be in the log before it is told: after a
failover the old one would count again and the living member would be fenced.
Invariants: I-27, I-28.
"""

from typing import Final

from millstream.groups.classic.core import Core, Replacing
from millstream.groups.classic.members import Member
from millstream.groups.classic.rebalance import complete_if_all_joined, generation_answer, prepare
from millstream.groups.classic.states import Event, GroupState
from millstream.groups.classic.subscriptions import CONSUMER_PROTOCOL, topics_of
from millstream.groups.records.entries import Entry
from millstream.model.errors import OperatingError
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller
from millstream.wire.errors import ErrorCode

SKIP_ASSIGNMENT_VERSION: Final = 9


def replace(
    core: Core, caller: Caller, places: tuple[Member, Member], *, reason: str, now_ms: int
) -> Entry | None:
    """The second of the two takes the place of the first."""
    before, successor = places
    invariant(
        before.instance_id is not None and before.instance_id == successor.instance_id,
        "I-28 only a static member is replaced, by itself",
    )
    leader_before = core.roster.leader_id
    _take_place(core, before, successor, now_ms)
    core.roster.await_join(successor, caller)
    if core.state is GroupState.PREPARING:
        return complete_if_all_joined(core, now_ms)
    if core.state is GroupState.STABLE and _wants_the_same(core, before, successor):
        what = Replacing(core.generation_id, before, successor, caller, leader_before)
        core.write_and_hear(
            core.entry({one.member_id: one.assignment for one in core.roster}), what
        )
        return None
    # While the leader computes, it does so for the old id: only another round can help.
    why = f"{successor.member_id} replaces {before.member_id}: {reason}"
    return prepare(core, Event.MEMBER_JOINED, why, now_ms)


def _take_place(core: Core, before: Member, after: Member, now_ms: int) -> None:
    core.refuse_waiting(before, ErrorCode.FENCED_INSTANCE_ID, told_id=before.member_id)
    core.roster.replace(before, after)
    core.sessions.drop(before.member_id)
    core.touch(after, now_ms)
    if before.member_id in core.pending_sync:
        core.pending_sync.remove(before.member_id)
        core.pending_sync.add(after.member_id)


def _wants_the_same(core: Core, before: Member, after: Member) -> bool:
    """The same protocol would be selected, and consumers subscribe to the same topics.

    The rest of the metadata may differ: it holds what the old process owned.
    """
    name = core.protocol_name
    if name is None or core.roster.select_protocol() != name:
        return False
    if core.protocol_type != CONSUMER_PROTOCOL:
        return True
    return topics_of(before.metadata(name)) == topics_of(after.metadata(name))


def written(core: Core, what: Replacing, now_ms: int) -> None:
    """The new id counts: it goes on in the generation of its predecessor."""
    if not _is_current(core, what):
        return
    core.roster.take_join(what.after)
    core.touch(what.after, now_ms)
    is_told = what.caller.version >= SKIP_ASSIGNMENT_VERSION
    answer = generation_answer(core, what.after, with_members=is_told, skip_assignment=is_told)
    if not is_told:
        # A client that cannot be told to skip the assignment must not take itself for the leader:
        # it would compute one that a stable group ignores.
        answer.leader = what.leader_before or ""
    core.outbox.reply(what.caller, answer)


def refused(core: Core, what: Replacing, error: OperatingError, now_ms: int) -> None:
    """The log has the old id, so it counts again."""
    if not _is_current(core, what):
        return
    invariant(
        what.before.assigned_in == core.generation_id,
        "I-27 a member comes back with an assignment of another generation",
        member_id=what.before.member_id,
    )
    core.roster.take_join(what.after)
    _take_place(core, what.after, what.before, now_ms)
    core.outbox.reply(what.caller, error)


def _is_current(core: Core, what: Replacing) -> bool:
    """Otherwise a rebalance has begun, which answers the JoinGroup, or the member is gone."""
    return (
        core.state is GroupState.STABLE
        and core.generation_id == what.generation_id
        and core.roster.get(what.after.member_id) is what.after
        and what.after.join_caller is what.caller
    )
