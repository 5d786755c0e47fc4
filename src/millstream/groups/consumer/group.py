"""A group of the consumer (next-generation) protocol, as the shard calls it.

Every call decides at most one `Write`; the shell appends it and passes its entries to `apply`
before the next call. A response that changes nothing goes out as a `Write` without entries: it
waits for earlier writes to be committed, because it may depend on them.
"""

from collections.abc import Callable, Sequence

from millstream.groups.consumer import classic_members, heartbeat, regexes
from millstream.groups.consumer import leave as leaving
from millstream.groups.consumer.commits import Committer, PartitionCheck, check_commit, check_fetch
from millstream.groups.consumer.core import REGEX_KEY, Core, NewMemberId, Timer
from millstream.groups.consumer.describe import describe
from millstream.groups.consumer.entries import group_tombstones
from millstream.groups.consumer.state import ConsumerGroupState, GroupState
from millstream.groups.consumer.topics import TopicsView
from millstream.groups.errors import GroupNotEmpty
from millstream.groups.records.entries import Entry
from millstream.groups.settings import GroupSettings
from millstream.model.ids import GroupId, MemberId
from millstream.shards.effects import Caller, Outbox
from millstream.wire.messages.consumer_group_describe import DescribedGroup
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest


class ConsumerGroup:
    """See the module."""

    __slots__ = ("_core", "group_id")

    def __init__(
        self,
        group_id: GroupId,
        outbox: Outbox,
        settings: GroupSettings,
        new_member_id: NewMemberId,
        *,
        topics: TopicsView,
        wall_ms: Callable[[], int],
    ) -> None:
        self.group_id = group_id
        self._core = Core(GroupState(group_id), outbox, settings, new_member_id, topics, wall_ms)

    # -- requests --------------------------------------------------------------------------------

    def heartbeat(
        self,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        now_ms: int,
        first: Sequence[Entry] = (),
    ) -> None:
        """ConsumerGroupHeartbeat.

        `first` are entries that come first in the same batch: those that
        `conversion.upgrade_entries` made for the first member of this protocol that joins a classic
        group. `adopt` has applied them to this group; applying them again changes nothing.
        """
        self._core.begin(now_ms)
        heartbeat.heartbeat(self._core, caller, request, tuple(first))

    def adopt(self, entries: Sequence[Entry], now_ms: int) -> None:
        """Apply entries that are not written yet to a group made only for this attempt."""
        self._core.begin(now_ms)
        for entry in entries:
            self._core.apply(entry)

    def join(self, caller: Caller, request: JoinGroupRequest, now_ms: int) -> None:
        """JoinGroup to this group, which has members; an empty one becomes a classic one first."""
        self._core.begin(now_ms)
        classic_members.join(self._core, caller, request)

    def sync(self, caller: Caller, request: SyncGroupRequest, now_ms: int) -> None:
        """SyncGroup."""
        self._core.begin(now_ms)
        classic_members.sync(self._core, caller, request)

    def classic_heartbeat(self, caller: Caller, request: HeartbeatRequest, now_ms: int) -> None:
        """Heartbeat."""
        self._core.begin(now_ms)
        classic_members.heartbeat(self._core, caller, request)

    def leave(self, caller: Caller, request: LeaveGroupRequest, now_ms: int) -> None:
        """LeaveGroup, also of an administrator for members of either protocol."""
        self._core.begin(now_ms)
        classic_members.leave(self._core, caller, request)

    def check_commit(self, committer: Committer) -> PartitionCheck:
        """Return the check for each partition of the commit; raise if all are refused."""
        return check_commit(self._core, committer)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise unless the member may fetch offsets."""
        check_fetch(self._core, member_id, member_epoch)

    def check_delete(self) -> None:
        """Raise GroupNotEmpty if the group has members."""
        if self._core.state.members:
            raise GroupNotEmpty

    # -- facts -----------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """As reported by ListGroups."""
        return self._core.state.group_state

    @property
    def epoch(self) -> int:
        """The group epoch."""
        return self._core.state.epoch

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self._core.state.members

    @property
    def member_count(self) -> int:
        """How many members it has."""
        return len(self._core.state.members)

    @property
    def downgrade_rebalances(self) -> bool:
        """Whether the classic group that this group became must start a rebalance at once.

        The group was converted if a classic group's record follows this group's tombstones.
        """
        return self._core.downgrade_rebalances

    @property
    def size_bytes(self) -> int:
        """What its members keep in memory, without their assignments."""
        return self._core.state.size_bytes

    def member_bytes(self, member_id: MemberId) -> int:
        """The part of one member; 0 if there is none."""
        member = self._core.state.members.get(member_id)
        return 0 if member is None else member.size_bytes

    def subscribed_topics(self) -> frozenset[str]:
        """The topics that any member subscribes to."""
        return self._core.state.subscribed_topics()

    def describe(self) -> DescribedGroup:
        """For ConsumerGroupDescribe."""
        return describe(self._core)

    def tombstones(self) -> list[Entry]:
        """What removes the group from the log."""
        state = self._core.state
        return group_tombstones(self.group_id, state.members, state.regexes)

    # -- the log ---------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """An entry of this group, read or just appended."""
        self._core.apply(entry)

    def on_loaded(self, now_ms: int) -> None:
        """The log has been applied: start the sessions."""
        self._core.begin(now_ms)

    def on_removed(self) -> None:
        """The group is deleted or has become a classic one. No request ever waits in it."""

    # -- time ------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `tick` has work to do; None while the group is loading."""
        return self._core.deadlines.next_ms()

    def tick(self, now_ms: int) -> None:
        """Fence members whose deadline has passed, or continue to resolve patterns."""
        core = self._core
        core.begin(now_ms)
        due = core.deadlines.take_all_due(now_ms)
        has_regex = any(timer is Timer.REGEX for timer, _ in due)
        expired = [one for one in due if one[0] is not Timer.REGEX]
        if leaving.fence_expired(core, expired):
            if has_regex:
                core.deadlines.set(REGEX_KEY, now_ms)
        elif has_regex:
            regexes.step(core)
