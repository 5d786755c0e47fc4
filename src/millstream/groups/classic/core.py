"""What a classic group knows, and the small steps that every part of the protocol is made of.

The parts (`joining`, `syncing`, `leaving`, ...) are functions over this; `group` is what the
outside calls. A function that gives an `Entry` gives what has to be written now: the caller writes
it, together with whatever answer must wait for it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millstream.groups.classic.deadlines import Deadlines
from millstream.groups.classic.members import Member, Roster
from millstream.groups.classic.states import Event, GroupState, next_state
from millstream.groups.classic.subscriptions import CONSUMER_PROTOCOL, all_topics
from millstream.groups.errors import FencedInstance, UnknownMember
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import ClassicGroupKey
from millstream.groups.records.values import GroupMetadataValue, MemberMetadata
from millstream.groups.settings import ClassicSettings
from millstream.model.ids import GenerationId, GroupId, InstanceId, MemberId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller, Outbox, Reply, Ticket, Write
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.join_group import JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse

GENERATION_MAX: Final = 2**31 - 1
FIRST_GENERATION: Final = GenerationId(1)
NULLABLE_PROTOCOL_VERSION: Final = 7
"""From this version of JoinGroup on, no protocol is null; before, it is an empty string."""


class Assigning(NamedTuple):
    """A write of the leader's assignment."""

    generation_id: GenerationId
    assignments: dict[MemberId, bytes]


class Replacing(NamedTuple):
    """A write of a stable group in which a static member has got a new id."""

    generation_id: GenerationId
    before: Member
    """As it was: it comes back if the log refuses."""
    after: Member
    caller: Caller
    leader_before: MemberId | None


