"""JoinGroup (key 11), versions 0-9: become a member, or rejoin for the next generation.

v1 rebalance timeout · v4 a new member first gets its id and rejoins with it (KIP-394) ·
v5 static members (KIP-345) · v7 protocol type · v8 the reason · v9 a static leader that rejoins a
stable group skips the assignment (KIP-814).
Invariants: I-27, I-28, I-30.
"""

from typing import Final, NamedTuple

from millstream.groups.classic import static
from millstream.groups.classic.core import Core
from millstream.groups.classic.members import NO_MEMBER, Member, MemberFacts, facts_of
from millstream.groups.classic.rebalance import complete_if_all_joined, join_response, rebalance
from millstream.groups.classic.states import Event, GroupState
from millstream.groups.errors import FencedInstance, UnknownMember
from millstream.groups.records.entries import Entry
from millstream.groups.settings import ClassicSettings
from millstream.model.ids import InstanceId, MemberId
from millstream.shards.effects import Caller
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.join_group import JoinGroupRequest

KNOWN_ID_VERSION: Final = 4
NEW_MEMBER_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a new member may wait in its first JoinGroup. It does not heartbeat meanwhile, and the
member of a client that gave up and retried would otherwise stay forever (as in Kafka)."""
PENDING_MEMBERS_MAX: Final = 10_000
"""Member ids given out and not used. Each costs memory for a session, and a client can request
them as fast as it can send; no group has that many consumers starting at once."""


def session_timeout_is_allowed(request: JoinGroupRequest, settings: ClassicSettings) -> bool:
    """Within `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""
    lowest_ms, highest_ms = settings.session_timeout_min_ms, settings.session_timeout_max_ms
    return lowest_ms <= request.session_timeout_ms <= highest_ms


class _Refused(Exception):
    """With the member id of the response."""

    def __init__(self, code: ErrorCode, member_id: MemberId) -> None:
        self.code, self.member_id = code, member_id
        super().__init__(code.name)


class _JoinAttempt(NamedTuple):
    """A request with its parsed fields."""

    caller: Caller
    member_id: MemberId
    instance_id: InstanceId | None
    facts: MemberFacts
    reason: str
    now_ms: int


def join(core: Core, caller: Caller, request: JoinGroupRequest, now_ms: int) -> Entry | None:
    """Answered when all members have joined, or at once if no rebalance is needed."""
    member_id, instance = MemberId(request.member_id), request.group_instance_id
    try:
        if not session_timeout_is_allowed(request, core.settings):
            raise _Refused(ErrorCode.INVALID_SESSION_TIMEOUT, member_id)
        attempt = _JoinAttempt(
            caller,
            member_id,
            None if instance is None else InstanceId(instance),
            facts_of(caller, request),
            request.reason or "not given",
            now_ms,
        )
        return _join(core, attempt)
    except _Refused as refused:
        core.refuse_join(caller, refused.code, refused.member_id)
        return None


def _join(core: Core, attempt: _JoinAttempt) -> Entry | None:
    member_id, facts = attempt.member_id, attempt.facts
    if core.state is GroupState.DEAD:
        raise _Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
    if not _accepts_member(core, attempt):
        return _refuse_full(core, attempt)
    if not core.supports(facts.protocol_type, facts.protocols):
        raise _Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
    if member_id == NO_MEMBER:
        return _join_without_id(core, attempt)
    if member_id in core.roster.pending and attempt.instance_id is None:
        return _add(core, attempt, member_id)
    return _rejoin(core, attempt)


# -- room --------------------------------------------------------------------------------------


def _accepts_member(core: Core, attempt: _JoinAttempt) -> bool:
    """Check `group.max.size`, which may have become smaller than the group.

    While a rebalance is prepared only members that have joined count, so a group that is too large
    loses those that join last; otherwise existing members stay. A static member that rejoins
    without a member id is not a new member.
    """
    roster, size_max = core.roster, core.settings.group_size_max
    known_id = attempt.member_id
    if known_id == NO_MEMBER and attempt.instance_id is not None:
        known_id = roster.instances.get(attempt.instance_id, NO_MEMBER)
    member = roster.get(known_id)
    if core.state is GroupState.EMPTY:
        return True
    if core.state is GroupState.PREPARING:
        is_counted = member is not None and member.is_awaiting_join
        return is_counted or roster.awaiting_count < size_max
    return member is not None or len(roster) < size_max


def _refuse_full(core: Core, attempt: _JoinAttempt) -> Entry | None:
    core.refuse_join(attempt.caller, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER)
    core.remove_pending(attempt.member_id)
    member = core.roster.get(attempt.member_id)
    if member is not None:
        core.remove(member)
    # All others may have joined already.
    is_preparing = core.state is GroupState.PREPARING
    return complete_if_all_joined(core, attempt.now_ms) if is_preparing else None


# -- new members -------------------------------------------------------------------------------


def _join_without_id(core: Core, attempt: _JoinAttempt) -> Entry | None:
    instance_id, client_id = attempt.instance_id, attempt.caller.client_id
    if instance_id is not None:
        known_id = core.roster.instances.get(instance_id)
        member_id = core.new_member_id(instance_id)
        if known_id is None:
            return _add(core, attempt, member_id)
        before = core.roster[known_id]
        pair = (before, before.successor(member_id, attempt.facts))
        return static.replace(
            core, attempt.caller, pair, reason=attempt.reason, now_ms=attempt.now_ms
        )
    if attempt.caller.version < KNOWN_ID_VERSION:
        return _add(core, attempt, core.new_member_id(client_id))
    if len(core.roster.pending) >= PENDING_MEMBERS_MAX:
        raise _Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_MEMBER)
    member_id = core.new_member_id(client_id)
    core.roster.pending.add(member_id)
    core.sessions.set(member_id, attempt.now_ms + max(attempt.facts.session_timeout_ms, 1))
    raise _Refused(ErrorCode.MEMBER_ID_REQUIRED, member_id)


def _add(core: Core, attempt: _JoinAttempt, member_id: MemberId) -> Entry | None:
    if not core.roster:
        core.protocol_type = attempt.facts.protocol_type
    if core.is_initial:
        core.has_new_member = True
    member = Member(member_id, attempt.instance_id, attempt.facts)
    member.is_new = True
    core.roster.add(member)
    core.roster.await_join(member, attempt.caller)
    core.sessions.set(member_id, attempt.now_ms + NEW_MEMBER_TIMEOUT_MS)
    why = f"{member_id} is new: {attempt.reason}"
    return rebalance(core, Event.MEMBER_JOINED, why, attempt.now_ms)


# -- members that rejoin -----------------------------------------------------------------------


def _rejoin(core: Core, attempt: _JoinAttempt) -> Entry | None:
    member = _checked_member(core, attempt)
    if not _needs_rebalance(core, member, attempt.facts):
        # It lost the response, or rejoins needlessly: it continues in this generation.
        core.touch(member, attempt.now_ms)
        core.outbox.reply(attempt.caller, join_response(core, member))
        return None
    core.roster.update(member, attempt.facts)
    superseded = core.roster.await_join(member, attempt.caller)
    if superseded is not None:
        # A client has given up on a request when it sends another one. If it receives this response
        # nevertheless, it finds the coordinator again and loses nothing (as in Kafka, KAFKA-20938).
        core.refuse_join(superseded, ErrorCode.NOT_COORDINATOR, member.member_id)
    why = f"{member.member_id} rejoins: {attempt.reason}"
    return rebalance(core, Event.MEMBER_JOINED, why, attempt.now_ms)


def _checked_member(core: Core, attempt: _JoinAttempt) -> Member:
    try:
        return core.check_member(attempt.member_id, attempt.instance_id)
    except UnknownMember:
        raise _Refused(ErrorCode.UNKNOWN_MEMBER_ID, attempt.member_id) from None
    except FencedInstance:
        raise _Refused(ErrorCode.FENCED_INSTANCE_ID, attempt.member_id) from None


def _needs_rebalance(core: Core, member: Member, facts: MemberFacts) -> bool:
    """Whether the group has to rebalance for it.

    The leader of a stable group rejoins to start a rebalance: it saw that topics changed.
    """
    if core.state is GroupState.PREPARING or not member.has_same_protocols(facts):
        return True
    return core.state is GroupState.STABLE and core.roster.leader_id == member.member_id
