"""`range`: of each topic, every member has the partitions of one range.

Members stand in the order of their ids (static ones first, by instance id), and the ranges are
handed out in that order, so members that subscribe to the same topics with the same number of
partitions have the same numbers of all of them: what shall be joined is read by one member. A
member keeps its ranges for as long as the group does not change; nothing else makes it sticky.
"""

from uuid import UUID

from millstream.groups.consumer.assignors.spec import GroupSpec, MemberSpec, Targets
from millstream.groups.consumer.member import Assignment
from millstream.model.ids import MemberId


def assign_ranges(group: GroupSpec) -> Targets:
    """One range of each subscribed topic for each member, as long as there are partitions."""
    ordered = [member_id for member_id, _ in sorted(group.members.items(), key=_place)]
    made: dict[MemberId, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in ordered}
    for topic_id, subscribers in sorted(_subscribers(group, ordered).items()):
        count = group.partition_counts[topic_id]
        for place, member_id in enumerate(subscribers[:count]):
            made[member_id][topic_id] = frozenset(_range(count, len(subscribers), place))
    return {one: _unless_equal(group.members[one].assignment, made[one]) for one in ordered}


def _subscribers(group: GroupSpec, ordered: list[MemberId]) -> dict[UUID, list[MemberId]]:
    """Of each topic, in order. Where all subscribe to the same, these are all."""
    if group.is_homogeneous:
        topic_ids = next(iter(group.members.values())).topic_ids if ordered else frozenset()
        return dict.fromkeys(topic_ids, ordered)
    found: dict[UUID, list[MemberId]] = {}
    for member_id in ordered:
        for topic_id in group.members[member_id].topic_ids:
            found.setdefault(topic_id, []).append(member_id)
    return found


def _place(item: tuple[MemberId, MemberSpec]) -> tuple[bool, str]:
    member_id, member = item
    return (member.instance_id is None, member.instance_id or member_id)


def _range(partitions: int, members: int, place: int) -> range:
    """The first members have one more where it does not come out even."""
    size, more = divmod(partitions, members)
    start = place * size + min(place, more)
    return range(start, start + size + (place < more))


def _unless_equal(before: Assignment, after: Assignment) -> Assignment:
    return before if before == after else after
