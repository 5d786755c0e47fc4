"""JoinGroup of the classic protocol: who gets in, when the group has gathered, what it works by."""

import pytest

from kits.groups.classic_kit import (
    DELAY_MS,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Settings,
    World,
    subscription,
)
from millstream.groups.classic.group import GroupState
from millstream.groups.classic.join_group import NEW_MEMBER_TIMEOUT_MS, PENDING_MEMBERS_MAX
from millstream.wire.errors import ErrorCode


def test_a_new_member_first_gets_its_id_and_joins_with_it() -> None:
    """KIP-394: a client whose answer is lost leaves no member behind, only an id."""
    world = World()
    member_id = world.new_id(client="app")
    assert member_id.startswith("app-")
    assert world.group.members == []
    assert world.group.state is GroupState.EMPTY
    token = world.join(member_id)
    assert world.waits(token)
    world.pass_ms(DELAY_MS)
    assert world.joined(token).member_id == member_id


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_versions_are_members_at_once(version: int) -> None:
    world = World()
    token = world.join(version=version)
    world.pass_ms(DELAY_MS)
    answer = world.joined(token)
    assert answer.leader == answer.member_id
    assert [one.member_id for one in answer.members] == [answer.member_id]


def test_version_0_has_the_session_timeout_as_rebalance_timeout() -> None:
    world = World()
    world.join(version=0, session_ms=7_000, rebalance_ms=-1)
    assert world.group.members[0].facts.rebalance_timeout_ms == 7_000


def test_the_first_member_leads_and_only_it_gets_the_members() -> None:
    world = World()
    ids = [world.new_id() for _ in range(3)]
    tokens = [world.join(one, protocols={"range": subscription(one)}) for one in ids]
    world.pass_ms(DELAY_MS * 2)
    answers = [world.joined(token) for token in tokens]
    assert {one.leader for one in answers} == {ids[0]}
    assert {one.generation_id for one in answers} == {1}
    told = {one.member_id: bytes(one.metadata) for one in answers[0].members}
    assert told == {one: subscription(one) for one in ids}
    assert [one.members for one in answers[1:]] == [[], []]
    assert world.group.state is GroupState.COMPLETING


def test_the_first_rebalance_waits_longer_while_members_come() -> None:
    world = World()
    tokens = [world.join(version=3)]
    for _ in range(4):
        world.pass_ms(DELAY_MS - 1)
        tokens.append(world.join(version=3))
    assert all(world.waits(token) for token in tokens)
    world.pass_ms(2 * DELAY_MS)
    assert {world.joined(token).generation_id for token in tokens} == {1}


def test_the_first_rebalance_ends_with_the_rebalance_timeout_however_many_come() -> None:
    world = World()
    first = world.join(version=3)
    while world.waits(first):
        assert world.now_ms <= START_MS + REBALANCE_MS
        world.join(version=3)
        world.pass_ms(1_000)
    assert world.now_ms >= START_MS + REBALANCE_MS - DELAY_MS


def test_without_a_delay_the_first_member_does_not_wait() -> None:
    world = World(Settings(initial_rebalance_delay_ms=0))
    token = world.join(version=3)
    world.pass_ms(0)
    assert world.joined(token).generation_id == 1


