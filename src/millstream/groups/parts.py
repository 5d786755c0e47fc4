"""The state and the dependencies that the modules of a shard share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.topics import TopicsView
from millstream.groups.counts import Counts
from millstream.groups.offsets.machine import Offsets
from millstream.groups.records.entries import Entry
from millstream.groups.settings import GroupSettings
from millstream.groups.table import GroupTable
from millstream.model.ids import GroupId, MemberId
from millstream.shards.effects import Caller, Outbox, Ticket, Write

Group = ClassicGroup | ConsumerGroup
NewMemberId = Callable[[str], MemberId]


class Chain(NamedTuple):
    """A request that continues when its last write is in the log."""

    caller: Caller
    continuation: Callable[[], None]


@dataclass(slots=True)
class Parts:
    """The state of a shard, and its dependencies."""

    settings: GroupSettings
    outbox: Outbox
    new_member_id: NewMemberId
    topics: TopicsView
    groups: GroupTable[Group] = field(default_factory=GroupTable)
    offsets: Offsets = field(default_factory=Offsets)
    counts: Counts = field(default_factory=Counts)
    chains: dict[Ticket, Chain] = field(default_factory=dict)
    unwritten_groups: dict[GroupId, ConsumerGroup] = field(default_factory=dict)
    """New groups whose first entries are not in the log yet."""
    wall_ms: int = 0
    """The time of day of the call that is being decided."""

    def new_classic(self, group_id: GroupId) -> ClassicGroup:
        """Create an empty group that is not in the table."""
        return ClassicGroup(
            group_id, self.outbox, self.settings, self.new_member_id, wall_ms=lambda: self.wall_ms
        )

    def new_consumer(self, group_id: GroupId) -> ConsumerGroup:
        """Create a group without records that is not in the table."""
        return ConsumerGroup(
            group_id,
            self.outbox,
            self.settings,
            self.new_member_id,
            topics=self.topics,
            wall_ms=lambda: self.wall_ms,
        )

    def claim_consumer(self, group_id: GroupId) -> ConsumerGroup:
        """The group that was made for these entries, or a new one."""
        return self.unwritten_groups.pop(group_id, None) or self.new_consumer(group_id)

    def write_then(self, entries: tuple[Entry, ...], chain: Chain) -> None:
        """Write, and continue when it is in the log; if refused, the caller gets the error."""
        ticket = self.outbox.ticket()
        self.chains[ticket] = chain
        self.outbox.write(Write(entries, ticket=ticket))
