"""What the server-side assignors promise, for any group: all, once, evenly, and with few moves."""

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millstream.groups.consumer.assignors.ranges import assign_ranges
from millstream.groups.consumer.assignors.spec import Assign, GroupSpec, MemberSpec, Targets
from millstream.groups.consumer.assignors.uniform import assign_uniform
from millstream.model.ids import InstanceId, MemberId

TOPICS = [UUID(int=number) for number in range(1, 5)]
Counts = dict[UUID, int]

counts = st.fixed_dictionaries({one: st.integers(1, 9) for one in TOPICS})
alike = st.sets(st.sampled_from(TOPICS), min_size=1).map(frozenset)
mixed = st.lists(st.sets(st.sampled_from(TOPICS)).map(frozenset), min_size=1, max_size=7)
assignors = st.sampled_from([assign_uniform, assign_ranges])


def spec(subscribed: list[frozenset[UUID]], partitions: Counts, before: Targets) -> GroupSpec:
    members = {
        MemberId(f"m{number}"): MemberSpec(
            instance_id=InstanceId(f"i{9 - number}") if number % 3 == 0 else None,
            topic_ids=topic_ids,
            assignment=before.get(MemberId(f"m{number}"), {}),
        )
        for number, topic_ids in enumerate(subscribed)
    }
    return GroupSpec(members=members, partition_counts=partitions)


def sizes(targets: Targets, members: int) -> list[int]:
    told = [sum(map(len, one.values())) for one in targets.values()]
    return told + [0] * (members - len(told))


def owners(targets: Targets) -> dict[tuple[UUID, int], MemberId]:
    return {
        (topic_id, partition): member_id
        for member_id, assignment in targets.items()
        for topic_id, partitions in assignment.items()
        for partition in partitions
    }


def check_complete(group: GroupSpec, targets: Targets) -> None:
    told = [
        (topic_id, partition, member_id)
        for member_id, assignment in targets.items()
        for topic_id, partitions in assignment.items()
        for partition in partitions
    ]
    wanted = {topic_id for one in group.members.values() for topic_id in one.topic_ids}
    expected = {(one, part) for one in wanted for part in range(group.partition_counts[one])}
    assert Counter((topic, part) for topic, part, _ in told) == Counter(expected)
    assert all(topic in group.members[member].topic_ids for topic, _, member in told)


@given(mixed, counts, assignors)
def test_every_subscribed_partition_goes_to_one_of_its_subscribers(
    subscribed: list[frozenset[UUID]], partitions: Counts, assign: Assign
) -> None:
    group = spec(subscribed, partitions, {})
    check_complete(group, assign(group))


@given(mixed, mixed, counts, counts, assignors)
def test_also_after_members_subscriptions_and_topics_have_changed(
    before: list[frozenset[UUID]],
    after: list[frozenset[UUID]],
    partitions: Counts,
    later: Counts,
    assign: Assign,
) -> None:
    first = assign(spec(before, partitions, {}))
    group = spec(after, later, first)
    check_complete(group, assign(group))


@given(mixed, counts, assignors)
def test_nothing_moves_when_nothing_changes(
    subscribed: list[frozenset[UUID]], partitions: Counts, assign: Assign
) -> None:
    first = assign(spec(subscribed, partitions, {}))
    again = assign(spec(subscribed, partitions, first))
    assert owners(again) == owners(first)


@given(alike, st.integers(1, 7), counts)
def test_uniform_gives_shares_that_differ_by_one_at_most(
    topic_ids: frozenset[UUID], members: int, partitions: Counts
) -> None:
    told = sizes(assign_uniform(spec([topic_ids] * members, partitions, {})), members)
    assert max(told) - min(told) <= 1


@given(alike, st.integers(2, 7), counts)
def test_uniform_moves_only_what_the_member_that_left_had(
    topic_ids: frozenset[UUID], members: int, partitions: Counts
) -> None:
    first = assign_uniform(spec([topic_ids] * members, partitions, {}))
    after = assign_uniform(spec([topic_ids] * (members - 1), partitions, first))
    gone = MemberId(f"m{members - 1}")
    moved = [one for one, who in owners(first).items() if owners(after)[one] != who]
    assert all(owners(first)[one] == gone for one in moved)


@given(alike, st.integers(1, 6), counts)
def test_uniform_moves_only_what_the_member_that_joins_gets(
    topic_ids: frozenset[UUID], members: int, partitions: Counts
) -> None:
    first = assign_uniform(spec([topic_ids] * members, partitions, {}))
    after = owners(assign_uniform(spec([topic_ids] * (members + 1), partitions, first)))
    new = MemberId(f"m{members}")
    moved = [one for one, who in owners(first).items() if after[one] != who]
    assert all(after[one] == new for one in moved)


@given(mixed, counts, mixed)
def test_uniform_is_even_for_every_topic_where_members_subscribe_differently(
    subscribed: list[frozenset[UUID]], partitions: Counts, before: list[frozenset[UUID]]
) -> None:
    """Nobody has a partition that another subscriber with two fewer should have."""
    group = spec(subscribed, partitions, assign_uniform(spec(before, partitions, {})))
    targets = assign_uniform(group)
    size = {one: sum(map(len, targets.get(one, {}).values())) for one in group.members}
    for (topic_id, _), owner in owners(targets).items():
        others = [one for one in group.members if topic_id in group.members[one].topic_ids]
        assert size[owner] - min(size[one] for one in others) <= 1


@given(alike, st.integers(1, 7), st.integers(1, 12))
def test_range_gives_the_same_numbers_of_topics_that_are_partitioned_alike(
    topic_ids: frozenset[UUID], members: int, partition_count: int
) -> None:
    partitions = dict.fromkeys(TOPICS, partition_count)
    targets = assign_ranges(spec([topic_ids] * members, partitions, {}))
    for assignment in targets.values():
        numbers = {tuple(sorted(parts)) for parts in assignment.values()}
        assert len(numbers) <= 1
        for told in numbers:
            assert list(told) == list(range(told[0], told[-1] + 1))
    told_sizes = sizes(targets, members)
    assert max(told_sizes) - min(told_sizes) <= len(topic_ids)
