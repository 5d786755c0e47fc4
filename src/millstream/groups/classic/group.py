"""One group of the classic protocol, as the shard calls it.

Requests are answered through the outbox, or refused by raising. A write goes to the outbox as a
`Write` whose entries are in the group's state already (`is_applied`); the outcome of one with a
ticket is reported by `on_written` or `on_refused`. All entries have the group's id in their key, so
the shard knows to which group a ticket belongs.
"""

from collections.abc import Callable, Iterator

from millstream.groups.classic import (
    commits,
    describe,
    join_group,
    leave_group,
    loader,
    rebalance,
    static,
    sync_group,
)
from millstream.groups.classic.commits import Committer
from millstream.groups.classic.core import AssignmentWrite, Core
from millstream.groups.classic.members import Member
from millstream.groups.classic.states import HEARTBEAT_ERRORS, Event, GroupState
from millstream.groups.classic.subscriptions import CONSUMER_PROTOCOL
from millstream.groups.errors import IllegalGeneration, UnknownMember
from millstream.groups.records.values import GroupMetadataValue
from millstream.groups.settings import ClassicSettings
from millstream.model.errors import OperatingError
from millstream.model.ids import GenerationId, GroupId, InstanceId, MemberId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller, Outbox, Ticket
from millstream.shards.errors import CoordinatorNotAvailable, RequestRefused
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_groups import DescribedGroup
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest

__all__ = ["ClassicGroup", "Committer", "GroupState"]