def test_a_newcomer_makes_a_stable_group_gather_again() -> None:
    world = World()
    ids = world.gather(2)
    newcomer = world.join(world.new_id())
    assert world.group.state is GroupState.PREPARING
    assert world.heartbeat(ids[0], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [world.join(one) for one in ids]
    assert {world.joined(token).generation_id for token in [newcomer, *tokens]} == {2}


def test_who_does_not_join_in_time_is_out_and_the_leader_is_one_who_did() -> None:
    """The old leader is one of those who did not come."""
    world = World()
    leader, other = world.gather(2)
    newcomer = world.join(world.new_id())
    token = world.join(other)
    for _ in range(REBALANCE_MS // 5_000):  # the leader beats, but does not join
        world.heartbeat(leader, 1)
        world.pass_ms(5_000)
    assert world.joined(token).leader == other
    assert world.joined(newcomer).generation_id == 2
    assert [one.member_id for one in world.group.members] == [
        other,
        world.joined(newcomer).member_id,
    ]
    assert world.code(world.join(leader)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_slowest_member_decides_how_long_all_may_take() -> None:
    world = World()
    slow, other = world.join(version=3, rebalance_ms=60_000), world.join(version=3)
    world.pass_ms(2 * DELAY_MS)
    ids = [world.joined(token).member_id for token in (slow, other)]
    world.settle(ids)
    started_ms = world.now_ms
    world.join(ids[0], version=3, rebalance_ms=60_000)
    world.heartbeat(ids[1], 1)
    assert world.group.next_deadline_ms() == started_ms + SESSION_MS
    while world.group.state is GroupState.PREPARING:
        world.heartbeat(ids[1], 1)
        world.pass_ms(5_000)
    assert world.now_ms == started_ms + 60_000


# -- joining again -----------------------------------------------------------------------------


def test_a_follower_without_news_goes_on_in_the_generation() -> None:
    """It has lost the answer to its SyncGroup."""
    world = World()
    _leader, follower = world.gather(2)
    answer = world.joined(world.join(follower))
    assert (answer.generation_id, answer.members) == (1, [])
    assert world.assigned(world.sync(follower, 1)) == f"{follower}@1".encode()
    assert world.group.state is GroupState.STABLE


def test_a_follower_with_another_subscription_has_news() -> None:
    world = World()
    _leader, follower = world.gather(2)
    token = world.join(follower, protocols={"range": subscription("t", "u")})
    assert world.waits(token)
    assert world.group.state is GroupState.PREPARING


def test_the_leader_of_a_stable_group_joins_to_have_a_rebalance() -> None:
    """It has seen that a topic got partitions."""
    world = World()
    leader, _ = world.gather(2)
    assert world.waits(world.join(leader))
    assert world.group.state is GroupState.PREPARING


def test_who_lost_the_answer_gets_it_again_while_the_leader_computes() -> None:
    world = World()
    ids = [world.new_id(), world.new_id()]
    tokens = [world.join(one) for one in ids]
    world.pass_ms(2 * DELAY_MS)
    again = [world.join(one) for one in ids]
    assert [world.joined(one) for one in again] == [world.joined(one) for one in tokens]
    assert world.group.state is GroupState.COMPLETING


def test_news_while_the_leader_computes_makes_all_gather_again() -> None:
    world = World()
    ids = [world.new_id(), world.new_id()]
    for one in ids:
        world.join(one)
    world.pass_ms(2 * DELAY_MS)
    waiting = world.sync(ids[0], 1, {ids[0]: b"x"})
    world.join(ids[1], protocols={"range": subscription("other")})
    assert world.code(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.group.state is GroupState.PREPARING


def test_a_second_join_of_a_member_takes_the_place_of_the_first() -> None:
    """Its client has timed out and asks again; both get an answer."""
    world = World()
    ids = world.gather(2)
    first = world.join(ids[0])
    second = world.join(ids[0])
    assert world.code(first) is ErrorCode.NOT_COORDINATOR
    world.join(ids[1])
    assert world.joined(second).generation_id == 2


def test_an_empty_group_knows_no_member() -> None:
    world = World()
    (member_id,) = world.gather(1)
    world.leave(member_id)
    world.acknowledge()
    assert world.code(world.join(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID


# -- protocols ---------------------------------------------------------------------------------


def protocols(*names: str) -> dict[str, bytes]:
    return dict.fromkeys(names, subscription("t"))


def selected(*wishes: tuple[str, ...]) -> str | None:
    world = World()
    tokens = [world.join(version=3, protocols=protocols(*one)) for one in wishes]
    world.pass_ms(2 * DELAY_MS)
    return world.joined(tokens[0]).protocol_name


def test_members_vote_among_the_protocols_that_all_support() -> None:
    assert selected(("a", "b"), ("b", "a"), ("b", "a")) == "b"
    assert selected(("a", "b"), ("b", "a")) == "a", "with equal votes the older member decides"
    assert selected(("a", "b", "c"), ("x", "c"), ("c", "b")) == "c", "only one is common"


def test_a_member_with_nothing_in_common_is_refused() -> None:
    world = World()
    world.gather(2)
    stranger = world.join(protocols=protocols("sticky"))
    assert world.code(stranger) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_type = world.join(protocol_type="connect")
    assert world.code(other_type) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.group.state is GroupState.STABLE


@pytest.mark.parametrize("said", [{"protocols": {}}, {"protocol_type": ""}])
def test_a_member_must_say_how_it_works(said: dict[str, str]) -> None:
    world = World()
    token = world.join(**said)  # type: ignore[arg-type]
    assert world.code(token) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_may_not_give_up_the_last_common_protocol() -> None:
    world = World()
    ids = world.gather(2, protocols=protocols("a", "b"))
    world.join(ids[0], protocols=protocols("a"))
    token = world.join(ids[1], protocols=protocols("b"))
    assert world.code(token) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_emptied_group_may_change_its_protocol_type() -> None:
    world = World()
    (member_id,) = world.gather(1)
    world.leave(member_id)
    token = world.join(version=3, protocol_type="connect", protocols={"v1": b"anything"})
    world.pass_ms(DELAY_MS)
    assert world.joined(token).protocol_name == "v1"
    assert world.group.protocol_type == "connect"
    assert world.group.subscribed_topics() is None


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
def test_session_timeouts_have_limits(session_ms: int) -> None:
    world = World()
    assert world.code(world.join(session_ms=session_ms)) is ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_full_group_takes_no_more_but_keeps_its_members() -> None:
    world = World(Settings(group_size_max=2))
    ids = world.gather(2)
    refused = world.join(version=3)
    assert world.code(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group.state is GroupState.STABLE
    tokens = [world.join(one) for one in ids]
    assert {world.joined(token).generation_id for token in tokens} == {2}


def test_while_a_group_gathers_only_those_who_joined_count() -> None:
    world = World(Settings(group_size_max=2))
    tokens = [world.join(version=3) for _ in range(3)]
    assert world.code(tokens[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.pass_ms(2 * DELAY_MS)
    assert len(world.group.members) == 2


def test_a_pending_member_that_finds_the_group_full_is_forgotten() -> None:
    world = World(Settings(group_size_max=1))
    late = world.new_id()
    world.gather(1)
    assert world.code(world.join(late)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.settings.group_size_max = 2
    assert world.code(world.join(late)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_that_nobody_uses_are_limited_and_go_with_their_session() -> None:
    world = World()
    for _ in range(PENDING_MEMBERS_MAX):
        world.new_id()
    assert world.code(world.join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.pass_ms(SESSION_MS)
    assert world.new_id()


def test_a_pending_member_is_waited_for_until_its_session_ends() -> None:
    world = World()
    ids = world.gather(1)
    late = world.new_id()
    token = world.join(ids[0])
    assert world.waits(token)
    world.pass_ms(SESSION_MS)
    assert world.joined(token).generation_id == 2
    assert world.code(world.join(late)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_member_does_not_become_a_static_one() -> None:
    world = World()
    token = world.join(world.new_id(), instance="i")
    assert world.code(token) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_that_waits_too_long_is_let_go() -> None:
    """Its client may be gone; if it is not it asks again."""
    world = World()
    ids = world.gather(1, rebalance_ms=NEW_MEMBER_TIMEOUT_MS * 2)
    newcomer = world.join(version=3)
    while world.waits(newcomer):
        world.heartbeat(ids[0], 1)
        world.pass_ms(5_000)
    assert world.now_ms - START_MS < NEW_MEMBER_TIMEOUT_MS + 4 * DELAY_MS
    assert world.code(newcomer) is ErrorCode.UNKNOWN_MEMBER_ID
    assert [one.member_id for one in world.group.members] == ids


def test_the_generation_after_the_last_number_is_the_first() -> None:
    world = World()
    (member_id,) = world.gather(1)
    last = world.log[-1]
    last.generation = 2**31 - 1
    world.fail_over()
    assert world.joined(world.join(member_id, protocols=RANGE)).generation_id == 1


def test_the_reason_is_kept_for_people_and_cut() -> None:
    world = World()
    (member_id,) = world.gather(1)
    world.join(member_id, reason="topics changed")
    assert world.group.reason.endswith("topics changed")
    world.settle([member_id])
    world.join(member_id, reason="x" * 1_000)
    assert len(world.group.reason) == 255


def test_a_removed_group_sends_members_to_look_for_the_coordinator() -> None:
    world = World()
    world.group.on_removed()
    assert world.code(world.join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.code(world.join("m")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