class Core:
    """One group's state. Everything else is computed from it."""

    __slots__ = (
        "assigning",
        "generation_id",
        "group_id",
        "has_new_member",
        "initial_delay_ms",
        "initial_remaining_ms",
        "is_initial",
        "join_deadline_ms",
        "new_member_id",
        "outbox",
        "pending_sync",
        "protocol_name",
        "protocol_type",
        "reason",
        "roster",
        "sessions",
        "settings",
        "state",
        "state_since_ms",
        "subscribed_topics",
        "sync_deadline_ms",
        "wall_ms",
        "writes",
    )

    def __init__(
        self,
        group_id: GroupId,
        outbox: Outbox,
        settings: ClassicSettings,
        new_member_id: Callable[[str], MemberId],
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self.group_id, self.outbox, self.settings = group_id, outbox, settings
        self.new_member_id, self.wall_ms = new_member_id, wall_ms
        self.state = GroupState.EMPTY
        self.state_since_ms: int | None = wall_ms()
        """Time of day; None where the record that it was loaded from does not know it."""
        self.generation_id = GenerationId(0)
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.roster = Roster()
        self.sessions = Deadlines()
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        self.pending_sync: set[MemberId] = set()
        """Members of the generation that have not asked for their assignment."""
        self.is_initial = False
        """The rebalance began with an empty group: it waits for more members."""
        self.has_new_member = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.reason = ""
        """Why the last rebalance began, for people."""
        self.writes: dict[Ticket, Assigning | Replacing] = {}
        self.assigning: Ticket | None = None
        """The write of this generation's assignment, until it counts."""

    # -- state ---------------------------------------------------------------------------------

    def move(self, event: Event) -> None:
        """By the table."""
        self.state = next_state(self.state, event)
        self.state_since_ms = self.wall_ms()
        self.assigning = None

    def begin_generation(self) -> None:
        """With the members that there are, maybe none. Numbers start again behind the last one."""
        is_last = self.generation_id >= GENERATION_MAX
        self.generation_id = FIRST_GENERATION if is_last else GenerationId(self.generation_id + 1)
        self.pending_sync.clear()
        self.is_initial = False
        self.protocol_name = self.roster.select_protocol() if self.roster else None
        invariant(
            not self.roster or self.roster.supports_any({self.protocol_name or "": b""}),
            "I-27 a protocol that not all members know",
            protocol_name=self.protocol_name,
        )
        self.subscribed_topics = self.topics_now()
        self.move(Event.ALL_JOINED if self.roster else Event.NOBODY_JOINED)

    def topics_now(self) -> frozenset[str] | None:
        """What the members subscribe to; None if that cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.roster:
            return frozenset()
        name = self.protocol_name
        return None if name is None else all_topics(one.metadata(name) for one in self.roster)

    def supports(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        """Whether a member with these can be in the group."""
        if not protocol_type or not protocols:
            return False
        if self.state is GroupState.EMPTY:
            return True
        return self.protocol_type == protocol_type and self.roster.supports_any(protocols)

    def check_member(self, member_id: MemberId, instance_id: InstanceId | None) -> Member:
        """The member that a request is of; refuses what is not one, or not any more (I-28)."""
        if instance_id is not None:
            known_id = self.roster.instances.get(instance_id)
            if known_id is None:
                raise UnknownMember
            if known_id != member_id:
                raise FencedInstance
        member = self.roster.get(member_id)
        if member is None:
            raise UnknownMember
        return member

    def check(self) -> None:
        """What must hold between two calls; all of it is cheap."""
        has_members = self.state not in (GroupState.EMPTY, GroupState.DEAD)
        # A group that is gathering may have lost everyone; the end of its time finds that out.
        is_gathering = self.state is GroupState.PREPARING
        invariant(
            is_gathering or bool(self.roster) is has_members,
            "I-31 members and state do not fit",
            state=self.state,
            members=len(self.roster),
        )
        invariant(
            not is_gathering or self.join_deadline_ms is not None,
            "I-31 a rebalance without an end",
            group_id=self.group_id,
        )
        invariant(
            self.state is not GroupState.COMPLETING
            or self.sync_deadline_ms is not None
            or self.assigning is not None,
            "I-31 an assignment is awaited without an end",
            group_id=self.group_id,
        )
        invariant(
            (self.roster.leader_id is None) is (not self.roster),
            "I-27 members without a leader, or a leader without members",
            leader_id=self.roster.leader_id,
        )
        invariant(
            len(self.pending_sync) <= len(self.roster),
            "I-31 more assignments are awaited than there are members",
            group_id=self.group_id,
        )
        invariant(
            self.assigning is None or self.state is GroupState.COMPLETING,
            "I-27 an assignment is written for a generation that is over",
            state=self.state,
        )
        invariant(
            0 <= self.roster.awaiting_count <= len(self.roster),
            "I-36 waiting joins are counted wrong",
            waiting=self.roster.awaiting_count,
        )

    # -- time ----------------------------------------------------------------------------------

    def touch(self, member: Member, now_ms: int) -> None:
        """A sign of life: its session begins again."""
        self.sessions.put(member.member_id, now_ms + max(member.facts.session_timeout_ms, 1))

    def rebalance_deadline_ms(self, now_ms: int) -> int:
        """By when all have to join, or to ask for their assignment."""
        return now_ms + max(self.roster.rebalance_timeout_ms, 1)

    # -- answers -------------------------------------------------------------------------------

    def refuse_join(self, caller: Caller, code: ErrorCode, member_id: MemberId) -> None:
        """With the member id that Kafka's answer has."""
        has_null = caller.version >= NULLABLE_PROTOCOL_VERSION
        self.outbox.reply(
            caller,
            JoinGroupResponse(
                error_code=code, member_id=member_id, protocol_name=None if has_null else ""
            ),
        )

    def refuse_sync(self, caller: Caller, code: ErrorCode) -> None:
        self.outbox.reply(caller, SyncGroupResponse(error_code=code))

    def refuse_waiting(self, member: Member, code: ErrorCode, *, told_id: MemberId) -> None:
        """Whatever of the member waits, it is not answered otherwise any more."""
        join_caller = self.roster.take_join(member)
        if join_caller is not None:
            self.refuse_join(join_caller, code, told_id)
        sync_caller, member.sync_caller = member.sync_caller, None
        if sync_caller is not None:
            self.refuse_sync(sync_caller, code)

    def remove(self, member: Member) -> None:
        """It is not in the group any more; if it waits, it hears so and can join anew."""
        self.refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, told_id=MemberId(""))
        self.roster.remove(member)
        self.sessions.drop(member.member_id)
        self.pending_sync.discard(member.member_id)
        invariant(
            member.join_caller is None and member.sync_caller is None,
            "I-36 a removed member still waits",
            member_id=member.member_id,
        )

    def remove_pending(self, member_id: MemberId) -> None:
        self.roster.pending.discard(member_id)
        self.sessions.drop(member_id)

    # -- writing -------------------------------------------------------------------------------

    def entry(self, assignments: dict[MemberId, bytes]) -> Entry:
        """The group as it is, with these assignments."""
        name = self.protocol_name
        invariant(name is not None or not self.roster, "I-27 members without a protocol")
        return Entry(ClassicGroupKey(self.group_id), self.record(assignments, name))

    def record(self, assignments: dict[MemberId, bytes], name: str | None) -> GroupMetadataValue:
        """With that protocol."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=name,
            leader=self.roster.leader_id,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=[
                _record_of(member, name or "", assignments[member.member_id])
                for member in self.roster
            ],
        )

    def write(self, entry: Entry | None) -> None:
        """Nobody waits for it."""
        if entry is not None:
            self.outbox.write(Write((entry,), is_applied=True))

    def reply_after(self, entry: Entry | None, caller: Caller, response: Any) -> None:
        """The answer waits for the entry; without one it goes at once."""
        if entry is None:
            self.outbox.reply(caller, response)
        else:
            reply = Reply(caller.token, response)
            self.outbox.write(Write((entry,), (reply,), is_applied=True))

    def write_and_hear(self, entry: Entry, what: Assigning | Replacing) -> Ticket:
        """What is to be done then waits for `written` or `refused`."""
        ticket = self.outbox.ticket()
        self.writes[ticket] = what
        self.outbox.write(Write((entry,), ticket=ticket, is_applied=True))
        return ticket


def _record_of(member: Member, protocol_name: str, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.facts.client_id,
        client_host=member.facts.client_host,
        rebalance_timeout=member.facts.rebalance_timeout_ms,
        session_timeout=member.facts.session_timeout_ms,
        subscription=member.metadata(protocol_name),
        assignment=assignment,
    )
