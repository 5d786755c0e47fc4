"""`uniform`: all members get equally many partitions, and keep theirs where possible.

Members that all subscribe to the same topics are the common and simple case: each gets
floor(partitions / members), some one more, and gives up only what exceeds that. Otherwise see
`uniform_mixed`.
"""

from uuid import UUID

from millstream.groups.consumer.assignors.spec import GroupSpec, MemberSpec, Targets
from millstream.groups.consumer.assignors.uniform_mixed import assign_mixed
from millstream.groups.consumer.member import Assignment
from millstream.model.ids import MemberId

Partition = tuple[UUID, int]


def assign_uniform(group: GroupSpec) -> Targets:
    """Assign each member an equal share of all partitions."""
    if not group.members:
        return {}
    if not group.is_homogeneous:
        return assign_mixed(group)
    topic_ids = next(iter(group.members.values())).topic_ids
    return _assign_homogeneous(group, sorted(topic_ids)) if topic_ids else {}


def _assign_homogeneous(group: GroupSpec, topic_ids: list[UUID]) -> Targets:
    counts = {topic_id: group.partition_counts[topic_id] for topic_id in topic_ids}
    share, more = divmod(sum(counts.values()), len(group.members))
    kept: dict[MemberId, dict[UUID, set[int]]] = {}
    unfilled: list[tuple[MemberId, int]] = []
    taken: dict[UUID, set[int]] = {topic_id: set() for topic_id in topic_ids}
    for member_id, larger in _extra_shares(group, more):
        room = share + larger
        mine = _kept(group.members[member_id], counts, taken, room)
        kept[member_id] = mine
        room -= sum(map(len, mine.values()))
        if room:
            unfilled.append((member_id, room))
    left = [
        (topic_id, partition)
        for topic_id, count in counts.items()
        for partition in range(count)
        if partition not in taken[topic_id]
    ]
    _fill(kept, unfilled, left)
    return {one: _frozen(group.members[one].assignment, mine) for one, mine in kept.items()}


def _extra_shares(group: GroupSpec, more: int) -> list[tuple[MemberId, bool]]:
    """Members with most partitions get one more, so that the fewest partitions move."""
    by_size = sorted(
        group.members,
        key=lambda one: -sum(map(len, group.members[one].assignment.values())),
    )
    larger = set(by_size[:more])
    return [(one, one in larger) for one in group.members]


def _kept(
    member: MemberSpec, counts: dict[UUID, int], taken: dict[UUID, set[int]], room: int
) -> dict[UUID, set[int]]:
    """The partitions that it may keep; adds them to `taken`."""
    kept: dict[UUID, set[int]] = {}
    for topic_id, partitions in member.assignment.items():
        if topic_id not in counts or not room:
            continue
        wanted = sorted(
            one for one in partitions if one < counts[topic_id] and one not in taken[topic_id]
        )[:room]
        if wanted:
            kept[topic_id] = set(wanted)
            taken[topic_id].update(wanted)
            room -= len(wanted)
    return kept


def _fill(
    kept: dict[MemberId, dict[UUID, set[int]]],
    unfilled: list[tuple[MemberId, int]],
    left: list[Partition],
) -> None:
    at = 0
    for member_id, room in unfilled:
        mine = kept[member_id]
        for topic_id, partition in left[at : at + room]:
            mine.setdefault(topic_id, set()).add(partition)
        at += room


def _frozen(before: Assignment, after: dict[UUID, set[int]]) -> Assignment:
    """The same object if nothing changed."""
    if before == after:
        return before
    return {topic_id: frozenset(partitions) for topic_id, partitions in after.items()}
