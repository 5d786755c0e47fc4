"""A classic group after a failover: from its record, with sessions that begin anew."""

from kits.groups.classic_kit import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    LogRefused,
    Settings,
    World,
    subscription,
)
from millstream.groups.classic.group import GroupState
from millstream.groups.errors import IllegalGeneration, RebalanceInProgress
from millstream.groups.records.values import GroupMetadataValue, MemberMetadata
from millstream.wire.errors import ErrorCode


def test_members_go_on_as_if_nothing_had_happened() -> None:
    world = World()
    leader, static = world.gather(1, instances=["i"])
    described = world.group.describe()
    world.pass_ms(SESSION_MS - 1)
    world.fail_over()
    assert world.group.describe() == described
    assert world.group.leader_id == leader
    assert world.group.subscribed_topics() == frozenset({"t"})
    world.pass_ms(SESSION_MS - 1)
    assert world.heartbeat(leader, 1) is ErrorCode.NONE
    assert world.heartbeat(static, 1, instance="i") is ErrorCode.NONE
    assert world.assigned(world.sync(static, 1, instance="i")) == f"{static}@1".encode()


def test_who_does_not_come_back_is_removed_in_time() -> None:
    """I-30."""
    world = World()
    world.gather(2)
    world.fail_over()
    world.pass_ms(SESSION_MS + REBALANCE_MS)
    assert world.group.state is GroupState.EMPTY


def test_an_assignment_that_was_not_written_is_not_there() -> None:
    """I-27. The members of the lost generation cannot go on in it."""
    world = World()
    ids = world.gather(2)
    for one in ids:
        world.join(one)
    world.sync(ids[0], 2, {ids[0]: b"new"})
    world.fail_over()
    assert world.group.generation_id == 1
    assert world.heartbeat(ids[0], 2) is IllegalGeneration
    assert world.commit(ids[0], 2) is IllegalGeneration
    assert world.assigned(world.sync(ids[0], 1)) == f"{ids[0]}@1".encode()


def test_the_last_record_counts() -> None:
    world = World()
    (member_id,) = world.gather(1)
    world.leave(member_id)
    world.acknowledge()
    left_ms = WALL_MS + world.now_ms
    world.now_ms += 5_000
    world.fail_over()
    assert world.group.state is GroupState.EMPTY
    assert world.group.generation_id == 2
    assert world.group.state_since_ms == left_ms
    assert world.group.protocol_type == "consumer"
    assert not world.group.is_simple


def test_a_group_above_the_limit_gathers_and_the_last_ones_have_to_go() -> None:
    world = World()
    ids = world.gather(4)
    world.settings.group_size_max = 2
    world.fail_over()
    assert world.group.state is GroupState.PREPARING
    assert world.commit(ids[3], 1) is None, "it can store what it did"
    tokens = [world.join(one) for one in ids]
    assert [world.code(token) for token in tokens[2:]] == [ErrorCode.GROUP_MAX_SIZE_REACHED] * 2
    assert {world.joined(token).generation_id for token in tokens[:2]} == {2}
    assert len(world.group.members) == 2


def test_a_group_at_the_limit_stays() -> None:
    world = World(Settings(group_size_max=2))
    world.gather(2)
    world.fail_over()
    assert world.group.state is GroupState.STABLE


def test_a_record_of_an_old_broker_has_one_timeout_and_no_time() -> None:
    world = World()
    member = MemberMetadata(member_id="m", session_timeout=7_000, subscription=b"", assignment=b"x")
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="m", members=[member]
    )
    world.group.apply_metadata(GroupMetadataValue.decode(value.encode(0), 0))
    assert world.group.state_since_ms is None
    assert world.group.members[0].facts.rebalance_timeout_ms == 7_000
    assert world.group.subscribed_topics() is None


def test_loading_needs_the_record_no_longer_than_the_call() -> None:
    """It is a view into the bytes that were read from the log."""
    world = World()
    world.gather(1)
    raw = bytearray(world.log[-1].encode(4))
    group = world.new_group()
    value = GroupMetadataValue.decode(raw, 4)
    group.apply_metadata(value)
    before = group.describe()
    raw[:] = bytes(len(raw))
    assert group.describe() == before


