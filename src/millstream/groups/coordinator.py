"""The group coordinator of one broker: passes every group request to the shard that decides it.

Handlers call it, and it calls the shard of the group through `ShardCoordinator.submit`. Each
request is answered through the caller's token, when what it rests on is committed.

Commits are gathered: those that arrive in one iteration of the event loop are appended as one batch
per partition (`shards/coordinator.py`). Requests that only read what is committed, and heartbeats,
may be decided while commits are gathered; all others find them in the log.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.groups.counts import Counts
from millstream.groups.offsets.fetch_request import OffsetFetch
from millstream.groups.records.entries import encode
from millstream.groups.shard import Shard, is_gatherable
from millstream.model.ids import GroupId
from millstream.runtime.clock import Clock
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator
from millstream.runtime.timers import Timers
from millstream.shards.context import ShardDependencies, ShardSettings, Timestamps
from millstream.shards.coordinator import ShardCoordinator
from millstream.shards.early_requests import Awaited, EarlyRequests
from millstream.shards.effects import Caller, Outbox
from millstream.shards.errors import RequestRefused
from millstream.shards.led_shard import LedShard
from millstream.shards.machine import ShardCall
from millstream.storage.ports import PartitionLog
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.sync_group import SyncGroupRequest


@dataclass(slots=True, kw_only=True)
class GroupDependencies:
    """Borrowed from the broker."""

    clock: Clock
    timers: Timers
    scheduler: CooperativeScheduler
    settings: ShardSettings
    new_shard: Callable[[int, Outbox], Shard]
    partition_of: Callable[[str], int]
    """The partition of the offsets topic that a group is in."""
    awaited: Awaited
    """The partition whose shard a request of a group can wait for."""
    at_iteration_end: Callable[[Callable[[], None]], object]
    """Calls back once, when all requests that arrived together have been handled."""


class GroupCoordinator:
    """All requests raise NotCoordinator or CoordinatorLoading; everything else is a reply."""

    def __init__(self, dependencies: GroupDependencies) -> None:
        self._partition_of = dependencies.partition_of
        self._early = EarlyRequests(dependencies.timers, dependencies.awaited)
        self._dropped_counts = Counts()
        """Of shards that are not led here any more."""
        self.shards = ShardCoordinator(
            ShardDependencies(
                name="groups",
                clock=dependencies.clock,
                timers=dependencies.timers,
                scheduler=dependencies.scheduler,
                settings=dependencies.settings,
                new_shard=dependencies.new_shard,
                encode=encode,
                is_gatherable=is_gatherable,
                at_iteration_end=dependencies.at_iteration_end,
                on_active=self._early.release,
                on_dropped=lambda shard: self._dropped_counts.add(shard.counts),
            )
        )

    def _submit(
        self,
        group_id: str,
        call: ShardCall,
        caller: Caller,
        request: Any,
        *,
        is_gathered: bool,
        may_wait: bool,
    ) -> None:
        """Pass it to the shard; with `may_wait` the request waits until the shard is active."""
        index = self._partition_of(group_id)
        try:
            self.shards.submit(index, call, caller, request, is_gathered=is_gathered)
        except RequestRefused as error:

            def retry() -> None:
                index = self._partition_of(group_id)
                self.shards.submit(index, call, caller, request, is_gathered=is_gathered)

            if not may_wait or not self._early.wait(group_id, caller, retry, error):
                raise

    # -- leadership and metadata -------------------------------------------------------------

    def leadership_lost(self, log: PartitionLog) -> None:
        """Requests that wait for the partition are refused, those of its groups too."""
        self.shards.leadership_lost(log)
        self._early.release(log.partition.partition)

    def on_metadata_changed(self) -> None:
        """Called before `topics_changed_steps`: other brokers may lead the partitions now."""
        self._early.release_all()

    # -- members -----------------------------------------------------------------------------

    def join_group(self, caller: Caller, request: JoinGroupRequest) -> None:
        """Replies JoinGroupResponse when all members have joined."""
        self._submit(
            request.group_id, Shard.join_group, caller, request, is_gathered=False, may_wait=True
        )

    def sync_group(self, caller: Caller, request: SyncGroupRequest) -> None:
        """Replies SyncGroupResponse when the leader's assignment is committed."""
        self._submit(
            request.group_id, Shard.sync_group, caller, request, is_gathered=False, may_wait=True
        )

    def heartbeat(self, caller: Caller, request: HeartbeatRequest) -> None:
        """Replies HeartbeatResponse."""
        self._submit(
            request.group_id, Shard.heartbeat, caller, request, is_gathered=True, may_wait=False
        )

    def leave_group(self, caller: Caller, request: LeaveGroupRequest) -> None:
        """Replies LeaveGroupResponse."""
        self._submit(
            request.group_id, Shard.leave_group, caller, request, is_gathered=False, may_wait=True
        )

    def consumer_group_heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest
    ) -> None:
        """Replies ConsumerGroupHeartbeatResponse."""
        self._submit(
            request.group_id,
            Shard.consumer_group_heartbeat,
            caller,
            request,
            is_gathered=False,
            may_wait=True,
        )

    # -- offsets -----------------------------------------------------------------------------

    def offset_commit(self, caller: Caller, request: OffsetCommitRequest) -> None:
        """Replies OffsetCommitResponse when the offsets are committed to the log."""
        self._submit(
            request.group_id, Shard.offset_commit, caller, request, is_gathered=True, may_wait=True
        )

    def offset_fetch(self, caller: Caller, request: OffsetFetch) -> None:
        """Replies OffsetFetchResponseGroup."""
        self._submit(
            request.group.group_id,
            Shard.offset_fetch,
            caller,
            request,
            is_gathered=True,
            may_wait=request.may_wait,
        )

    def offset_delete(self, caller: Caller, request: OffsetDeleteRequest) -> None:
        """Replies OffsetDeleteResponse."""
        self._submit(
            request.group_id, Shard.offset_delete, caller, request, is_gathered=False, may_wait=True
        )

    # -- administration ----------------------------------------------------------------------

    def delete_group(self, caller: Caller, group_id: GroupId) -> None:
        """Replies DeletableGroupResult."""
        self._submit(
            group_id, Shard.delete_group, caller, group_id, is_gathered=False, may_wait=False
        )

    def describe_group(self, caller: Caller, group_id: GroupId) -> None:
        """Replies describe_groups.DescribedGroup."""
        self._submit(
            group_id, Shard.describe_group, caller, group_id, is_gathered=True, may_wait=False
        )

    def consumer_group_describe(self, caller: Caller, group_id: GroupId) -> None:
        """Replies consumer_group_describe.DescribedGroup."""
        self._submit(
            group_id,
            Shard.consumer_group_describe,
            caller,
            group_id,
            is_gathered=True,
            may_wait=False,
        )

    def list_groups(self, caller: Caller, request: ListGroupsRequest, *, index: int) -> None:
        """Replies list[ListedGroup]: those of one partition of the offsets topic."""
        self.shards.submit(index, Shard.list_groups, caller, request, is_gathered=True)

    # -- topics and counts -------------------------------------------------------------------

    def topics_changed_steps(
        self, names: Collection[str], deleted: Sequence[str]
    ) -> StepGenerator[None]:
        """Notify every shard, in steps, of created, changed and deleted topics."""

        def changed(led: LedShard[Shard], time: Timestamps) -> None:
            led.machine.on_topics_changed(names, now_ms=time.now_ms, wall_ms=time.wall_ms)
            if deleted:
                led.machine.partitions_deleted(deleted)
                led.expire_soon()

        def once_loaded(shard: Shard) -> None:
            # Everything else is decided on the topics as they are then.
            shard.partitions_deleted(sorted(deleted))

        return self.shards.call_each_steps(changed, once_loaded=once_loaded if deleted else None)

    def machine_counts(self) -> Counts:
        """The counts of all shards, including those that were led here once."""
        total = Counts()
        total.add(self._dropped_counts)
        for led in self.shards.active:
            total.add(led.machine.counts)
        return total

    def stop(self) -> None:
        """Cancel the timers; no request is answered any more."""
        self._early.stop()
        self.shards.stop()
