"""The state of a classic group, and the basic operations that the protocol is built from.

`join_group`, `sync_group`, `leave_group` and the others are functions over it; `group` is the
public interface. A function that returns an `Entry` returns what has to be written now: the caller
writes it, together with any response that must wait for it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millstream.groups.classic.members import Member, Roster
from millstream.groups.classic.states import Event, GroupState, next_state
from millstream.groups.classic.subscriptions import CONSUMER_PROTOCOL, all_topics
from millstream.groups.deadlines import Deadlines
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


class AssignmentWrite(NamedTuple):
    """A pending write of the leader's assignment."""

    generation_id: GenerationId
    assignments: dict[MemberId, bytes]


class ReplacementWrite(NamedTuple):
    """A pending write of a stable group in which a static member got a new member id."""

    generation_id: GenerationId
    before: Member
    """The member before; restored if the log refuses the write."""
    after: Member
    caller: Caller
    leader_before: MemberId | None


class Core:
    """One group's state. Everything else is computed from it."""

    __slots__ = (
        "assignment_ticket",
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
        """Time of day; None if the record that it was loaded from does not have it."""
        self.generation_id = GenerationId(0)
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.roster = Roster()
        self.sessions = Deadlines[MemberId]()
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        self.pending_sync: set[MemberId] = set()
        """Members of the generation that have not sent SyncGroup."""
        self.is_initial = False
        """The rebalance started with an empty group: it waits for more members."""
        self.has_new_member = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.reason = ""
        """Why the last rebalance started, for people."""
        self.writes: dict[Ticket, AssignmentWrite | ReplacementWrite] = {}
        self.assignment_ticket: Ticket | None = None
        """The write of this generation's assignment, until it is committed."""

    # -- state ---------------------------------------------------------------------------------

    def move(self, event: Event) -> None:
        """Move to the next state by the table."""
        self.state = next_state(self.state, event)
        self.state_since_ms = self.wall_ms()
        self.assignment_ticket = None

    def begin_generation(self) -> None:
        """Start it with the present members, maybe none. Numbers wrap around after the last one."""
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
        self.move(Event.ALL_JOINED if self.roster else Event.NONE_JOINED)

    def topics_now(self) -> frozenset[str] | None:
        """The topics that the members subscribe to; None if they cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.roster:
            return frozenset()
        name = self.protocol_name
        return None if name is None else all_topics(one.metadata(name) for one in self.roster)

    def supports(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        """Whether a member with these protocols can be in the group."""
        if not protocol_type or not protocols:
            return False
        if self.state is GroupState.EMPTY:
            return True
        return self.protocol_type == protocol_type and self.roster.supports_any(protocols)

    def check_member(self, member_id: MemberId, instance_id: InstanceId | None) -> Member:
        """The member that sent the request; raises unless it is a current member (I-28)."""
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
        """Check what must hold between two calls; all of it is cheap."""
        has_members = self.state not in (GroupState.EMPTY, GroupState.DEAD)
        # A group that prepares a rebalance may have lost all members; its deadline notices that.
        is_preparing = self.state is GroupState.PREPARING
        invariant(
            is_preparing or bool(self.roster) is has_members,
            "I-31 members and state do not fit",
            state=self.state,
            members=len(self.roster),
        )
        invariant(
            not is_preparing or self.join_deadline_ms is not None,
            "I-31 a rebalance without an end",
            group_id=self.group_id,
        )
        invariant(
            self.state is not GroupState.COMPLETING
            or self.sync_deadline_ms is not None
            or self.assignment_ticket is not None,
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
            self.assignment_ticket is None or self.state is GroupState.COMPLETING,
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
        """The member is alive: restart its session."""
        self.sessions.set(member.member_id, now_ms + max(member.facts.session_timeout_ms, 1))

    def rebalance_deadline_ms(self, now_ms: int) -> int:
        """By when all members have to send JoinGroup, or SyncGroup."""
        return now_ms + max(self.roster.rebalance_timeout_ms, 1)

    # -- responses -----------------------------------------------------------------------------

    def refuse_join(self, caller: Caller, code: ErrorCode, member_id: MemberId) -> None:
        """Refuse with the member id that Kafka's response has."""
        has_null = caller.version >= NULLABLE_PROTOCOL_VERSION
        self.outbox.reply(
            caller,
            JoinGroupResponse(
                error_code=code, member_id=member_id, protocol_name=None if has_null else ""
            ),
        )

    def refuse_sync(self, caller: Caller, code: ErrorCode) -> None:
        self.outbox.reply(caller, SyncGroupResponse(error_code=code))

    def refuse_pending(
        self, member: Member, code: ErrorCode, *, response_member_id: MemberId
    ) -> None:
        """Refuse the member's waiting JoinGroup and SyncGroup."""
        join_caller = self.roster.take_join(member)
        if join_caller is not None:
            self.refuse_join(join_caller, code, response_member_id)
        sync_caller, member.sync_caller = member.sync_caller, None
        if sync_caller is not None:
            self.refuse_sync(sync_caller, code)

    def remove(self, member: Member) -> None:
        """Remove the member; its waiting requests are refused, so that it can rejoin."""
        self.refuse_pending(member, ErrorCode.UNKNOWN_MEMBER_ID, response_member_id=MemberId(""))
        self.roster.remove(member)
        self.sessions.cancel(member.member_id)
        self.pending_sync.discard(member.member_id)
        invariant(
            member.join_caller is None and member.sync_caller is None,
            "I-36 a removed member still waits",
            member_id=member.member_id,
        )

    def remove_pending(self, member_id: MemberId) -> None:
        self.roster.pending.discard(member_id)
        self.sessions.cancel(member_id)

    # -- writing -------------------------------------------------------------------------------

    def entry(self, assignments: dict[MemberId, bytes]) -> Entry:
        """The group's entry with these assignments."""
        name = self.protocol_name
        invariant(name is not None or not self.roster, "I-27 members without a protocol")
        return Entry(ClassicGroupKey(self.group_id), self.record(assignments, name))

    def record(self, assignments: dict[MemberId, bytes], name: str | None) -> GroupMetadataValue:
        """The group's record with these assignments and that protocol."""
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
        """Write without a response."""
        if entry is not None:
            self.outbox.write(Write((entry,), is_applied=True))

    def reply_after(self, entry: Entry | None, caller: Caller, response: Any) -> None:
        """Respond when the entry is committed; without one, at once."""
        if entry is None:
            self.outbox.reply(caller, response)
        else:
            reply = Reply(caller.token, response)
            self.outbox.write(Write((entry,), (reply,), is_applied=True))

    def write_with_ticket(self, entry: Entry, what: AssignmentWrite | ReplacementWrite) -> Ticket:
        """Write; the outcome is handled in `on_written` or `on_refused`."""
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