def test_whoever_waits_when_the_group_is_unloaded_is_named() -> None:
    world = World()
    leader, other = world.gather(2)
    joining = world.join(leader)
    assert list(world.group.waiting_tokens()) == [joining]
    world.join(other)
    syncing = world.sync(other, 2)
    assert list(world.group.waiting_tokens()) == [syncing]


# -- conversion --------------------------------------------------------------------------------


def test_a_converted_group_gathers_by_this_protocol() -> None:
    world = World()
    ids = world.gather(2)
    world.fail_over()
    world.group.start_rebalance("the last consumer left", world.now_ms)
    assert world.group.state is GroupState.PREPARING
    assert world.heartbeat(ids[0], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [world.join(one) for one in ids]
    assert {world.joined(token).generation_id for token in tokens} == {2}


def test_a_group_that_is_converted_away_tells_those_who_wait() -> None:
    world = World()
    leader, _other = world.gather(2)
    token = world.join(leader)
    world.group.on_removed(RebalanceInProgress())
    world.drain()
    assert world.code(token) is RebalanceInProgress
    assert world.group.state is GroupState.DEAD
    assert world.group.next_deadline_ms() is None


def test_the_record_for_a_conversion_is_what_was_written() -> None:
    world = World()
    world.gather(2, instances=["i"])
    assert world.group.as_record().members == world.log[-1].members
    assert world.group.as_record().generation == 1


def test_there_is_a_record_for_a_conversion_while_the_group_gathers() -> None:
    """A member that joins may not have the protocol of the last generation."""
    both = {"a": subscription("t"), "b": subscription("u")}
    world = World()
    assert world.group.as_record().members == []
    (member_id,) = world.gather(1, protocols=both)
    world.join(version=3, protocols={"b": subscription("u")})
    record = world.group.as_record()
    assert (record.protocol, len(record.members)) == ("b", 2)
    assert [one.assignment for one in record.members] == [f"{member_id}@1".encode(), b""]
    assert record.encode(4)


def test_who_waits_in_a_converted_group_is_told_to_join_again() -> None:
    world = World()
    leader, other = world.gather(2)
    joining = world.join(leader)
    world.group.request_rejoin()
    world.drain()
    assert world.code(joining) is ErrorCode.REBALANCE_IN_PROGRESS
    world.join(leader)
    world.join(other)
    syncing = world.sync(leader, 2)
    world.group.request_rejoin()
    world.drain()
    assert world.code(syncing) is ErrorCode.REBALANCE_IN_PROGRESS


def test_outcomes_of_writes_do_not_disturb_a_removed_group() -> None:
    world = World()
    token = world.join(version=3)
    world.pass_ms(DELAY_MS)
    member_id = world.joined(token).member_id
    world.sync(member_id, 1, {member_id: b"x"})
    world.group.on_removed()
    world.drain()
    world.acknowledge()
    assert world.group.state is GroupState.DEAD


def test_the_outcome_that_the_shell_tells_is_what_members_hear() -> None:
    world = World()
    token = world.join(version=3)
    world.pass_ms(DELAY_MS)
    member_id = world.joined(token).member_id
    parked = world.sync(member_id, 1, {member_id: b"x"})
    world.refuse()
    assert world.code(parked) is LogRefused


# -- describing --------------------------------------------------------------------------------


def test_only_a_stable_group_tells_how_it_works() -> None:
    world = World()
    (member_id,) = world.gather(1)
    told = world.group.describe()
    assert (told.group_id, told.group_state) == ("g", "Stable")
    assert (told.protocol_type, told.protocol_data) == ("consumer", "range")
    (member,) = told.members
    assert (member.client_id, member.client_host) == ("c", "/10.0.0.1")
    assert member.member_assignment == f"{member_id}@1".encode()
    assert member.member_metadata
    world.new_id()
    world.join(member_id)
    told = world.group.describe()
    assert (told.group_state, told.protocol_data) == ("PreparingRebalance", "")
    assert told.members[0].member_metadata == b""


def test_an_unknown_group_is_empty() -> None:
    told = World().group.describe()
    assert (told.group_state, told.members, told.protocol_type) == ("Empty", [], "")
