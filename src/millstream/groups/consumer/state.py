"""The state of a group: the result of its applied entries, with indexes over the members.

Only `apply` changes it, in the same way for entries just decided and for those read from the log
when a coordinator takes over. A compacted log lacks some of the entries that once were in between,
so a conflict between two of them (a partition with two owners) is normal until all have been read;
from then on (`is_live`) it is a bug of ours.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from uuid import UUID

from millstream.groups.consumer.entries import ResolvedRegex
from millstream.groups.consumer.member import (
    NO_ASSIGNMENT,
    NOTHING_OWNED,
    Assignment,
    ConsumerMember,
    MemberState,
)
from millstream.groups.memory import names_bytes
from millstream.groups.records import keys, values
from millstream.groups.records.entries import Entry
from millstream.model.ids import GroupId, InstanceId, MemberId
from millstream.model.invariant import invariant

INITIAL_EPOCH = 1
"""Of a group and its target before anything is written: the first subscription makes it 2."""
NO_TARGET_EPOCH = -1
UNUSED_NAMES_MIN = 16
"""So many subscriptions that no member has any more are always kept."""


class ConsumerGroupState(StrEnum):
    """As reported by ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class GroupState:
    """See the module."""

    def __init__(self, group_id: GroupId) -> None:
        self.group_id = group_id
        self.is_live = False
        self.epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.target_epoch = INITIAL_EPOCH
        self.target_wall_ms = 0
        self.has_epoch_record = False
        self.members: dict[MemberId, ConsumerMember] = {}
        self.targets: dict[MemberId, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.has_partition_metadata = False
        """The group has a record of Kafka before 4.1, which is to be deleted."""
        self.is_deleted = False
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self.static_ids: dict[InstanceId, MemberId] = {}
        self.owners: dict[UUID, dict[int, MemberId]] = {}
        self.name_counts: Counter[str] = Counter()
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.protocol_counts: Counter[str] = Counter()
        self.classic_count = 0
        self._subscribed: frozenset[str] | None = None
        self._names: dict[frozenset[str], frozenset[str]] = {}
        self._names_bytes = 0
        self._own_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What the members keep in memory, without their assignments."""
        return self._own_bytes + self._names_bytes

    # -- queries ---------------------------------------------------------------------------------

    @property
    def group_state(self) -> ConsumerGroupState:
        """Derived from members and epochs, so it cannot be out of date."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(one.is_reconciled_to(self.target_epoch) for one in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member that has the instance id."""
        member_id = None if instance_id is None else self.static_ids.get(InstanceId(instance_id))
        return None if member_id is None else self.members[member_id]

    def target_of(self, member: ConsumerMember) -> Assignment:
        """The target of the member, or of the static member that it replaces."""
        target = self.targets.get(member.member_id)
        if target is None and (before := self.static_member(member.instance_id)) is not None:
            target = self.targets.get(before.member_id)
        return NO_ASSIGNMENT if target is None else target

    def is_free(self, topic_id: UUID, partition: int) -> bool:
        """Whether no member owns it or has yet to revoke it."""
        return partition not in self.owners.get(topic_id, ())

    def subscribed_topics(self) -> frozenset[str]:
        """By name and by resolved pattern; they need not exist."""
        if self._subscribed is None:
            self._subscribed = self.subscribed_after()
        return self._subscribed

    def subscribed_after(
        self,
        *,
        leaving: Iterable[ConsumerMember] = (),
        joining: Iterable[ConsumerMember] = (),
        resolved: dict[str, ResolvedRegex] | None = None,
    ) -> frozenset[str]:
        """What `subscribed_topics` would be after the change."""
        names, regexes = Counter(self.name_counts), Counter(self.regex_counts)
        for one in leaving:
            names.subtract(one.topic_names)
            regexes[one.topic_regex] -= 1
        for one in joining:
            names.update(one.topic_names)
            regexes[one.topic_regex] += 1
        subscribed = {name for name, count in names.items() if count > 0}
        for expression, known in (self.regexes | (resolved or {})).items():
            if regexes[expression] > 0:
                subscribed |= known.topics
        return frozenset(subscribed)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics the member subscribes to; an unresolved pattern has none yet."""
        resolved = self.regexes.get(member.topic_regex)
        if resolved is None or not resolved.topics:
            return member.topic_names
        return member.topic_names | resolved.topics if member.topic_names else resolved.topics

    def preferred_assignor(
        self, leaving: ConsumerMember | None, joining: ConsumerMember | None
    ) -> str | None:
        """The one that most members name after that change; if several, the first by name."""
        counts = Counter(self.assignor_counts)
        if leaving is not None and leaving.server_assignor is not None:
            counts[leaving.server_assignor] -= 1
        if joining is not None and joining.server_assignor is not None:
            counts[joining.server_assignor] += 1
        named = [(-count, name) for name, count in counts.items() if count > 0]
        return min(named)[1] if named else None

    # -- applying --------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply one entry of this group. A tombstone of a missing value changes nothing."""
        match entry:
            case (keys.ConsumerGroupKey(), value):
                self._apply_group(value)
            case (keys.ConsumerMemberKey(_, member_id), value):
                self._apply_member(member_id, value)
            case (keys.TargetAssignmentKey(), value):
                self._apply_target_epoch(value)
            case (keys.TargetMemberKey(_, member_id), value):
                self._apply_target(member_id, value)
            case (keys.CurrentAssignmentKey(_, member_id), value):
                self._apply_current(member_id, value)
            case (keys.RegularExpressionKey(_, expression), value):
                self._apply_regex(expression, value)
            case (keys.ConsumerPartitionMetadataKey(), value):
                self.has_partition_metadata = value is not None

    def _apply_group(self, value: object) -> None:
        if isinstance(value, values.ConsumerGroupMetadataValue):
            invariant(
                not (self.is_live and self.has_epoch_record) or value.epoch >= self.epoch,
                "I-27 the group's epoch went back",
                group=self.group_id,
                epoch=value.epoch,
                was=self.epoch,
            )
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            self.has_epoch_record = True
            self.is_deleted = False
            return
        invariant(
            not (self.is_live and self.members),
            "I-27 a group with members is deleted",
            group=self.group_id,
            members=len(self.members),
        )
        self.members.clear()
        self.targets.clear()
        self.regexes.clear()
        self._clear_indexes()
        self.epoch = self.target_epoch = INITIAL_EPOCH
        self.metadata_hash = self.target_wall_ms = 0
        self.has_epoch_record = False
        self.is_deleted = True

    def _apply_member(self, member_id: MemberId, value: object) -> None:
        before = self.members.get(member_id)
        if isinstance(value, values.ConsumerGroupMemberMetadataValue):
            made = (before or ConsumerMember(member_id=member_id)).with_metadata(value)
            self._replace(before, replace(made, topic_names=self._shared(made.topic_names)))
            if len(self._names) > 2 * len(self.members) + UNUSED_NAMES_MIN:
                self._forget_unused_names()
        elif before is not None:
            self.targets.pop(member_id, None)
            self._replace(before, None)
            if not self.members:
                self._forget_unused_names()

    def _shared(self, names: frozenset[str]) -> frozenset[str]:
        """The same set for all members with these names."""
        known = self._names.get(names)
        if known is None:
            known = self._names[names] = names
            self._names_bytes += names_bytes(names)
        return known

    def _forget_unused_names(self) -> None:
        self._names = {one.topic_names: one.topic_names for one in self.members.values()}
        self._names_bytes = sum(map(names_bytes, self._names))

    def _apply_current(self, member_id: MemberId, value: object) -> None:
        before = self.members.get(member_id)
        if isinstance(value, values.ConsumerGroupCurrentMemberAssignmentValue):
            made = (before or ConsumerMember(member_id=member_id)).with_current(value)
            self._replace(before, made)
        elif before is not None:
            self._replace(before, before.without_current())

    def _apply_target_epoch(self, value: object) -> None:
        if isinstance(value, values.ConsumerGroupTargetAssignmentMetadataValue):
            invariant(
                not self.is_live or value.assignment_epoch <= self.epoch,
                "I-27 a target beyond the group's epoch",
                group=self.group_id,
                target=value.assignment_epoch,
                epoch=self.epoch,
            )
            self.target_epoch = value.assignment_epoch
            self.target_wall_ms = value.assignment_timestamp
        else:
            self.target_epoch, self.target_wall_ms = NO_TARGET_EPOCH, 0

    def _apply_target(self, member_id: MemberId, value: object) -> None:
        if isinstance(value, values.ConsumerGroupTargetAssignmentMemberValue):
            self.targets[member_id] = {
                one.topic_id: frozenset(one.partitions) for one in value.topic_partitions
            }
        else:
            self.targets.pop(member_id, None)

    def _apply_regex(self, expression: str, value: object) -> None:
        self._subscribed = None
        if isinstance(value, values.ConsumerGroupRegularExpressionValue):
            self.regexes[expression] = ResolvedRegex(
                frozenset(value.topics), value.version, value.timestamp
            )
        else:
            self.regexes.pop(expression, None)

    # -- indexes ---------------------------------------------------------------------------------

    def became_live(self) -> None:
        """All entries have been read: rebuild the indexes, whatever order they came in."""
        self._clear_indexes()
        members, self.members = self.members, {}
        by_epoch = sorted(members.values(), key=lambda one: (-one.member_epoch, one.member_id))
        for member in by_epoch:
            self._replace(None, self._unless_taken(member))
        self.members = {member_id: self.members[member_id] for member_id in members}
        self._forget_unused_names()
        self.is_live = True

    def _unless_taken(self, member: ConsumerMember) -> ConsumerMember:
        """Our logs never assign a partition to two members; if one does, the newer member keeps it.

        The other must abandon everything and rejoin: it is unknown what it reads.
        """
        is_taken = any(
            partition in self.owners.get(topic_id, ())
            for owned in (member.assigned, member.revoking)
            for topic_id, partitions in owned.items()
            for partition in partitions
        )
        if not is_taken:
            return member
        return replace(
            member, state=MemberState.UNKNOWN, assigned=NOTHING_OWNED, revoking=NOTHING_OWNED
        )

    def _replace(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        is_counted = before is not None and after is not None and _same_counts(before, after)
        if before is not None:
            if not is_counted:
                self._count(before, -1)
            self._release(before, after)
            if after is None or before.instance_id != after.instance_id:
                self._forget_instance(before)
            del self.members[before.member_id]
        if after is not None:
            self.members[after.member_id] = after
            if not is_counted:
                self._count(after, 1)
            self._own(before, after)
            if after.instance_id is not None:
                self.static_ids[after.instance_id] = after.member_id
        if before is None or after is None or not _same_subscription(before, after):
            self._subscribed = None

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is None:
            return
        if self.static_ids.get(member.instance_id) == member.member_id:
            del self.static_ids[member.instance_id]

    def _count(self, member: ConsumerMember, by: int) -> None:
        self._own_bytes += by * member.own_bytes
        for name in member.topic_names:
            self.name_counts[name] += by
            if not self.name_counts[name]:
                del self.name_counts[name]
        counted = [(self.regex_counts, member.topic_regex)]
        counted += [(self.assignor_counts, member.server_assignor or "")]
        if member.classic is not None:
            self.classic_count += by
            counted += [(self.protocol_counts, name) for name, _ in member.classic.protocols]
        for counts, key in counted:
            if key:
                counts[key] += by
                if not counts[key]:
                    del counts[key]

    def _release(self, before: ConsumerMember, after: ConsumerMember | None) -> None:
        if after is not None and _same_partitions(before, after):
            return
        for owned in (before.assigned, before.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == before.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)

    def _own(self, before: ConsumerMember | None, after: ConsumerMember) -> None:
        if before is not None and _same_partitions(before, after):
            return
        for owned in (after.assigned, after.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.setdefault(topic_id, {})
                for partition in partitions:
                    holder = owners.setdefault(partition, after.member_id)
                    invariant(
                        holder == after.member_id or not self.is_live,
                        "I-27 a partition with two owners",
                        group=self.group_id,
                        topic=topic_id,
                        partition=partition,
                        owners=(holder, after.member_id),
                    )
                    owners[partition] = after.member_id


def _same_subscription(before: ConsumerMember, after: ConsumerMember) -> bool:
    is_same = before.topic_names is after.topic_names
    return is_same and before.topic_regex == after.topic_regex


def _same_counts(before: ConsumerMember, after: ConsumerMember) -> bool:
    is_same = before.server_assignor == after.server_assignor and before.classic is after.classic
    is_same = is_same and before.client_id == after.client_id
    return is_same and _same_subscription(before, after)


def _same_partitions(before: ConsumerMember, after: ConsumerMember) -> bool:
    """By identity: a change of the subscription keeps the same map objects."""
    return before.assigned is after.assigned and before.revoking is after.revoking
