"""Static members (KIP-345): they come back under a new id, and the old one is fenced."""

import pytest

from kits.groups.classic_kit import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    LogRefused,
    Settings,
    World,
    subscription,
)
from millstream.groups.classic.group import GroupState
from millstream.groups.errors import FencedInstance, IllegalGeneration, RebalanceInProgress
from millstream.wire.errors import ErrorCode


def test_a_static_member_needs_no_second_join_for_its_id() -> None:
    world = World()
    token = world.join(instance="i")
    world.pass_ms(DELAY_MS)
    assert world.joined(token).member_id.startswith("i-")


def test_a_restart_within_the_session_does_not_disturb_the_group() -> None:
    world = World()
    leader, before = world.gather(1, instances=["i"])
    token = world.join(instance="i")
    assert world.waits(token), "the new id must be in the log before it is told"
    world.acknowledge()
    answer = world.joined(token)
    assert (answer.generation_id, answer.leader, answer.members) == (1, leader, [])
    assert answer.member_id != before
    assert not answer.skip_assignment
    assert world.group.state is GroupState.STABLE
    assert world.assigned(world.sync(answer.member_id, 1, instance="i")) == f"{before}@1".encode()
    assert {one.member_id for one in world.log[-1].members} == {leader, answer.member_id}


def test_the_old_id_is_fenced_everywhere() -> None:
    """I-28. Two processes of one instance: the older one must stop."""
    world = World()
    _leader, before = world.gather(1, instances=["i"])
    world.join(instance="i")
    world.acknowledge()
    assert world.heartbeat(before, 1, instance="i") is FencedInstance
    assert world.code(world.sync(before, 1, instance="i")) is FencedInstance
    assert world.commit(before, 1, instance="i") is FencedInstance
    assert world.code(world.join(before, instance="i")) is ErrorCode.FENCED_INSTANCE_ID


def test_requests_of_the_old_id_that_wait_are_fenced_at_once() -> None:
    world = World()
    leader, before = world.gather(1, instances=["i"])
    world.join(leader)
    waiting = world.join(before, instance="i", protocols={"range": subscription("u")})
    assert world.joined(waiting).generation_id == 2
    sync = world.sync(before, 2, instance="i")
    world.join(instance="i")
    assert world.code(sync) is ErrorCode.FENCED_INSTANCE_ID
    old_join = world.join(instance="i")
    newest = world.join(instance="i")
    assert world.code(old_join) is ErrorCode.FENCED_INSTANCE_ID
    world.join(leader)
    assert world.joined(newest).generation_id == 3


def test_a_static_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    """KIP-814: it stays the leader, to watch the topics."""
    world = World()
    before, other = world.gather(0, instances=["i", "j"])
    token = world.join(instance="i", version=9)
    world.acknowledge()
    answer = world.joined(token)
    assert answer.leader == answer.member_id == world.group.leader_id != before
    assert answer.skip_assignment
    assert {one.member_id for one in answer.members} == {answer.member_id, other}


def test_an_older_static_leader_is_told_the_old_leader_so_that_it_computes_nothing() -> None:
    world = World()
    before, _other = world.gather(0, instances=["i", "j"])
    token = world.join(instance="i", version=8)
    world.acknowledge()
    answer = world.joined(token)
    assert (answer.leader, answer.members) == (before, [])


def test_another_subscription_of_a_restarted_member_rebalances() -> None:
    """KAFKA-12759. Otherwise nobody would ever read the new topic."""
    world = World()
    leader, _before = world.gather(1, instances=["i"])
    token = world.join(instance="i", protocols={"range": subscription("t", "u")})
    assert world.group.state is GroupState.PREPARING
    world.join(leader)
    assert world.joined(token).generation_id == 2


def test_other_metadata_with_the_same_topics_does_not_rebalance() -> None:
    """A cooperative consumer tells what it owns; after a restart that is nothing."""
    owned = {"range": subscription("t", tail=b"\0\0\0\1" + b"owned")}
    world = World()
    world.gather(1, instances=["i"], protocols=owned)
    world.join(instance="i")
    assert world.group.state is GroupState.STABLE


def test_another_selected_protocol_rebalances() -> None:
    both = {"a": subscription("t"), "b": subscription("t")}
    world = World()
    leader, _before = world.gather(1, instances=["i"], protocols=both)
    assert world.group.protocol_name == "a"
    token = world.join(instance="i", protocols={"b": subscription("t")})
    assert world.group.state is GroupState.PREPARING
    world.join(leader, protocols=both)
    assert world.joined(token).protocol_name == "b"


