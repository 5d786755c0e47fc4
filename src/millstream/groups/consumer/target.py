"""The target assignment: the partitions of every member in a group epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from millstream.groups.consumer import entries
from millstream.groups.consumer.assignors import ASSIGNORS
from millstream.groups.consumer.assignors.spec import GroupSpec, MemberSpec, Targets
from millstream.groups.consumer.member import NO_ASSIGNMENT, Assignment, ConsumerMember
from millstream.groups.consumer.state import GroupState
from millstream.groups.consumer.topics import TopicsView
from millstream.groups.records.entries import Entry
from millstream.model.ids import MemberId
from millstream.model.invariant import invariant


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChange:
    """A change that has just been decided, and is not in the state yet."""

    epoch: int
    member: ConsumerMember
    replaced: ConsumerMember | None = None
    """The static member that `member` replaces."""
    assignor: str


@dataclass(frozen=True, slots=True)
class Target:
    """The new targets; the entries have only what changed, and the epoch last."""

    entries: tuple[Entry, ...]
    assignments: Targets


def compute_target(
    state: GroupState, topics: TopicsView, change: TargetChange, wall_ms: int
) -> Target:
    """Compute the target for the group after `change`."""
    group = _spec(state, topics, change)
    assignments = ASSIGNORS[change.assignor](group)
    _check(assignments)
    records: list[Entry] = []
    for member_id in group.members:
        after = assignments.get(member_id, NO_ASSIGNMENT)
        before = state.targets.get(member_id)
        if before is not after and before != after:
            records.append(entries.target_member(state.group_id, member_id, after))
    records.append(entries.target_epoch(state.group_id, change.epoch, wall_ms))
    return Target(tuple(records), assignments)


def _check(assignments: Targets) -> None:
    owned: dict[UUID, set[int]] = {}
    for assignment in assignments.values():
        for topic_id, partitions in assignment.items():
            others = owned.setdefault(topic_id, set())
            invariant(
                others.isdisjoint(partitions),
                "I-27 a target gives a partition to two members",
                topic=topic_id,
            )
            others |= partitions


def choose_assignor(preferred: str | None, offered: Sequence[str]) -> str:
    """The one that most members name, if the broker (still) offers it; else the broker's first."""
    if preferred is not None and preferred in offered and preferred in ASSIGNORS:
        return preferred
    return next((one for one in offered if one in ASSIGNORS), "uniform")


def _spec(state: GroupState, topics: TopicsView, change: TargetChange) -> GroupSpec:
    members = dict(state.members)
    members[change.member.member_id] = change.member
    if change.replaced is not None:
        del members[change.replaced.member_id]
    ids = _TopicIds(state, topics)
    specs = {
        member_id: MemberSpec(
            instance_id=members[member_id].instance_id,
            topic_ids=ids.of(members[member_id]),
            assignment=_previous_target(state, members[member_id]),
        )
        for member_id in sorted(members)
    }
    return GroupSpec(members=specs, partition_counts=ids.partition_counts)


def _previous_target(state: GroupState, member: ConsumerMember) -> Assignment:
    known = state.targets.get(member.member_id)
    return state.target_of(member) if known is None else known


class _TopicIds:
    """Members with the same subscription share one set object."""

    def __init__(self, state: GroupState, topics: TopicsView) -> None:
        self._state = state
        self._topics = topics
        self._known: dict[frozenset[str], frozenset[UUID]] = {}
        self.partition_counts: dict[UUID, int] = {}

    def of(self, member: ConsumerMember) -> frozenset[UUID]:
        names = self._state.topics_of(member)
        known = self._known.get(names)
        if known is None:
            found = [one for one in map(self._topics.by_name, names) if one is not None]
            self.partition_counts.update({one.topic_id: one.partition_count for one in found})
            known = self._known[names] = frozenset(one.topic_id for one in found)
        return known


def member_target(target: Target, member_id: MemberId) -> Assignment:
    """The target of one member."""
    return target.assignments.get(member_id, NO_ASSIGNMENT)
