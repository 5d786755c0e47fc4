"""One partition of the offsets topic: all groups and committed offsets in it, as a pure machine.

A call decides and leaves effects in the outbox (`effects`); the shell takes them out before the
next call. The shell reports what happens to a write:

- `on_appended(write, last_offset)`: the batch is in the log. Entries that the machine has not
  applied itself are applied now, so the next decision sees them.
- `on_high_watermark(high_watermark)`: OffsetFetch returns the offsets below it from now on. Then
  the replies of the writes below it are sent, and `on_written(write)` is called for each.
- or `on_refused(write, error)`: the log refused it. Nothing has changed; the shell answers the
  replies of the write with the error.

So a decision may depend on what is not committed yet: if that is lost with the leadership, this
decision, which is behind it in the log, is lost too.

Writes that have only offsets of ordinary commits (`is_gatherable`) may wait for others of their
kind and be written as one batch, in their order, as long as only `offset_commit`, `offset_fetch`,
`heartbeat` and reads are called in between; before any other call they are written.

Requests that name several groups are split by the caller, group by group, because their groups are
in different shards: `offset_fetch`, `delete_group`, `describe_group` and `consumer_group_describe`
take one group of the request and reply with one group of the response.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from typing_extensions import Buffer

from millstream.groups import admin, kinds, offset_commit, offset_fetch, replay, routing
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.consumer.topics import TopicsView
from millstream.groups.counts import Counts
from millstream.groups.expiry import ExpirySweep
from millstream.groups.memory import GroupMemory
from millstream.groups.offset_commit import is_gatherable
from millstream.groups.offsets.fetch_request import OffsetFetch
from millstream.groups.offsets.loader import LogReader
from millstream.groups.offsets.packed import offset_of
from millstream.groups.parts import Group, NewMemberId, Parts
from millstream.groups.records.entries import Entry, Producer
from millstream.groups.records.keys import OffsetKey
from millstream.groups.records.values import GroupMetadataValue
from millstream.groups.settings import GroupSettings
from millstream.groups.table import GroupTable
from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import NO_PRODUCER_ID, GroupId, Offset, ProducerId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller, Outbox, Write
from millstream.shards.errors import RequestRefused
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

__all__ = ["Shard", "is_gatherable"]

Membership = Callable[[Parts, Caller, Any, int], None]


class Shard:
    """All groups of one partition of the offsets topic."""

    def __init__(
        self,
        index: int,
        *,
        settings: GroupSettings,
        outbox: Outbox,
        new_member_id: NewMemberId,
        topics: TopicsView,
        memory: GroupMemory | None = None,
    ) -> None:
        """`memory` is what the groups of all shards share."""
        self.index = index
        groups = GroupTable[Group](memory)
        self._parts = Parts(settings, outbox, new_member_id, topics, groups)
        self._sweep = ExpirySweep(self._parts)
        self._reader = LogReader(self._parts.offsets)
        self._is_live = False

    # -- requests; now_ms is monotonic, wall_ms is the time of day ---------------------------

    def join_group(
        self, caller: Caller, request: JoinGroupRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies JoinGroupResponse when all members have joined."""
        self._parts.wall_ms = wall_ms
        self._member(routing.join_group, caller, request, now_ms)

    def sync_group(
        self, caller: Caller, request: SyncGroupRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies SyncGroupResponse when the leader's assignment is committed."""
        self._parts.wall_ms = wall_ms
        self._member(routing.sync_group, caller, request, now_ms)

    def heartbeat(
        self, caller: Caller, request: HeartbeatRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies HeartbeatResponse."""
        self._parts.wall_ms = wall_ms
        self._member(routing.heartbeat, caller, request, now_ms)

    def leave_group(
        self, caller: Caller, request: LeaveGroupRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies LeaveGroupResponse."""
        self._parts.wall_ms = wall_ms
        self._member(routing.leave_group, caller, request, now_ms)

    def consumer_group_heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies ConsumerGroupHeartbeatResponse."""
        self._parts.wall_ms = wall_ms
        self._member(routing.consumer_group_heartbeat, caller, request, now_ms)

    def offset_commit(
        self, caller: Caller, request: OffsetCommitRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies OffsetCommitResponse. Every topic has its name; from version 10 its id too."""
        parts = self._parts
        parts.wall_ms = wall_ms
        try:
            offset_commit.offset_commit(parts, caller, request, now_ms=now_ms)
        except RequestRefused as refused:
            parts.outbox.reply(caller, without_frames(refused))

    def txn_offset_commit(
        self, caller: Caller, request: TxnOffsetCommitRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies TxnOffsetCommitResponse."""
        parts = self._parts
        parts.wall_ms = wall_ms
        self._answer(
            caller, lambda: offset_commit.txn_offset_commit(parts, caller, request, now_ms=now_ms)
        )

    def offset_fetch(
        self, caller: Caller, request: OffsetFetch, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies OffsetFetchResponseGroup. Every topic has its name; from version 10 its id too.

        All offsets of the group where `topics` is None, each topic with its name.
        """
        del now_ms, wall_ms
        parts, group, require_stable = self._parts, request.group, request.require_stable
        self._answer(
            caller,
            lambda: offset_fetch.offset_fetch(parts, caller, group, require_stable=require_stable),
        )

    def offset_delete(
        self, caller: Caller, request: OffsetDeleteRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies OffsetDeleteResponse."""
        del now_ms, wall_ms
        self._answer(caller, lambda: admin.offset_delete(self._parts, caller, request))

    def delete_group(self, caller: Caller, group_id: GroupId, *, now_ms: int, wall_ms: int) -> None:
        """Replies DeletableGroupResult."""
        del now_ms, wall_ms
        self._answer(caller, lambda: admin.delete_group(self._parts, caller, group_id))

    def list_groups(
        self, caller: Caller, request: ListGroupsRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies list[ListedGroup]."""
        del now_ms, wall_ms
        self._answer(caller, lambda: admin.list_groups(self._parts, caller, request))

    def describe_group(
        self, caller: Caller, group_id: GroupId, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies describe_groups.DescribedGroup."""
        del now_ms, wall_ms
        self._answer(caller, lambda: admin.describe_group(self._parts, caller, group_id))

    def consumer_group_describe(
        self, caller: Caller, group_id: GroupId, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies consumer_group_describe.DescribedGroup."""
        del now_ms, wall_ms
        self._answer(caller, lambda: admin.consumer_group_describe(self._parts, caller, group_id))

    def _member(self, decide: Membership, caller: Caller, request: Any, now_ms: int) -> None:
        self._answer(caller, lambda: decide(self._parts, caller, request, now_ms))
        self._parts.groups.arm(GroupId(request.group_id))

    def _answer(self, caller: Caller, decide: Callable[[], None]) -> None:
        """Decide; a refusal is the reply."""
        try:
            decide()
        except RequestRefused as refused:
            self._parts.outbox.reply(caller, without_frames(refused))

    # -- outcome of writes -------------------------------------------------------------------

    def on_appended(self, write: Write, last_offset: Offset, *, now_ms: int, wall_ms: int) -> None:
        """The write is in the log; its last entry is at `last_offset`."""
        parts = self._parts
        parts.wall_ms = wall_ms
        at = last_offset - len(write.entries)
        producer_id = NO_PRODUCER_ID if write.producer is None else write.producer.producer_id
        of_groups = []
        for entry in write.entries:
            at += 1
            if isinstance(entry.key, OffsetKey):
                replay.apply_offset(parts, entry, Offset(at), producer_id=producer_id)
                if entry.value is not None:
                    parts.counts.offset_commits += 1
                    replay.add_simple(parts, entry.key.group_id)
            elif write.is_applied:
                self._count_generation(entry)
            else:
                of_groups.append(entry)
        if of_groups:
            replay.apply_written(parts, of_groups, now_ms)
        elif write.ticket is None and not write.is_applied:
            return  # only offsets: no group's deadline has changed since the request
        self._arm(write)
        chain = parts.chains.pop(write.ticket, None) if write.ticket is not None else None
        if chain is not None:
            self._answer(chain.caller, chain.continuation)
            self._arm(write)

    def _count_generation(self, entry: Entry) -> None:
        """A classic group writes its record with members when a rebalance is complete."""
        if isinstance(entry.value, GroupMetadataValue) and entry.value.members:
            self._parts.counts.completed_rebalances += 1

    def on_refused(self, write: Write, error: OperatingError, *, now_ms: int) -> None:
        """The log refused it; the shell answers its replies."""
        parts = self._parts
        chain = parts.chains.pop(write.ticket, None) if write.ticket is not None else None
        if chain is not None:
            parts.outbox.reply(chain.caller, error)
            return
        group = self._group_of(write)
        for entry in write.entries:
            parts.unwritten_groups.pop(entry.key.group_id, None)
        if isinstance(group, ClassicGroup) and write.ticket is not None:
            group.on_refused(write.ticket, error, now_ms)
        self._arm(write)

    def on_written(self, write: Write, *, now_ms: int) -> None:
        """The high watermark has passed it."""
        if write.ticket is None:
            return
        group = self._group_of(write)
        if isinstance(group, ClassicGroup):
            group.on_written(write.ticket, now_ms)
            self._arm(write)

    def on_high_watermark(self, high_watermark: Offset) -> None:
        """Everything below it is committed."""
        self._parts.offsets.on_high_watermark(high_watermark)

    def _group_of(self, write: Write) -> Group | None:
        return self._parts.groups.get(write.entries[0].key.group_id) if write.entries else None

    def _arm(self, write: Write) -> None:
        for group_id in {entry.key.group_id for entry in write.entries}:
            self._parts.groups.arm(group_id)

    # -- loading and unloading ---------------------------------------------------------------

    def apply(self, entry: Entry, offset: Offset, producer: Producer | None = None) -> None:
        """Apply an entry that was read from the log."""
        invariant(not self._is_live, "I-29 a record is read after all were", offset=offset)
        if isinstance(entry.key, OffsetKey):
            producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
            replay.apply_offset(self._parts, entry, offset, producer_id=producer_id)
        else:
            replay.apply_group(self._parts, entry)

    def load(self, records: Buffer) -> None:
        """Whole batches of the log, in order; like `apply` of each entry, but much faster.

        The amount per call bounds how long other requests wait. Raises MalformedRecords and
        UnreadableEntry.
        """
        invariant(not self._is_live, "I-29 records are read after all were")
        for decoded in self._reader.read(records):
            if isinstance(decoded.what, Entry):
                replay.apply_group(self._parts, decoded.what)

    @property
    def skipped_count(self) -> int:
        """Records that `load` has skipped because their type is unknown."""
        return self._reader.skipped_count

    def transaction_ended(
        self, producer_id: ProducerId, offset: Offset, *, is_commit: bool
    ) -> None:
        """A transaction marker, read from the log or just appended to it at this offset."""
        self._parts.offsets.end_transaction(producer_id, offset, is_commit=is_commit)

    def on_loaded(self, *, now_ms: int, wall_ms: int) -> None:
        """The whole log has been applied: start the sessions."""
        parts = self._parts
        parts.wall_ms = wall_ms
        self._is_live = True
        for group_id in parts.offsets.group_ids():
            replay.add_simple(parts, group_id)
        for group in list(parts.groups.values()):
            group.on_loaded(now_ms)
            parts.groups.arm(group.group_id)
        parts.counts = Counts()

    def unload(self) -> list[object]:
        """The tokens of all waiting callers that are not in a write; the machine is dead."""
        parts = self._parts
        tokens = [chain.caller.token for chain in parts.chains.values()]
        for group in parts.groups.values():
            tokens.extend(kinds.waiting_tokens(group))
        parts.chains.clear()
        parts.groups.clear()
        return tokens

    # -- time and topics ---------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When to call `tick`."""
        return self._parts.groups.next_deadline_ms()

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        """Handle expired sessions and rebalance timeouts."""
        self._parts.wall_ms = wall_ms
        for group in self._parts.groups.due(now_ms):
            group.tick(now_ms)

    def expire(self, *, now_ms: int, wall_ms: int) -> bool:  # noqa: ARG002 - as `tick`
        """Do a step of removing what has expired; True if there is more to do now."""
        self._parts.wall_ms = wall_ms
        return self._sweep.step()

    def on_topics_changed(
        self,
        names: Iterable[str],  # noqa: ARG002 - see below
        *,
        now_ms: int,  # noqa: ARG002
        wall_ms: int,
    ) -> None:
        """Topics that were created, deleted or got partitions.

        Groups compare the version of the topics when a member sends a request, so they notice by
        themselves, and a group without requests needs no new assignment.
        """
        self._parts.wall_ms = wall_ms

    def partitions_deleted(self, topics: Iterable[str]) -> None:
        """Remove the offsets of deleted topics; called after `topics` has changed."""
        self._sweep.topics_deleted(topics)

    # -- for metrics -------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        """Since it was loaded."""
        return self._parts.counts

    @property
    def offset_count(self) -> int:
        """NumOffsets"""
        return self._parts.offsets.count

    def committed_offsets(self, size: int) -> Iterator[list[tuple[OffsetKey, int]]]:
        """All of them, in batches of `size`; commits may happen between two batches."""
        for batch in self._parts.offsets.in_batches(size):
            yield [(key, offset_of(packed)) for key, packed in batch]

    def groups_by_state(self) -> Counter[tuple[str, str]]:
        """How many groups there are, by type and state (`classic`, `Stable`)."""
        groups = self._parts.groups.values()
        return Counter((kinds.type_name(one), one.state.value) for one in groups)