def test_while_the_leader_computes_a_restart_makes_all_gather_again() -> None:
    """KAFKA-9801. The leader computes for the old id."""
    world = World()
    leader = world.join(world.new_id())
    static = world.join(instance="i")
    world.pass_ms(2 * DELAY_MS)
    waiting = world.sync(world.joined(leader).member_id, 1)
    world.join(instance="i")
    assert world.code(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.group.state is GroupState.PREPARING
    assert not world.group.has_member(world.joined(static).member_id)  # type: ignore[arg-type]


def test_while_the_group_gathers_a_restart_counts_as_joining() -> None:
    world = World()
    leader, _before = world.gather(1, instances=["i"])
    first = world.join(leader)
    second = world.join(instance="i")
    assert {world.joined(one).generation_id for one in (first, second)} == {2}


def test_a_refused_new_id_gives_the_place_back_to_the_old_one() -> None:
    world = World()
    _leader, before = world.gather(1, instances=["i"])
    token = world.join(instance="i", session_ms=20_000)
    world.refuse()
    assert world.code(token) is LogRefused
    assert world.heartbeat(before, 1, instance="i") is ErrorCode.NONE
    assert world.assigned(world.sync(before, 1, instance="i")) == f"{before}@1".encode()
    world.pass_ms(SESSION_MS)
    assert not world.group.has_member(before)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_rebalance_during_the_write_answers_the_restarted_member(is_taken: bool) -> None:
    world = World()
    leader, _before = world.gather(1, instances=["i"])
    token = world.join(instance="i")
    newcomer = world.join(version=3)
    if is_taken:
        world.acknowledge(1)
    else:
        world.refuse()
    assert world.waits(token)
    world.join(leader)
    assert {world.joined(one).generation_id for one in (token, newcomer)} == {2}


def test_a_member_that_restarts_twice_during_the_write_is_one_member() -> None:
    world = World()
    world.gather(1, instances=["i"])
    first, second = world.join(instance="i"), world.join(instance="i")
    assert world.code(first) is ErrorCode.FENCED_INSTANCE_ID
    world.acknowledge()
    answer = world.joined(second)
    assert len(world.group.members) == 2
    assert world.heartbeat(answer.member_id, 1, instance="i") is ErrorCode.NONE


def test_a_removed_member_does_not_come_back_when_its_write_fails() -> None:
    world = World()
    leader, _before = world.gather(1, instances=["i"])
    token = world.join(instance="i")
    after = [one.member_id for one in world.group.members if one.instance_id == "i"]
    world.leave(after[0])
    assert world.code(token) is ErrorCode.UNKNOWN_MEMBER_ID
    world.refuse()
    assert [one.member_id for one in world.group.members] == [leader]


def test_the_new_id_survives_a_failover_and_the_old_one_stays_fenced() -> None:
    """I-28."""
    world = World()
    _leader, before = world.gather(1, instances=["i"])
    token = world.join(instance="i")
    world.acknowledge()
    after = world.joined(token).member_id
    world.fail_over()
    assert world.heartbeat(after, 1, instance="i") is ErrorCode.NONE
    assert world.heartbeat(before, 1, instance="i") is FencedInstance


def test_a_static_member_that_does_not_join_stays_until_its_session_ends() -> None:
    world = World()
    leader, static = world.gather(1, instances=["i"])
    token = world.join(leader)
    for _ in range(REBALANCE_MS // 5_000):
        world.heartbeat(static, 1, instance="i")
        world.pass_ms(5_000)
    answer = world.joined(token)
    assert {one.member_id for one in answer.members} == {leader, static}
    assert world.heartbeat(static, 1, instance="i") is IllegalGeneration
    assert world.code(world.sync(static, 1, instance="i")) is IllegalGeneration


def test_when_only_static_members_are_left_and_none_joins_their_sessions_decide() -> None:
    world = World()
    leader, static = world.gather(1, instances=["i"])
    world.leave(leader)
    for _ in range(3 * REBALANCE_MS // 5_000):
        world.heartbeat(static, 1, instance="i")
        assert world.code(world.sync(static, 1, instance="i")) is RebalanceInProgress
        world.pass_ms(5_000)
    assert world.group.describe().group_state == "PreparingRebalance"
    world.pass_ms(SESSION_MS)
    assert world.group.state is GroupState.EMPTY


def test_a_static_member_that_comes_back_to_a_full_group_takes_no_new_place() -> None:
    world = World(Settings(group_size_max=2))
    world.gather(1, instances=["i"])
    token = world.join(instance="i")
    world.acknowledge()
    assert world.joined(token).generation_id == 1


def test_where_a_restarted_member_runs_now_is_told() -> None:
    world = World()
    world.gather(1, instances=["i"])
    world.join(instance="i", client="elsewhere")
    described = {one.group_instance_id: one.client_id for one in world.group.describe().members}
    assert described["i"] == "elsewhere"
