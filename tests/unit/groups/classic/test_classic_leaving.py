"""LeaveGroup of the classic protocol, and what a group is that nobody is in any more."""

from kits.groups.classic_kit import DELAY_MS, SESSION_MS, LogRefused, World
from millstream.groups.classic.group import GroupState
from millstream.shards.errors import CoordinatorNotAvailable
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.leave_group import MemberIdentity

OK = ErrorCode.NONE


def static(instance: str, member_id: str = "") -> MemberIdentity:
    return MemberIdentity(member_id=member_id, group_instance_id=instance)


def test_a_member_that_leaves_makes_the_others_gather() -> None:
    world = World()
    leader, other = world.gather(2)
    assert world.left(world.leave(leader)) == [OK]
    assert world.group.state is GroupState.PREPARING
    assert world.joined(world.join(other)).leader == other


def test_the_last_one_hears_when_the_empty_group_is_written() -> None:
    world = World()
    (member_id,) = world.gather(1)
    token = world.leave(member_id)
    assert world.waits(token)
    world.acknowledge()
    assert world.left(token) == [OK]
    assert world.group.state is GroupState.EMPTY
    assert (world.log[-1].generation, world.log[-1].members) == (2, [])


def test_a_refused_empty_group_is_told_and_the_group_is_empty_all_the_same() -> None:
    world = World()
    (member_id,) = world.gather(1)
    token = world.leave(member_id)
    world.refuse()
    assert world.code(token) is LogRefused
    assert world.group.state is GroupState.EMPTY
    assert world.left(world.leave(member_id)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_old_versions_have_one_member_and_one_code() -> None:
    world = World()
    leader, _other = world.gather(2)
    assert world.code(world.leave("stranger", version=2)) is ErrorCode.UNKNOWN_MEMBER_ID
    token = world.leave(leader, version=0)
    assert world.code(token) is OK
    assert world.left(token) == []


def test_each_member_of_a_batch_has_its_own_result() -> None:
    world = World()
    leader, a, b = world.gather(1, instances=["a", "b"])
    token = world.leave(
        MemberIdentity(member_id="stranger"),
        static("a"),
        static("b", member_id=a),
        static("unknown"),
        MemberIdentity(member_id=""),
        leader,
    )
    assert world.left(token) == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        OK,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        OK,
    ]
    assert [one.member_id for one in world.group.members] == [b]
    assert [one.group_instance_id for one in world.answers[token].members][:3] == [None, "a", "b"]


def test_a_batch_rebalances_once() -> None:
    world = World()
    ids = world.gather(4)
    world.leave(*ids[1:])
    assert world.joined(world.join(ids[0])).generation_id == 2


def test_a_leave_in_which_nobody_leaves_disturbs_nobody() -> None:
    world = World()
    world.gather(2)
    world.leave("stranger")
    assert world.group.state is GroupState.STABLE


def test_who_leaves_while_it_waits_is_answered() -> None:
    world = World()
    leader, other = world.gather(2)
    token = world.join(leader)
    world.leave(leader)
    assert world.code(token) is ErrorCode.UNKNOWN_MEMBER_ID
    again = world.join(other)
    assert world.joined(again).generation_id == 2
    newcomer = world.join(version=3)
    world.join(other)
    assert world.joined(newcomer).generation_id == 3
    parked = world.sync(world.joined(newcomer).member_id, 3)
    world.leave(world.joined(newcomer).member_id)
    assert world.code(parked) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_one_that_all_wait_for_leaves() -> None:
    world = World()
    leader, other = world.gather(2)
    token = world.join(leader)
    world.leave(other)
    assert world.joined(token).generation_id == 2


def test_a_pending_member_leaves_without_disturbing_a_stable_group() -> None:
    world = World()
    (member_id,) = world.gather(1)
    pending = world.new_id()
    assert world.left(world.leave(pending)) == [OK]
    assert world.group.state is GroupState.STABLE
    pending = world.new_id()
    token = world.join(member_id)
    assert world.waits(token)
    world.leave(pending)
    assert world.joined(token).generation_id == 2


def test_all_leave_before_the_first_rebalance_is_over() -> None:
    world = World()
    member_id = world.new_id()
    token = world.join(member_id)
    world.leave(member_id)
    assert world.code(token) is ErrorCode.UNKNOWN_MEMBER_ID
    world.pass_ms(DELAY_MS)
    assert world.group.state is GroupState.EMPTY
    assert world.group.next_deadline_ms() is None


def test_one_that_comes_while_a_deserted_group_still_gathers_is_taken() -> None:
    world = World()
    member_id = world.new_id()
    world.join(member_id)
    world.leave(member_id)
    token = world.join(version=3)
    world.pass_ms(2 * DELAY_MS)
    assert world.joined(token).generation_id == 1


def test_a_member_that_leaves_while_the_assignment_is_written() -> None:
    world = World()
    tokens = [world.join(version=3) for _ in range(2)]
    world.pass_ms(2 * DELAY_MS)
    leader, other = (world.joined(token).member_id for token in tokens)
    parked = world.sync(leader, 1, {leader: b"a", other: b"b"})
    world.leave(other)
    assert world.code(parked) is ErrorCode.REBALANCE_IN_PROGRESS
    world.acknowledge()
    assert world.group.state is GroupState.PREPARING
    assert world.joined(world.join(leader, version=3)).generation_id == 2


def test_sessions_of_those_who_left_do_not_end_again() -> None:
    world = World()
    alive, gone = world.gather(2)
    world.leave(gone)
    world.join(alive)
    world.settle([alive])
    for _ in range(4):
        world.heartbeat(alive, 2)
        world.pass_ms(SESSION_MS // 2)
    assert world.group.state is GroupState.STABLE


def test_a_removed_group_sends_them_to_look_for_the_coordinator() -> None:
    world = World()
    world.group.on_removed()
    assert world.code(world.leave("m")) is CoordinatorNotAvailable
