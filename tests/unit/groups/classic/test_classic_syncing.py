"""SyncGroup and Heartbeat of the classic protocol: who gets which assignment, and when (I-27)."""

import pytest

from kits.groups.classic_kit import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    LogRefused,
    World,
    subscription,
)
from millstream.groups.classic.group import GroupState
from millstream.groups.errors import (
    FencedInstance,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    UnknownMember,
)
from millstream.shards.errors import CoordinatorNotAvailable, RequestRefused
from millstream.wire.errors import ErrorCode


def computing(size: int = 2) -> tuple[World, list[str]]:
    """A group whose leader computes."""
    world = World()
    tokens = [world.join(version=3) for _ in range(size)]
    world.pass_ms(2 * DELAY_MS)
    return world, [world.joined(token).member_id for token in tokens]


def test_nobody_gets_an_assignment_before_it_is_written() -> None:
    """I-27. After a failover the next coordinator must know what the members work by."""
    world, (leader, other) = computing()
    tokens = [world.sync(other, 1), world.sync(leader, 1, {leader: b"a", other: b"b"})]
    assert all(world.waits(token) for token in tokens)
    assert world.group.describe().group_state == "CompletingRebalance"
    world.acknowledge()
    assert [world.assigned(token) for token in tokens] == [b"b", b"a"]
    assert world.group.state is GroupState.STABLE
    record = world.log[-1]
    assert (record.generation, record.protocol, record.leader) == (1, "range", leader)
    assert {one.member_id: one.assignment for one in record.members} == {
        leader: b"a",
        other: b"b",
    }


def test_who_asks_after_the_leader_gets_the_same_assignment() -> None:
    world, (leader, other) = computing()
    world.sync(leader, 1, {leader: b"a", other: b"b"})
    during = world.sync(other, 1)
    world.acknowledge()
    assert world.assigned(during) == b"b"
    assert world.assigned(world.sync(other, 1)) == b"b"
    assert world.answers[during].protocol_name == "range"


def test_members_that_the_leader_forgot_get_nothing_and_strangers_are_left_out() -> None:
    world, (leader, other) = computing()
    token = world.sync(other, 1)
    world.sync(leader, 1, {leader: b"a", "stranger": b"x"})
    world.acknowledge()
    assert world.assigned(token) == b""
    assert {one.member_id for one in world.log[-1].members} == {leader, other}


def test_a_leader_that_asks_twice_writes_once() -> None:
    """Two assignments of one generation in the log: a failover would change the first to the
    second, while members work by the first.
    """
    world, (leader, other) = computing()
    first = world.sync(leader, 1, {leader: b"a", other: b"b"})
    second = world.sync(leader, 1, {leader: b"b", other: b"a"})
    assert world.code(first) is ErrorCode.NOT_COORDINATOR
    world.acknowledge()
    assert world.assigned(second) == b"a"
    assert len(world.log) == 1


def test_a_refused_assignment_is_told_and_all_gather_again() -> None:
    world, (leader, other) = computing()
    tokens = [world.sync(other, 1), world.sync(leader, 1, {leader: b"a", other: b"b"})]
    world.refuse()
    assert {world.code(token) for token in tokens} == {LogRefused}
    assert world.group.state is GroupState.PREPARING
    assert [one.assignment for one in world.group.members] == [b"", b""]
    again = [world.join(one, version=3) for one in (leader, other)]
    assert {world.joined(token).generation_id for token in again} == {2}
    world.settle([leader, other])


@pytest.mark.parametrize("is_taken", [True, False])
def test_an_outcome_of_a_generation_that_was_given_up_changes_nothing(is_taken: bool) -> None:
    """A member joins while the assignment is being written; the group goes on without it."""
    world, (leader, other) = computing()
    old = world.sync(leader, 1, {leader: b"old", other: b"old"})
    newcomer = world.join(version=3)
    assert world.code(old) is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [world.join(one, version=3) for one in (leader, other)]
    assert {world.joined(one).generation_id for one in [newcomer, *tokens]} == {2}
    new = world.sync(leader, 2, {leader: b"new"})
    if is_taken:
        world.acknowledge(1)
    else:
        world.refuse()
    assert world.waits(new)
    assert world.group.state is GroupState.COMPLETING
    world.acknowledge()
    assert world.assigned(new) == b"new"


def test_a_second_sync_takes_the_place_of_the_first() -> None:
    world, (leader, other) = computing()
    first, second = world.sync(other, 1), world.sync(other, 1)
    assert world.code(first) is ErrorCode.NOT_COORDINATOR
    world.sync(leader, 1, {other: b"b"})
    world.acknowledge()
    assert world.assigned(second) == b"b"


# -- refusals ----------------------------------------------------------------------------------


def test_sync_is_refused_to_all_who_are_not_of_the_generation() -> None:
    """I-28."""
    world, (leader, other) = computing()
    assert world.code(world.sync("stranger", 1)) is UnknownMember
    assert world.code(world.sync(other, 0)) is IllegalGeneration
    assert world.code(world.sync(other, 2)) is IllegalGeneration
    assert world.code(world.sync(other, 1, instance="i")) is UnknownMember
    assert world.code(world.sync(leader, 1, protocol=("connect", "range"))) is InconsistentProtocol
    assert world.code(world.sync(leader, 1, protocol=("consumer", "x"))) is InconsistentProtocol
    assert not world.held


