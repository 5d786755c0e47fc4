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
    ordered = sorted(group.members.items(), key=_place)
    subscribers: dict[UUID, int] = {}
    for _, member in ordered:
        for topic_id in member.topic_ids:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    handed: dict[UUID, int] = dict.fromkeys(subscribers, 0)
    targets: Targets = {}
    for member_id, member in ordered:
        ranges: dict[UUID, frozenset[int]] = {}
        for topic_id in sorted(member.topic_ids):
            place = handed[topic_id]
            handed[topic_id] += 1
            found = _range(group.partition_counts[topic_id], subscribers[topic_id], place)
            if found:
                ranges[topic_id] = frozenset(found)
        targets[member_id] = _unless_equal(member.assignment, ranges)
    return targets


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
