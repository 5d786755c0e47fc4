"""Commits and fetches of offsets by member epoch: I-28."""

import pytest

from kits.groups.consumer_group_kit import FakeTopics, GroupWorld
from millstream.groups.consumer.commits import Committer
from millstream.groups.errors import (
    StaleMemberEpoch,
    UnknownMember,
    UnsupportedCommitVersion,
)
from millstream.wire.fields import NO_UUID


def a_world() -> GroupWorld:
    """Member a has had 0 and 1 since epoch 2, b has 2 and 3 since epoch 3."""
    world = GroupWorld(FakeTopics(orders=4))
    world.join("a", "orders")
    world.join("b", "orders")
    world.heartbeat("a", 2, owned={"orders": [0, 1, 2, 3]})
    world.heartbeat("a", 2, owned={"orders": [0, 1]})
    world.heartbeat("b", 3)
    return world


def commit(world: GroupWorld, member_id: str, epoch: int, partition: int) -> None:
    check = world.group.check_commit(Committer(member_id=member_id, member_epoch=epoch))
    check("orders", world.topics.id_of("orders"), partition)


def test_a_member_commits_in_its_epoch() -> None:
    commit(a_world(), "a", 3, 0)


def test_a_commit_of_the_epoch_before_counts_for_what_the_member_has_had_all_along() -> None:
    world = a_world()
    commit(world, "a", 2, 0)
    with pytest.raises(StaleMemberEpoch):
        commit(world, "a", 2, 2)


def test_a_commit_from_before_the_member_was_given_the_partition_is_refused() -> None:
    world = a_world()
    with pytest.raises(StaleMemberEpoch):
        commit(world, "b", 2, 2)


def test_a_partition_that_came_back_is_not_committed_in_the_epoch_before_it_left() -> None:
    """Member a had 2 in epoch 2, b in 3, a again in 4: what a says of epoch 2 is older than b's."""
    world = a_world()
    world.heartbeat("b", -1)
    world.heartbeat("a", 3)
    commit(world, "a", 4, 2)
    commit(world, "a", 2, 0)
    for epoch in (2, 3):
        with pytest.raises(StaleMemberEpoch):
            commit(world, "a", epoch, 2)


def test_an_epoch_to_come_and_a_member_that_is_not_there() -> None:
    world = a_world()
    with pytest.raises(StaleMemberEpoch):
        commit(world, "a", 4, 0)
    with pytest.raises(UnknownMember):
        commit(world, "c", 3, 0)
    with pytest.raises(UnknownMember):
        commit(world, "", -1, 0)


def test_topics_are_known_by_name_where_the_request_has_no_id() -> None:
    world = a_world()
    check = world.group.check_commit(Committer(member_id="a", member_epoch=2))
    check("orders", NO_UUID, 0)
    with pytest.raises(StaleMemberEpoch):
        check("orders", NO_UUID, 3)


def test_who_is_no_member_commits_only_to_an_empty_group_or_in_a_transaction() -> None:
    world = a_world()
    nobody = Committer(member_id="", member_epoch=-1, is_transactional=True)
    world.group.check_commit(nobody)("orders", NO_UUID, 0)
    world.heartbeat("a", -1)
    world.heartbeat("b", -1)
    commit(world, "", -1, 0)


def test_a_version_without_member_epochs_is_refused() -> None:
    with pytest.raises(UnsupportedCommitVersion):
        a_world().group.check_commit(Committer(member_id="a", member_epoch=3, version=8))


def test_offsets_are_fetched_in_the_members_epoch_or_by_nobody() -> None:
    world = a_world()
    world.group.check_fetch(None, -1)
    world.group.check_fetch("a", 3)
    with pytest.raises(StaleMemberEpoch):
        world.group.check_fetch("a", 2)
    with pytest.raises(UnknownMember):
        world.group.check_fetch("c", 2)
