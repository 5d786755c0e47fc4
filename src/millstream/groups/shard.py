"""One partition of the offsets topic: all groups and committed offsets in it, as a pure machine.

A call decides and leaves effects in the outbox (`effects`); the shell takes them out before the
next call. What was decided comes true in three steps, which the shell tells:

- `appended(write, last_offset)`: the log has taken the batch. Entries that the machine has not
  applied itself are applied now, so the next decision knows them.
- `committed(high_watermark)`: offsets below it are what OffsetFetch answers with from now on.
  Then the replies of the writes below it are sent, and `written(write)` is told for each.
- or `refused(write, error)`: the log did not take it. Nothing happened; the replies of the write
  are answered with the error by the shell.

So a decision may rest on what is not committed yet: whatever is lost with the leadership is lost
from the log's end, this decision with it.

Writes that hold only offsets of ordinary commits (`is_gatherable`) may wait for others of their
kind and be written as one batch, in their order, as long as nothing but `offset_commit`,
`offset_fetch`, `heartbeat` and reads are called in between; before any other call they are written.

Requests that name several groups are split by the caller, group by group, because their groups are
in different shards: `offset_fetch`, `delete_group`, `describe_group` and `consumer_group_describe`
take one group of the request and reply with one group of the response.
"""

from collections.abc import Callable, Iterable
from typing import Any

from millstream.groups.effects import Caller, Outbox, Write
from millstream.groups.records.entries import Entry, Producer
from millstream.groups.settings import GroupSettings
from millstream.model.errors import OperatingError
from millstream.model.ids import GroupId, MemberId, Offset, ProducerId
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

NewMemberId = Callable[[str], MemberId]


class Shard:
    """All groups of one partition of the offsets topic."""

    def __init__(
        self,
        index: int,
        *,
        settings: GroupSettings,
        outbox: Outbox,
        new_member_id: NewMemberId,
        topics: Any,
    ) -> None: ...

    # -- requests; now_ms is monotonic, wall_ms is the time of day ---------------------------

    def join_group(
        self, caller: Caller, request: JoinGroupRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies JoinGroupResponse, when the group has gathered."""

    def sync_group(
        self, caller: Caller, request: SyncGroupRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies SyncGroupResponse, when the leader has sent the assignment."""

    def heartbeat(
        self, caller: Caller, request: HeartbeatRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies HeartbeatResponse."""

    def leave_group(
        self, caller: Caller, request: LeaveGroupRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies LeaveGroupResponse."""

    def consumer_group_heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies ConsumerGroupHeartbeatResponse."""

    def offset_commit(
        self, caller: Caller, request: OffsetCommitRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies OffsetCommitResponse. Every topic has its name; from version 10 its id too."""

    def txn_offset_commit(
        self, caller: Caller, request: TxnOffsetCommitRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        """Replies TxnOffsetCommitResponse."""

    def offset_fetch(
        self, caller: Caller, group: OffsetFetchRequestGroup, *, is_stable: bool, now_ms: int
    ) -> None:
        """Replies OffsetFetchResponseGroup. Every topic has its name; from version 10 its id too.

        All offsets of the group where `topics` is None, each with a name and the id it was
        committed with, if any.
        """

    def offset_delete(self, caller: Caller, request: OffsetDeleteRequest, *, now_ms: int) -> None:
        """Replies OffsetDeleteResponse."""

    def delete_group(self, caller: Caller, group_id: GroupId, *, now_ms: int) -> None:
        """Replies DeletableGroupResult."""

    def list_groups(self, caller: Caller, request: ListGroupsRequest) -> None:
        """Replies list[ListedGroup]."""

    def describe_group(self, caller: Caller, group_id: GroupId) -> None:
        """Replies describe_groups.DescribedGroup."""

    def consumer_group_describe(self, caller: Caller, group_id: GroupId) -> None:
        """Replies consumer_group_describe.DescribedGroup."""

    # -- what became of it -------------------------------------------------------------------

    def appended(self, write: Write, last_offset: Offset, *, now_ms: int, wall_ms: int) -> None:
        """The log has taken the write; its last entry is at `last_offset`."""

    def refused(self, write: Write, error: OperatingError, *, now_ms: int) -> None:
        """The log has not taken it; the shell answers its replies."""

    def written(self, write: Write, *, now_ms: int) -> None:
        """The high watermark has passed it."""

    def committed(self, high_watermark: Offset) -> None:
        """What is below can not be lost any more."""

    # -- loading and unloading ---------------------------------------------------------------

    def apply(self, entry: Entry, offset: Offset, producer: Producer | None = None) -> None:
        """An entry that was read from the log."""

    def transaction_ended(
        self, producer_id: ProducerId, offset: Offset, *, is_commit: bool
    ) -> None:
        """A marker, read from the log or just appended to it at this offset."""

    def loaded(self, *, now_ms: int, wall_ms: int) -> None:
        """All that was in the log has been applied: sessions begin."""

    def unload(self) -> list[object]:
        """The tokens of all who wait for an answer and are not in a write; the machine is dead."""

    # -- time and topics ---------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When to call `tick`."""
        return None

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        """Sessions and rebalances that have run out."""

    def expire(self, *, now_ms: int, wall_ms: int) -> bool:
        """A step of removing what has expired; True when there is more to do now."""
        return False

    def topics_changed(self, names: Iterable[str], *, now_ms: int, wall_ms: int) -> None:
        """Topics that were created, deleted or got partitions."""

    def partitions_deleted(self, topics: Iterable[str]) -> None:
        """Topics that are gone; `expire` removes their offsets step by step, so call it."""


def is_gatherable(write: Write) -> bool:
    """Whether the write may wait for others of its kind."""
    raise NotImplementedError