def test_version_5_must_name_the_protocol_and_older_ones_cannot() -> None:
    world, (leader, other) = computing()
    assert world.code(world.sync(other, 1, protocol=(None, "range"))) is InconsistentProtocol
    assert world.code(world.sync(other, 1, protocol=("consumer", None))) is InconsistentProtocol
    assert world.waits(world.sync(leader, 1, protocol=(None, None), version=4))


def test_sync_while_the_group_gathers_is_told_to_join() -> None:
    world = World()
    leader, other = world.gather(2)
    world.join(leader)
    assert world.code(world.sync(other, 1)) is RebalanceInProgress


def test_sync_with_an_empty_and_with_a_removed_group() -> None:
    world = World()
    assert world.code(world.sync("m", 0)) is UnknownMember
    world.group.on_removed()
    assert world.code(world.sync("m", 0)) is CoordinatorNotAvailable


# -- time --------------------------------------------------------------------------------------


def test_who_does_not_ask_for_its_assignment_in_time_is_out() -> None:
    """KAFKA-12890. It beats, but does not work with the group."""
    world, (leader, other) = computing()
    token = world.sync(leader, 1, {leader: b"a", other: b"b"})
    world.acknowledge()
    assert world.assigned(token) == b"a"
    for _ in range(REBALANCE_MS // 5_000):
        assert world.heartbeat(other, 1) is ErrorCode.NONE
        assert world.heartbeat(leader, 1) is ErrorCode.NONE
        world.pass_ms(5_000)
    assert world.group.state is GroupState.PREPARING
    assert [one.member_id for one in world.group.members] == [leader]


def test_a_leader_that_never_hands_out_the_assignment_is_out() -> None:
    world, (leader, other) = computing()
    token = world.sync(other, 1)
    for _ in range(REBALANCE_MS // 5_000):
        world.heartbeat(leader, 1)
        world.pass_ms(5_000)
    assert world.code(token) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.joined(world.join(other, version=3)).leader == other


def test_who_waits_for_the_assignment_needs_not_beat_and_has_a_whole_session_then() -> None:
    """I-30."""
    world, (leader, other) = computing()
    token = world.sync(other, 1)
    for _ in range(4):
        world.heartbeat(leader, 1)
        world.pass_ms(SESSION_MS - 5_000)
    world.sync(leader, 1, {other: b"b"})
    world.acknowledge()
    assert world.assigned(token) == b"b"
    world.heartbeat(leader, 1)
    world.pass_ms(SESSION_MS - 1)
    assert world.group.has_member(other)  # type: ignore[arg-type]
    world.pass_ms(1)
    assert not world.group.has_member(other)  # type: ignore[arg-type]


# -- heartbeats --------------------------------------------------------------------------------


def test_heartbeats_are_refused_to_all_who_are_not_of_the_generation() -> None:
    """I-28."""
    world = World()
    leader, static = world.gather(1, instances=["i"])
    assert world.heartbeat(leader, 1) is ErrorCode.NONE
    assert world.heartbeat(static, 1, instance="i") is ErrorCode.NONE
    assert world.heartbeat("stranger", 1) is UnknownMember
    assert world.heartbeat(leader, 0) is IllegalGeneration
    assert world.heartbeat(leader, 1, instance="unknown") is UnknownMember
    assert world.heartbeat(leader, 1, instance="i") is FencedInstance
    world.group.on_removed()
    assert world.heartbeat(leader, 1) is CoordinatorNotAvailable


def test_heartbeats_are_fine_while_the_leader_computes() -> None:
    world, ids = computing()
    assert {world.heartbeat(one, 1) for one in ids} == {ErrorCode.NONE}


def test_a_member_is_removed_when_its_session_ends_and_not_before() -> None:
    """I-30."""
    world = World()
    alive, dead = world.gather(2)
    world.heartbeat(dead, 1)
    for _ in range(9):
        world.heartbeat(alive, 1)
        world.pass_ms(SESSION_MS // 10)
    world.pass_ms(SESSION_MS // 10 - 1)
    assert len(world.group.members) == 2
    world.pass_ms(1)
    assert [one.member_id for one in world.group.members] == [alive]
    assert world.group.state is GroupState.PREPARING
    assert world.heartbeat(alive, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_that_hears_of_nobody_becomes_empty_and_writes_so() -> None:
    world = World()
    world.gather(3)
    world.pass_ms(SESSION_MS + REBALANCE_MS)
    world.acknowledge()
    assert world.group.state is GroupState.EMPTY
    record = world.log[-1]
    assert (record.generation, record.members, record.protocol) == (2, [], None)
    assert (record.protocol_type, record.leader) == ("consumer", None)
    assert world.group.next_deadline_ms() is None


def test_a_whole_refusal_hierarchy_is_the_shells_to_code() -> None:
    """What is raised out of a request is a refusal, which `broker/error_codes` knows."""
    refusals = (UnknownMember, FencedInstance, IllegalGeneration, RebalanceInProgress)
    assert all(issubclass(one, RequestRefused) for one in refusals)


def test_hundreds_of_members_beat_without_being_looked_at() -> None:
    """The heap is not touched by a heartbeat: its entries are as many as the members."""
    world = World()
    ids = world.gather(300, protocols={"range": subscription("t")})
    heap = world.group._core.sessions._heap
    before = len(heap)
    for _ in range(5):
        world.now_ms += 100
        for one in ids:
            world.heartbeat(one, 1)
    assert len(heap) == before <= 2 * len(ids)
