"""A group of the next-generation protocol, as the shard calls it.

Every call decides at most one `Write`; the shell appends it and hands its entries to `apply` before
the next call. An answer that changes nothing goes out as a `Write` without entries: it waits for
what was written before it, because it may tell of that.
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
from millstream.model.ids import GroupId
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

        `first` are entries that go before, in the same batch: what `conversion.upgraded` made for
        the first member of this protocol that comes to a classic group. They have been applied to
        this group by `adopt`; applying them again changes nothing.
        """
        self._core.begin(now_ms)
        heartbeat.heartbeat(self._core, caller, request, tuple(first))

    def adopt(self, entries: Sequence[Entry], now_ms: int) -> None:
        """Take entries over that are not written yet, into a group made for this attempt alone."""
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

    def check_commit(self, who: Committer) -> PartitionCheck:
        """What each partition of the commit is to be checked with; raises if all are refused."""
        return check_commit(self._core, who)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises unless offsets may be fetched so."""
        check_fetch(self._core, member_id, member_epoch)

    def check_delete(self) -> None:
        """Raises GroupNotEmpty."""
        if self._core.state.members:
            raise GroupNotEmpty

    # -- facts -----------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """As ListGroups tells it."""
        return self._core.state.told_state

    @property
    def epoch(self) -> int:
        """Of the group."""
        return self._core.state.epoch

    @property
    def is_empty(self) -> bool:
        """It has no members."""
        return not self._core.state.members

    @property
    def member_count(self) -> int:
        """How many members it has."""
        return len(self._core.state.members)

    @property
    def downgrade_rebalances(self) -> bool:
        """Whether the classic group that this one became has to begin a rebalance at once.

        It became one if a classic group's record comes after this group's tombstones.
        """
        return self._core.downgrade_rebalances

    def subscribed_topics(self) -> frozenset[str]:
        """What any member subscribes to."""
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

    def loaded(self, now_ms: int) -> None:
        """All that the log has was applied: sessions begin."""
        self._core.begin(now_ms)

    def removed(self) -> None:
        """The group is deleted or has become a classic one. Nobody ever waits in it."""

    # -- time ------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None while it is loading."""
        return self._core.deadlines.next_ms()

    def tick(self, now_ms: int) -> None:
        """Fence members that are late, or go on with resolving patterns."""
        core = self._core
        core.begin(now_ms)
        due = core.deadlines.take_due(now_ms)
        has_regex = any(timer is Timer.REGEX for timer, _ in due)
        late = [one for one in due if one[0] is not Timer.REGEX]
        if leaving.fence_late(core, late):
            if has_regex:
                core.deadlines.set(REGEX_KEY, now_ms)
        elif has_regex:
            regexes.step(core)
