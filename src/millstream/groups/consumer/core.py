"""What the decisions of a group share: its state, its timers, and the outbox.

Timers are set when entries are applied, not when they are decided: a write that the log refuses
leaves no trace, and a new coordinator sets the same timers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from millstream.groups.consumer.member import (
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
)
from millstream.groups.consumer.regex_job import RegexJob
from millstream.groups.consumer.state import GroupState
from millstream.groups.consumer.target import choose_assignor
from millstream.groups.consumer.topics import TopicsView
from millstream.groups.deadlines import Deadlines
from millstream.groups.records import keys
from millstream.groups.records.entries import Entry
from millstream.groups.records.values import (
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millstream.groups.settings import GroupSettings
from millstream.model.ids import MemberId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller, Outbox, Reply, Write

NewMemberId = Callable[[str], MemberId]

RETRY_MS: Final = 500
"""Before a write that no request asked for is retried after the log refused it; as in Kafka."""


class Timer(Enum):
    """What a deadline is for; all but the last belong to one member."""

    SESSION = auto()
    REBALANCE = auto()
    """To revoke partitions."""
    JOIN = auto()
    """For a classic member to rejoin."""
    SYNC = auto()
    """For a classic member to fetch its assignment."""
    REGEX = auto()


REGEX_KEY: Final = (Timer.REGEX, MemberId(""))
MEMBER_TIMERS: Final = (Timer.SESSION, Timer.REBALANCE, Timer.JOIN, Timer.SYNC)


@dataclass(slots=True)
class Core:
    """See the module."""

    state: GroupState
    outbox: Outbox
    settings: GroupSettings
    new_member_id: NewMemberId
    topics: TopicsView
    wall_clock_ms: Callable[[], int]
    now_ms: int = 0
    """The time of the call that is being decided or applied."""
    deadlines: Deadlines[tuple[Timer, MemberId]] = field(default_factory=Deadlines)
    target_at_ms: int | None = None
    """When this coordinator computed the last target."""
    hashed_version: int | None = None
    """The version of the topics at which the group's hash was last found up to date."""
    resolved_at_ms: int | None = None
    """When this coordinator last resolved the patterns, and at which version of the topics."""
    resolved_version: int = -1
    regex_job: RegexJob | None = None
    downgrade_rebalances: bool = True
    """Whether the classic group that this one is becoming has to rebalance at once."""

    # -- output ----------------------------------------------------------------------------------

    def answer(self, caller: Caller, response: Any, entries: Sequence[Entry] = ()) -> None:
        """Respond when the entries are committed; without any, when all earlier ones are."""
        self.outbox.write(Write(tuple(entries), (Reply(caller.token, response),)))

    def write(self, entries: Sequence[Entry]) -> None:
        """Write without a response."""
        self.outbox.write(Write(tuple(entries)))

    def assignor_for(self, leaving: ConsumerMember | None, joining: ConsumerMember | None) -> str:
        """The assignor of the group after that change."""
        offered = self.settings.consumer_assignors
        return choose_assignor(self.state.preferred_assignor(leaving, joining), offered)

    # -- input -----------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Start a call. The first call makes a group live that was not loaded from the log."""
        self.now_ms = now_ms
        if not self.state.is_live:
            self.became_live()

    def became_live(self) -> None:
        """The log has been read: every member's session starts now."""
        self.state.became_live()
        for member in self.state.members.values():
            self.touch(member)
            if member.classic is None:
                self._watch_revocation(member)

    def apply(self, entry: Entry) -> None:
        """Apply an entry to the state, and set the timers that follow from it."""
        state = self.state
        state.apply(entry)
        if not state.is_live:
            return
        match entry:
            case (keys.ConsumerMemberKey(_, member_id), None):
                self._forget(member_id)
            case (keys.ConsumerMemberKey(_, member_id), _):
                if state.members[member_id].classic is None:
                    self.deadlines.cancel((Timer.JOIN, member_id))
                    self.deadlines.cancel((Timer.SYNC, member_id))
                if self.deadlines.of((Timer.SESSION, member_id)) is None:
                    self.touch(state.members[member_id])
            case (keys.CurrentAssignmentKey(_, member_id), value) if value is not None:
                member = state.members[member_id]
                if member.classic is None:
                    self._watch_revocation(member)
            case (
                keys.TargetAssignmentKey(),
                ConsumerGroupTargetAssignmentMetadataValue(assignment_timestamp=wall_ms),
            ):
                # Without a timestamp it is the assignment of the classic group, not one that was
                # computed here: members of the consumer protocol need not wait for theirs.
                self.target_at_ms = self.now_ms if wall_ms else None
            case (keys.RegularExpressionKey(), ConsumerGroupRegularExpressionValue() as value):
                self.resolved_at_ms, self.resolved_version = self.now_ms, value.version
        invariant(
            len(state.targets) <= len(state.members) + 1 or not state.is_live,
            "I-27 targets of members that are gone",
            group=state.group_id,
            targets=len(state.targets),
            members=len(state.members),
        )

    def touch(self, member: ConsumerMember) -> None:
        """The member is alive: restart its session."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self.settings.consumer_session_timeout_of(self.state.group_id)
        self.deadlines.set((Timer.SESSION, member.member_id), self.now_ms + timeout_ms)

    def _watch_revocation(self, member: ConsumerMember) -> None:
        key = (Timer.REBALANCE, member.member_id)
        has_gone = member.member_epoch == STATIC_LEAVING_EPOCH
        if member.state is MemberState.UNREVOKED_PARTITIONS and not has_gone:
            self.deadlines.set(key, self.now_ms + member.rebalance_timeout_ms)
        else:
            self.deadlines.cancel(key)

    def _forget(self, member_id: MemberId) -> None:
        for timer in MEMBER_TIMERS:
            self.deadlines.cancel((timer, member_id))
