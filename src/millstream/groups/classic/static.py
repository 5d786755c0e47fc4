"""Static members that rejoin (KIP-345): the instance continues under a new member id.

A client that still uses the old id is fenced. A stable group does not rebalance if the new member
has the same subscription as its predecessor, but the new id must be committed before it is sent:
otherwise the old one would be valid again after a failover and the live member would be fenced.
Invariants: I-27, I-28.
"""

from typing import Final

from millstream.groups.classic.core import Core, ReplacementWrite
from millstream.groups.classic.members import Member
from millstream.groups.classic.rebalance import complete_if_all_joined, join_response, prepare
from millstream.groups.classic.states import Event, GroupState
from millstream.groups.classic.subscriptions import CONSUMER_PROTOCOL, topics_of
from millstream.groups.records.entries import Entry
from millstream.model.errors import OperatingError
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller
from millstream.wire.errors import ErrorCode

SKIP_ASSIGNMENT_VERSION: Final = 9


def replace(
    core: Core, caller: Caller, pair: tuple[Member, Member], *, reason: str, now_ms: int
) -> Entry | None:
    """Replace the first member of the pair by the second."""
    before, successor = pair
    invariant(
        before.instance_id is not None and before.instance_id == successor.instance_id,
        "I-28 only a static member is replaced, by itself",
    )
    leader_before = core.roster.leader_id
    _swap_member(core, before, successor, now_ms)
    core.roster.await_join(successor, caller)
    if core.state is GroupState.PREPARING:
        return complete_if_all_joined(core, now_ms)
    if core.state is GroupState.STABLE and _has_same_subscription(core, before, successor):
        what = ReplacementWrite(core.generation_id, before, successor, caller, leader_before)
        core.write_with_ticket(
            core.entry({one.member_id: one.assignment for one in core.roster}), what
        )
        return None
    # The leader computes the assignment for the old id: only another rebalance can help.
    why = f"{successor.member_id} replaces {before.member_id}: {reason}"
    return prepare(core, Event.MEMBER_JOINED, why, now_ms)


def _swap_member(core: Core, before: Member, after: Member, now_ms: int) -> None:
    core.refuse_pending(before, ErrorCode.FENCED_INSTANCE_ID, response_member_id=before.member_id)
    core.roster.replace(before, after)
    core.sessions.cancel(before.member_id)
    core.touch(after, now_ms)
    if before.member_id in core.pending_sync:
        core.pending_sync.remove(before.member_id)
        core.pending_sync.add(after.member_id)


def _has_same_subscription(core: Core, before: Member, after: Member) -> bool:
    """Whether the same protocol would be selected, with the same topics for consumers.

    The rest of the metadata may differ: it has the partitions that the old process owned.
    """
    name = core.protocol_name
    if name is None or core.roster.select_protocol() != name:
        return False
    if core.protocol_type != CONSUMER_PROTOCOL:
        return True
    return topics_of(before.metadata(name)) == topics_of(after.metadata(name))


def on_written(core: Core, what: ReplacementWrite, now_ms: int) -> None:
    """The new id is committed: it continues in the generation of its predecessor."""
    if not _is_current(core, what):
        return
    core.roster.take_join(what.after)
    core.touch(what.after, now_ms)
    can_skip = what.caller.version >= SKIP_ASSIGNMENT_VERSION
    answer = join_response(core, what.after, with_members=can_skip, skip_assignment=can_skip)
    if not can_skip:
        # A client whose version has no skip_assignment must not take itself for the leader: it
        # would compute an assignment that a stable group ignores.
        answer.leader = what.leader_before or ""
    core.outbox.reply(what.caller, answer)


def on_refused(core: Core, what: ReplacementWrite, error: OperatingError, now_ms: int) -> None:
    """The log has the old id, so it is valid again."""
    if not _is_current(core, what):
        return
    invariant(
        what.before.assigned_in == core.generation_id,
        "I-27 a member comes back with an assignment of another generation",
        member_id=what.before.member_id,
    )
    core.roster.take_join(what.after)
    _swap_member(core, what.after, what.before, now_ms)
    core.outbox.reply(what.caller, error)


def _is_current(core: Core, what: ReplacementWrite) -> bool:
    """Otherwise a rebalance has started, which answers the JoinGroup, or the member has left."""
    return (
        core.state is GroupState.STABLE
        and core.generation_id == what.generation_id
        and core.roster.get(what.after.member_id) is what.after
        and what.after.join_caller is what.caller
    )
