"""Who may commit, read and delete offsets of a classic group (I-28)."""

from collections.abc import Callable

import pytest

from kits.groups.classic_kit import DELAY_MS, SESSION_MS, World, subscription
from millstream.groups.classic.group import GroupState
from millstream.groups.errors import (
    FencedInstance,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMember,
)
from millstream.shards.errors import CoordinatorNotAvailable, RequestRefused


def refusal(check: Callable[[], None]) -> type[RequestRefused] | None:
    try:
        check()
    except RequestRefused as refused:
        return type(refused)
    return None


def test_an_empty_group_takes_commits_of_consumers_that_assign_themselves() -> None:
    world = World()
    assert world.commit() is None
    assert world.commit("anyone") is None
    assert world.commit("anyone", 0) is UnknownMember
    assert world.group.is_simple


def test_a_group_with_members_takes_no_commits_of_others() -> None:
    world = World()
    (member_id,) = world.gather(1)
    assert not world.group.is_simple
    assert world.commit() is UnknownMember
    assert world.commit("stranger", 1) is UnknownMember
    assert world.commit(member_id) is IllegalGeneration
    assert world.commit(member_id, 1) is None


def test_a_commit_of_an_old_generation_is_refused() -> None:
    """I-28. A member that was stuck must not overwrite what the new owner committed."""
    world = World()
    stuck, other = world.gather(2)
    world.join(other, protocols={"range": subscription("u")})
    assert world.commit(stuck, 1) is None, "until the new generation begins"
    world.pass_ms(SESSION_MS)
    assert world.commit(stuck, 1) is UnknownMember
    assert world.commit(other, 1) is IllegalGeneration


def test_a_commit_while_the_leader_computes_is_told_to_wait() -> None:
    world = World()
    token = world.join(version=3)
    world.pass_ms(DELAY_MS)
    member_id = world.joined(token).member_id
    assert world.commit(member_id, 1) is RebalanceInProgress
    assert world.commit(member_id, 1, is_transactional=True) is None
    world.settle([member_id])
    assert world.commit(member_id, 1) is None


def test_transactional_commits_of_old_versions_do_not_say_who_they_are() -> None:
    world = World()
    (member_id,) = world.gather(1)
    assert world.commit(is_transactional=True) is None
    assert world.commit("stranger", 1, is_transactional=True) is UnknownMember
    assert world.commit(member_id, 0, is_transactional=True) is IllegalGeneration
    assert world.commit(member_id, 1, is_transactional=True) is None


def test_a_commit_under_a_fenced_instance_is_refused() -> None:
    world = World()
    leader, static = world.gather(1, instances=["i"])
    assert world.commit(static, 1, instance="i") is None
    assert world.commit(leader, 1, instance="i") is FencedInstance
    assert world.commit(leader, 1, instance="unknown") is UnknownMember


def test_a_commit_counts_as_a_heartbeat() -> None:
    """I-30."""
    world = World()
    (member_id,) = world.gather(1)
    for _ in range(5):
        world.pass_ms(SESSION_MS - 1)
        assert world.commit(member_id, 1) is None
    world.pass_ms(SESSION_MS)
    assert world.commit(member_id, 1) is UnknownMember


def test_a_refused_commit_does_not_keep_a_member_alive() -> None:
    world = World()
    (member_id,) = world.gather(1)
    world.pass_ms(SESSION_MS - 1)
    assert world.commit(member_id, 0) is IllegalGeneration
    world.pass_ms(1)
    assert world.group.state is GroupState.EMPTY


def test_a_removed_group() -> None:
    world = World()
    world.group.on_removed()
    assert world.commit() is CoordinatorNotAvailable
    checks = (world.group.check_fetch, world.group.check_delete, world.group.check_offset_delete)
    assert {refusal(check) for check in checks} == {GroupNotFound}


def test_a_group_is_deleted_only_when_it_is_empty() -> None:
    world = World()
    assert refusal(world.group.check_delete) is None
    world.gather(1)
    assert refusal(world.group.check_delete) is GroupNotEmpty
    assert refusal(world.group.check_fetch) is None


@pytest.mark.parametrize(("kind", "expected"), [("consumer", None), ("connect", GroupNotEmpty)])
def test_offsets_in_use_are_known_only_of_consumers(
    kind: str, expected: type[RequestRefused] | None
) -> None:
    world = World()
    world.gather(1, protocol_type=kind)
    assert refusal(world.group.check_offset_delete) is expected


# -- subscriptions -----------------------------------------------------------------------------


def test_the_topics_of_all_members_are_in_use() -> None:
    world = World()
    tokens = [
        world.join(version=3, protocols={"range": subscription(topic, version=version)})
        for topic, version in (("a", 0), ("b", 3))
    ]
    assert world.group.subscribed_topics() is None
    world.pass_ms(2 * DELAY_MS)
    assert world.group.subscribed_topics() == frozenset({"a", "b"})
    assert world.group.is_subscribed_to("a")
    assert not world.group.is_subscribed_to("c")
    world.leave(*(world.joined(token).member_id for token in tokens))
    assert world.group.subscribed_topics() == frozenset()


BROKEN = [
    b"",
    b"\0",
    b"\0\1\0\0\0",
    subscription("topic")[:-5],
    subscription("topic")[:-1],
    b"\xff\xff" + subscription("topic")[2:],
    b"\0\1\x7f\xff\xff\xff" + b"x" * 10,
    b"\0\1\xff\xff\xff\xff",
    b"\0\1\0\0\0\1\0\2\xff\xfe\0\0\0\0",
    subscription("topic")[:-4] + b"\0\0\0\x09x",
]


@pytest.mark.parametrize("metadata", BROKEN, ids=lambda one: one.hex() or "nothing")
def test_consumers_that_cannot_be_understood_may_subscribe_to_anything(metadata: bytes) -> None:
    world = World()
    world.gather(1, protocols={"range": metadata})
    assert world.group.subscribed_topics() is None
    assert world.group.is_subscribed_to("anything")


def test_others_subscribe_to_nothing_that_we_know() -> None:
    world = World()
    world.gather(1, protocol_type="connect")
    assert world.group.subscribed_topics() is None
    assert not world.group.is_subscribed_to("anything")