class ClassicGroup:
    """A group whose members compute the assignment."""

    __slots__ = ("_core",)

    def __init__(
        self,
        group_id: GroupId,
        outbox: Outbox,
        settings: ClassicSettings,
        new_member_id: Callable[[str], MemberId],
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        """An empty group. `wall_ms` is the time of day, for the state timestamps in records."""
        self._core = Core(group_id, outbox, settings, new_member_id, wall_ms=wall_ms)

    # -- requests ------------------------------------------------------------------------------

    def join(self, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
        """Replies JoinGroupResponse when all members have joined."""
        self._core.write(join_group.join(self._core, caller, request, now_ms))
        self._core.check()

    def sync(self, caller: Caller, request: SyncGroupRequest, now_ms: int) -> None:
        """Replies SyncGroupResponse when the assignment is committed."""
        sync_group.sync(self._core, caller, request, now_ms)
        self._core.check()

    def heartbeat(self, caller: Caller, request: HeartbeatRequest, now_ms: int) -> None:
        """Replies HeartbeatResponse."""
        core = self._core
        if core.state is GroupState.DEAD:
            raise CoordinatorNotAvailable
        instance = request.group_instance_id
        member = core.check_member(
            MemberId(request.member_id), None if instance is None else InstanceId(instance)
        )
        if request.generation_id != core.generation_id:
            raise IllegalGeneration
        core.touch(member, now_ms)
        core.outbox.reply(caller, HeartbeatResponse(error_code=HEARTBEAT_ERRORS[core.state]))

    def leave(self, caller: Caller, request: LeaveGroupRequest, now_ms: int) -> None:
        """Replies LeaveGroupResponse with a result for each member."""
        leave_group.leave(self._core, caller, request, now_ms)
        self._core.check()

    def check_commit(self, committer: Committer, now_ms: int) -> None:
        """Raise unless the member may commit offsets now (I-28); counts as its heartbeat."""
        commits.check_commit(self._core, committer, now_ms)

    def check_fetch(self) -> None:
        """Raise unless offsets may be fetched."""
        commits.check_fetch(self._core)

    def check_offset_delete(self) -> None:
        """Raise unless offsets of topics without subscribers may be deleted."""
        commits.check_offset_delete(self._core)

    def check_delete(self) -> None:
        """Raise unless the group may be deleted."""
        commits.check_delete(self._core)

    def describe(self) -> DescribedGroup:
        """One group of DescribeGroupsResponse."""
        return describe.describe(self._core)

    # -- outcome of writes ---------------------------------------------------------------------

    def on_written(self, ticket: Ticket, now_ms: int) -> None:
        """The entries are committed."""
        what = self._core.writes.pop(ticket, None)
        if isinstance(what, AssignmentWrite):
            sync_group.on_written(self._core, ticket, what, now_ms)
        elif what is not None:
            static.on_written(self._core, what, now_ms)
        self._core.check()

    def on_refused(self, ticket: Ticket, error: OperatingError, now_ms: int) -> None:
        """The log refused the entries; waiting callers are answered with `error`."""
        what = self._core.writes.pop(ticket, None)
        if isinstance(what, AssignmentWrite):
            self._core.write(sync_group.on_refused(self._core, ticket, error, now_ms))
        elif what is not None:
            static.on_refused(self._core, what, error, now_ms)
        self._core.check()

    # -- time ----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; None: never."""
        core = self._core
        times = (core.join_deadline_ms, core.sync_deadline_ms, core.sessions.next_ms())
        return min((one for one in times if one is not None), default=None)

    def tick(self, now_ms: int) -> None:
        """Handle all deadlines that have passed, in their order."""
        core = self._core
        while (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            if core.join_deadline_ms == due_ms:
                entry = rebalance.expire_join(core, now_ms)
            elif core.sync_deadline_ms == due_ms:
                entry = leave_group.expire_pending_sync(core, now_ms)
            else:
                member_id = core.sessions.take_due(now_ms)
                invariant(member_id is not None, "I-30 a session that is over is not found")
                entry = leave_group.expire_session(core, member_id or MemberId(""), now_ms)
            core.write(entry)
        invariant(due_ms is None or due_ms > now_ms, "I-30 a deadline has passed", due_ms=due_ms)
        core.check()

    # -- loading, conversion, end --------------------------------------------------------------

    def apply_metadata(self, value: GroupMetadataValue) -> None:
        """Apply a record of the group, read from the log or made by a conversion."""
        loader.apply_metadata(self._core, value)

    def on_loaded(self, now_ms: int) -> None:
        """All records have been applied: start the sessions."""
        self._core.write(loader.on_loaded(self._core, now_ms))
        self._core.check()

    def start_rebalance(self, reason: str, now_ms: int) -> None:
        """After a conversion: the members keep their partitions and rejoin with this protocol."""
        if self._core.state is GroupState.STABLE:
            self._core.write(rebalance.prepare(self._core, Event.CONVERTED, reason, now_ms))
        self._core.check()

    def as_record(self) -> GroupMetadataValue:
        """The group as it would be written now, with each member's assignment; for a conversion."""
        return loader.as_record(self._core)

    def request_rejoin(self) -> None:
        """The group is converted: members with waiting requests must rejoin the new one."""
        for member in self._core.roster:
            response_member_id, code = member.member_id, ErrorCode.REBALANCE_IN_PROGRESS
            self._core.refuse_pending(member, code, response_member_id=response_member_id)

    def on_removed(self, refusal: RequestRefused | None = None) -> None:
        """The group is deleted or converted: answer waiting requests with `refusal`."""
        core = self._core
        for member in list(core.roster):
            for caller in (core.roster.take_join(member), member.sync_caller):
                if caller is not None:
                    core.outbox.reply(caller, refusal or UnknownMember())
            member.sync_caller = None
            core.roster.remove(member)
            core.sessions.cancel(member.member_id)
        for member_id in list(core.roster.pending):
            core.remove_pending(member_id)
        core.join_deadline_ms = core.sync_deadline_ms = None
        core.pending_sync.clear()
        core.writes.clear()
        core.move(Event.REMOVED)
        core.check()

    def waiting_tokens(self) -> Iterator[object]:
        """Tokens of all waiting requests: the shell answers them when the shard is unloaded."""
        for member in self._core.roster:
            for caller in (member.join_caller, member.sync_caller):
                if caller is not None:
                    yield caller.token

    # -- properties ----------------------------------------------------------------------------

    @property
    def group_id(self) -> GroupId:
        return self._core.group_id

    @property
    def state(self) -> GroupState:
        return self._core.state

    @property
    def state_since_ms(self) -> int | None:
        """Time of day; None if the log does not have it."""
        return self._core.state_since_ms

    @property
    def generation_id(self) -> GenerationId:
        return self._core.generation_id

    @property
    def protocol_type(self) -> str | None:
        """None: no member has ever joined; the group has only offsets."""
        return self._core.protocol_type

    @property
    def protocol_name(self) -> str | None:
        return self._core.protocol_name

    @property
    def is_consumer(self) -> bool:
        """Its members are consumers, so their subscribed topics are known."""
        return self._core.protocol_type == CONSUMER_PROTOCOL

    @property
    def is_simple(self) -> bool:
        """It only stores offsets; no member has ever joined or is about to."""
        core = self._core
        is_empty = core.state is GroupState.EMPTY
        return core.protocol_type is None and is_empty and not core.roster.pending

    @property
    def leader_id(self) -> MemberId | None:
        return self._core.roster.leader_id

    @property
    def members(self) -> list[Member]:
        """Read-only, for conversion."""
        return list(self._core.roster)

    @property
    def reason(self) -> str:
        """Why the last rebalance started, for people."""
        return self._core.reason

    @property
    def size_bytes(self) -> int:
        """What its members keep in memory."""
        return self._core.roster.size_bytes

    def member_bytes(self, member_id: MemberId) -> int:
        """The part of one member; 0 if there is none."""
        member = self._core.roster.get(member_id)
        return 0 if member is None else member.size_bytes

    def has_member(self, member_id: MemberId) -> bool:
        return member_id in self._core.roster

    def subscribed_topics(self) -> frozenset[str] | None:
        """None: they are unknown."""
        return self._core.subscribed_topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Consumers with an unreadable subscription may subscribe to any topic."""
        topics = self._core.subscribed_topics
        return self.is_consumer if topics is None else topic in topics
