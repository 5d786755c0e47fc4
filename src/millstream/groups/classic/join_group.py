"""JoinGroup (key 11), versions 0-9: become a member, or gather for the next generation.

v1 rebalance timeout · v4 a new member first gets its id and joins again with it (KIP-394) ·
v5 static members (KIP-345) · v7 protocol type · v8 the reason · v9 a static leader that comes back
to a stable group is told to skip the assignment (KIP-814).
Invariants: I-27, I-28, I-30.
"""

from typing import Final, NamedTuple

from millstream.groups.classic import static
from millstream.groups.classic.core import Core
from millstream.groups.classic.members import NO_MEMBER, Member, MemberFacts, facts_of
from millstream.groups.classic.rebalance import complete_if_all_joined, generation_answer, rebalance
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
"""How long a new member may wait in its first JoinGroup. It does not heartbeat meanwhile, and a
client that gave up and asked again would otherwise stay in the group for ever (as Kafka)."""
PENDING_MEMBERS_MAX: Final = 10_000
"""Ids handed out and not used. Each costs memory for a session, and a client can ask for them as
fast as it can send; no group has that many consumers starting at once."""


def session_timeout_is_allowed(request: JoinGroupRequest, settings: ClassicSettings) -> bool:
    """Within `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""
    lowest_ms, highest_ms = settings.session_timeout_min_ms, settings.session_timeout_max_ms
    return lowest_ms <= request.session_timeout_ms <= highest_ms


class _Refused(Exception):
    """With the member id that the answer names."""

    def __init__(self, code: ErrorCode, member_id: MemberId) -> None:
        self.code, self.member_id = code, member_id
        super().__init__(code.name)


class _Asked(NamedTuple):
    """A request, with what is made of it once."""

    caller: Caller
    member_id: MemberId
    instance_id: InstanceId | None
    facts: MemberFacts
    reason: str
    now_ms: int


def join(core: Core, caller: Caller, request: JoinGroupRequest, now_ms: int) -> Entry | None:
    """Answered when the group has gathered, or at once where there is nothing to gather for."""
    member_id, instance = MemberId(request.member_id), request.group_instance_id
    try:
        if not session_timeout_is_allowed(request, core.settings):
            raise _Refused(ErrorCode.INVALID_SESSION_TIMEOUT, member_id)
        asked = _Asked(
            caller,
            member_id,
            None if instance is None else InstanceId(instance),
            facts_of(caller, request),
            request.reason or "not told",
            now_ms,
        )
        return _join(core, asked)
    except _Refused as refused:
        core.refuse_join(caller, refused.code, refused.member_id)
        return None


def _join(core: Core, asked: _Asked) -> Entry | None:
    member_id, facts = asked.member_id, asked.facts
    if core.state is GroupState.DEAD:
        raise _Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
    if not _has_room(core, asked):
        return _refuse_full(core, asked)
    if not core.supports(facts.protocol_type, facts.protocols):
        raise _Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
    if member_id == NO_MEMBER:
        return _join_without_id(core, asked)
    if member_id in core.roster.pending and asked.instance_id is None:
        return _add(core, asked, member_id)
    return _join_again(core, asked)


# -- room --------------------------------------------------------------------------------------


def _has_room(core: Core, asked: _Asked) -> bool:
    """`group.max.size`, which may have become smaller than the group is.

    While the group gathers those who have joined are counted, so a group that is too large loses
    the members that join last; otherwise whoever is in it stays. A static member that comes back
    without an id takes no new place.
    """
    roster, size_max = core.roster, core.settings.group_size_max
    known_id = asked.member_id
    if known_id == NO_MEMBER and asked.instance_id is not None:
        known_id = roster.instances.get(asked.instance_id, NO_MEMBER)
    member = roster.get(known_id)
    if core.state is GroupState.EMPTY:
        return True
    if core.state is GroupState.PREPARING:
        is_counted = member is not None and member.is_awaiting_join
        return is_counted or roster.awaiting_count < size_max
    return member is not None or len(roster) < size_max


def _refuse_full(core: Core, asked: _Asked) -> Entry | None:
    core.refuse_join(asked.caller, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER)
    core.remove_pending(asked.member_id)
    member = core.roster.get(asked.member_id)
    if member is not None:
        core.remove(member)
    # Everybody else may be there already.
    is_gathering = core.state is GroupState.PREPARING
    return complete_if_all_joined(core, asked.now_ms) if is_gathering else None


# -- new members -------------------------------------------------------------------------------


def _join_without_id(core: Core, asked: _Asked) -> Entry | None:
    instance_id, client_id = asked.instance_id, asked.caller.client_id
    if instance_id is not None:
        known_id = core.roster.instances.get(instance_id)
        member_id = core.new_member_id(instance_id)
        if known_id is None:
            return _add(core, asked, member_id)
        before = core.roster[known_id]
        places = (before, before.successor(member_id, asked.facts))
        return static.replace(core, asked.caller, places, reason=asked.reason, now_ms=asked.now_ms)
    if asked.caller.version < KNOWN_ID_VERSION:
        return _add(core, asked, core.new_member_id(client_id))
    if len(core.roster.pending) >= PENDING_MEMBERS_MAX:
        raise _Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_MEMBER)
    member_id = core.new_member_id(client_id)
    core.roster.pending.add(member_id)
    core.sessions.put(member_id, asked.now_ms + max(asked.facts.session_timeout_ms, 1))
    raise _Refused(ErrorCode.MEMBER_ID_REQUIRED, member_id)


def _add(core: Core, asked: _Asked, member_id: MemberId) -> Entry | None:
    if not core.roster:
        core.protocol_type = asked.facts.protocol_type
    if core.is_initial:
        core.has_new_member = True
    member = Member(member_id, asked.instance_id, asked.facts)
    member.is_new = True
    core.roster.add(member)
    core.roster.await_join(member, asked.caller)
    core.sessions.put(member_id, asked.now_ms + NEW_MEMBER_TIMEOUT_MS)
    why = f"{member_id} is new: {asked.reason}"
    return rebalance(core, Event.MEMBER_JOINED, why, asked.now_ms)


# -- members that join again -------------------------------------------------------------------


def _join_again(core: Core, asked: _Asked) -> Entry | None:
    member = _known(core, asked)
    if not _has_news(core, member, asked.facts):
        # It has lost the answer, or thinks that it has to join: it goes on in this generation.
        core.touch(member, asked.now_ms)
        core.outbox.reply(asked.caller, generation_answer(core, member))
        return None
    core.roster.update(member, asked.facts)
    superseded = core.roster.await_join(member, asked.caller)
    if superseded is not None:
        # A client has given up on a request when it sends another one. Should it hear this all the
        # same, it looks for the coordinator and forgets nothing (as Kafka, KAFKA-20938).
        core.refuse_join(superseded, ErrorCode.NOT_COORDINATOR, member.member_id)
    why = f"{member.member_id} joins again: {asked.reason}"
    return rebalance(core, Event.MEMBER_JOINED, why, asked.now_ms)


def _known(core: Core, asked: _Asked) -> Member:
    try:
        return core.check_member(asked.member_id, asked.instance_id)
    except UnknownMember:
        raise _Refused(ErrorCode.UNKNOWN_MEMBER_ID, asked.member_id) from None
    except FencedInstance:
        raise _Refused(ErrorCode.FENCED_INSTANCE_ID, asked.member_id) from None


def _has_news(core: Core, member: Member, facts: MemberFacts) -> bool:
    """Whether the group has to gather for it.

    The leader of a stable group joins to have a rebalance: it saw that topics changed.
    """
    if core.state is GroupState.PREPARING or not member.has_same_protocols(facts):
        return True
    return core.state is GroupState.STABLE and core.roster.leader_id == member.member_id
