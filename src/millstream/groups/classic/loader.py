"""Restores a group from its last record in the log."""

from millstream.groups.classic.core import Core
from millstream.groups.classic.members import Member, MemberFacts, Roster
from millstream.groups.classic.rebalance import prepare
from millstream.groups.classic.states import Event
from millstream.groups.deadlines import Deadlines
from millstream.groups.records.entries import Entry
from millstream.groups.records.values import GroupMetadataValue, MemberMetadata
from millstream.model.ids import GenerationId, InstanceId, MemberId
from millstream.model.invariant import invariant


def apply_metadata(core: Core, value: GroupMetadataValue) -> None:
    """Replace the whole state."""
    core.roster, core.sessions = Roster(), Deadlines[MemberId]()
    core.protocol_type = value.protocol_type or None
    core.protocol_name = value.protocol
    core.generation_id = GenerationId(value.generation)
    for record in value.members:
        member = _member_of(value, record)
        if member.member_id not in core.roster and member.instance_id not in core.roster.instances:
            core.roster.add(member)
    if value.leader is not None and MemberId(value.leader) in core.roster:
        core.roster.leader_id = MemberId(value.leader)
    invariant(
        all(one.assigned_in == value.generation for one in core.roster),
        "I-27 loaded with an assignment of another generation",
        group_id=core.group_id,
    )
    core.subscribed_topics = core.topics_now()
    core.move(Event.LOADED_MEMBERS if core.roster else Event.LOADED_EMPTY)
    since_ms = value.current_state_timestamp
    core.state_since_ms = None if since_ms == -1 else since_ms


def _member_of(value: GroupMetadataValue, record: MemberMetadata) -> Member:
    """The record has only the selected protocol. The oldest version has one timeout."""
    instance = record.group_instance_id
    has_timeout = record.rebalance_timeout != -1
    facts = MemberFacts(
        client_id=record.client_id,
        client_host=record.client_host,
        session_timeout_ms=record.session_timeout,
        rebalance_timeout_ms=(record.rebalance_timeout if has_timeout else record.session_timeout),
        protocol_type=value.protocol_type,
        protocols={value.protocol or "": bytes(record.subscription)},
    )
    member = Member(
        MemberId(record.member_id), None if instance is None else InstanceId(instance), facts
    )
    member.assignment = bytes(record.assignment)
    member.assigned_in = GenerationId(value.generation)
    return member


def on_loaded(core: Core, now_ms: int) -> Entry | None:
    """No member could heartbeat meanwhile, so all sessions start now."""
    for member in core.roster:
        core.touch(member, now_ms)
    if len(core.roster) > core.settings.group_size_max:
        # They rejoin, so that members that have to leave can commit first.
        return prepare(core, Event.LOADED_TOO_LARGE, "more members than group.max.size", now_ms)
    return None


def as_record(core: Core) -> GroupMetadataValue:
    """The record from which `apply_metadata` would restore this group, in any state.

    While a rebalance is prepared there may be members without the protocol of the last generation,
    or there was no generation yet: then a protocol that all members support is used.
    """
    roster, name = core.roster, core.protocol_name
    if roster and (name is None or not roster.supports_any({name: b""})):
        name = roster.select_protocol()
    return core.record({one.member_id: one.assignment for one in roster}, name)
