"""`range`: of each topic, every member gets one range of partitions.

Members are sorted by id (static ones first, by instance id), and the ranges are assigned in that
order, so members that subscribe to the same topics with the same number of partitions get the same
partition numbers of all of them: partitions to be joined are read by one member. A member keeps its
ranges as long as the group does not change; nothing else makes the assignment sticky.
"""

from uuid import UUID

from millstream.groups.consumer.assignors.spec import GroupSpec, MemberSpec, Targets
from millstream.groups.consumer.member import Assignment
from millstream.model.ids import MemberId


def assign_ranges(group: GroupSpec) -> Targets:
    """One range of each subscribed topic for each member, as long as there are partitions."""
    ordered = [member_id for member_id, _ in sorted(group.members.items(), key=_sort_key)]
    made: dict[MemberId, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in ordered}
    for topic_id, subscribers in sorted(_subscribers(group, ordered).items()):
        count = group.partition_counts[topic_id]
        for position, member_id in enumerate(subscribers[:count]):
            made[member_id][topic_id] = frozenset(_range(count, len(subscribers), position))
    return {one: _unless_equal(group.members[one].assignment, made[one]) for one in ordered}


def _subscribers(group: GroupSpec, ordered: list[MemberId]) -> dict[UUID, list[MemberId]]:
    """The subscribers of each topic, in order; all members if all subscribe to the same topics."""
    if group.is_homogeneous:
        topic_ids = next(iter(group.members.values())).topic_ids if ordered else frozenset()
        return dict.fromkeys(topic_ids, ordered)
    found: dict[UUID, list[MemberId]] = {}
    for member_id in ordered:
        for topic_id in group.members[member_id].topic_ids:
            found.setdefault(topic_id, []).append(member_id)
    return found


def _sort_key(item: tuple[MemberId, MemberSpec]) -> tuple[bool, str]:
    member_id, member = item
    return (member.instance_id is None, member.instance_id or member_id)


def _range(partitions: int, members: int, position: int) -> range:
    """The first members get one more if the division has a remainder."""
    size, more = divmod(partitions, members)
    start = position * size + min(position, more)
    return range(start, start + size + (position < more))


def _unless_equal(before: Assignment, after: Assignment) -> Assignment:
    return before if before == after else after
