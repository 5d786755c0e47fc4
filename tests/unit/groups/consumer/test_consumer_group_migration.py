"""Classic members in a next-generation group, and the way from one kind of group to the other."""

from collections.abc import Sequence
from typing import Any

import pytest

from kits.groups.consumer_group_kit import GROUP, FakeSettings, FakeTopics, GroupWorld, facts_of
from millstream.groups.consumer.commits import Committer
from millstream.groups.consumer.conversion import upgrade_entries
from millstream.groups.consumer.embedded import (
    EmbeddedAssignment,
    EmbeddedPartitions,
    EmbeddedSubscription,
    decode_assignment,
)
from millstream.groups.consumer.state import ConsumerGroupState
from millstream.groups.errors import (
    FencedInstance,
    GroupNotFound,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMember,
)
from millstream.groups.records.keys import ClassicGroupKey
from millstream.groups.records.values import GroupMetadataValue, MemberMetadata
from millstream.groups.settings import MigrationPolicy
from millstream.model.ids import MemberId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.sync_group import SyncGroupRequest


def subscription(*topics: str, **owned: list[int]) -> bytes:
    parts = [EmbeddedPartitions(topic=one, partitions=parts) for one, parts in owned.items()]
    subscription = EmbeddedSubscription(topics=list(topics), owned_partitions=parts)
    return b"\0\3" + subscription.encode(3)


def assignment(user_data: bytes | None = None, **parts: list[int]) -> bytes:
    assigned = [EmbeddedPartitions(topic=one, partitions=numbers) for one, numbers in parts.items()]
    return b"\0\3" + EmbeddedAssignment(assigned_partitions=assigned, user_data=user_data).encode(3)


def a_world(policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL, **more: Any) -> GroupWorld:
    return GroupWorld(FakeTopics(orders=4), FakeSettings(migration_policy=policy, **more))


def join(
    world: GroupWorld, member_id: str = "", *, version: int = 9, **said: Any
) -> JoinGroupResponse:
    """A classic member; one without an id comes back with the one it is given."""
    names = said.pop("names", ["range"])
    metadata = said.pop("metadata", subscription("orders", **said.pop("owned", {})))
    protocols = [JoinGroupRequestProtocol(name=one, metadata=metadata) for one in names]
    defaults = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000}
    request = JoinGroupRequest(
        group_id=GROUP,
        member_id=member_id,
        protocol_type=said.pop("protocol_type", "consumer"),
        protocols=protocols,
        **(defaults | said),
    )
    answer = world.submit(world.group.join, request, world.caller(version))
    assert isinstance(answer, JoinGroupResponse)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return join(world, answer.member_id, names=names, metadata=metadata, **said)
    return answer


def sync(world: GroupWorld, member_id: str, generation: int) -> dict[str, list[int]]:
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
    )
    answer = world.submit(world.group.sync, request, world.caller(5))
    assigned = decode_assignment(answer.assignment).assigned_partitions
    return {one.topic: one.partitions for one in assigned}


def beat(world: GroupWorld, member_id: str, generation: int) -> int:
    request = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
    code = world.submit(world.group.classic_heartbeat, request, world.caller(4)).error_code
    assert isinstance(code, int)
    return code


def a_classic_group(**assigned: list[int]) -> GroupMetadataValue:
    """Generation 7, with members by name."""
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="c1",
        members=[
            MemberMetadata(
                member_id=one,
                client_id="client",
                client_host="/127.0.0.1",
                rebalance_timeout=20_000,
                session_timeout=10_000,
                subscription=subscription("orders"),
                assignment=assignment(orders=parts),
            )
            for one, parts in assigned.items()
        ],
    )


def upgrade(
    world: GroupWorld,
    value: GroupMetadataValue,
    member_id: str = "a",
    topics: Sequence[str] = ("orders",),
) -> Any:
    """What a shard does when the first member of the new protocol comes."""
    entries = upgrade_entries(GROUP, value, world.topics, world.settings)
    world.group.adopt(entries, world.now_ms)
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=list(topics),
        topic_partitions=[],
    )
    caller = world.caller()
    world.group.heartbeat(caller, request, world.now_ms, first=entries)
    return world.settle()[caller.token]


def classic_value(world: GroupWorld) -> GroupMetadataValue:
    value = next(
        entry.value for entry in reversed(world.log) if isinstance(entry.key, ClassicGroupKey)
    )
    assert isinstance(value, GroupMetadataValue)
    return value


# -- classic members in the group ------------------------------------------------------------------


def test_a_classic_member_joins_syncs_and_is_told_to_join_again() -> None:
    world = a_world()
    world.join("a", "orders")
    joined = join(world)
    c = joined.member_id
    assert (joined.generation_id, joined.protocol_name, joined.leader) == (3, "range", "")
    assert sync(world, c, 3) == {}
    assert beat(world, c, 3) == ErrorCode.NONE
    world.heartbeat("a", 2, owned={"orders": [0, 1, 2, 3]})
    assert beat(world, c, 3) == ErrorCode.NONE  # a has not given back yet
    world.heartbeat("a", 2, owned={"orders": [0, 1]})
    assert beat(world, c, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    assert join(world, c).generation_id == 3
    assert sync(world, c, 3) == {"orders": [2, 3]}
    assert world.group.state is ConsumerGroupState.STABLE
    assert {one.member_type for one in world.group.describe().members} == {0, 1}


def test_a_classic_member_gives_back_by_joining_without_the_partitions() -> None:
    world = a_world()
    upgrade(world, a_classic_group(c1=[0, 1, 2, 3]))
    assert beat(world, "c1", 7) == ErrorCode.REBALANCE_IN_PROGRESS
    assert join(world, "c1", owned={"orders": [0, 1, 2, 3]}).generation_id == 7
    assert sync(world, "c1", 7) == {"orders": [0, 1]}
    assert world.assignment_in(world.heartbeat("a", 8)) is None
    assert beat(world, "c1", 7) == ErrorCode.REBALANCE_IN_PROGRESS
    assert join(world, "c1", owned={"orders": [0, 1]}).generation_id == 8
    assert world.assignment_in(world.heartbeat("a", 8)) == {"orders": [2, 3]}
    assert facts_of(world.group) == facts_of(world.reload())


def test_a_wrong_generation_or_member_is_refused() -> None:
    """I-28."""
    world = a_world()
    world.join("a", "orders")
    c = join(world).member_id
    with pytest.raises(IllegalGeneration):
        beat(world, c, 2)
    with pytest.raises(IllegalGeneration):
        sync(world, c, 4)
    with pytest.raises(UnknownMember, match="does not use the classic protocol"):
        beat(world, "a", 2)
    with pytest.raises(UnknownMember):
        beat(world, "nobody", 3)
    with pytest.raises(IllegalGeneration):
        world.group.check_commit(Committer(member_id=c, member_epoch=9))


def test_sync_sends_a_member_back_when_the_group_has_moved_on() -> None:
    world = a_world()
    world.join("a", "orders")
    c = join(world).member_id
    world.join("b", "orders")
    with pytest.raises(RebalanceInProgress):
        sync(world, c, 3)
    world.pass_ms(9_000)
    beat(world, c, 3)
    world.pass_ms(9_000)
    beat(world, c, 3)
    world.pass_ms(2_000)  # it did not join within its rebalance timeout
    with pytest.raises(UnknownMember):
        beat(world, c, 3)


def test_a_member_that_does_not_sync_or_beat_is_fenced() -> None:
    world = a_world()
    world.join("a", "orders")
    c = join(world, session_timeout_ms=60_000).member_id
    world.pass_ms(20_000)
    with pytest.raises(UnknownMember):
        sync(world, c, 3)
    c = join(world).member_id
    sync(world, c, world.group.epoch)
    world.pass_ms(10_000)
    assert world.group.member_count == 1


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({"protocol_type": "connect"}, InconsistentProtocol),
        ({"names": []}, InconsistentProtocol),
        ({"metadata": b"\0"}, InconsistentProtocol),
        ({"session_timeout_ms": 10}, InvalidSessionTimeout),
    ],
)
def test_a_classic_member_that_may_not_join(said: dict[str, Any], refusal: type[Exception]) -> None:
    world = a_world()
    world.join("a", "orders")
    with pytest.raises(refusal):
        join(world, **said)


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_a_nameless_member_is_given_its_id_before_its_metadata_is_read(
    version: int, name: str | None
) -> None:
    world = a_world()
    world.join("a", "orders")
    request = JoinGroupRequest(
        group_id=GROUP,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        session_timeout_ms=10_000,
    )
    answer = world.submit(world.group.join, request, world.caller(version))
    assert (answer.error_code, answer.protocol_name) == (ErrorCode.MEMBER_ID_REQUIRED, name)
    assert answer.member_id


def test_classic_members_must_have_an_assignor_in_common() -> None:
    world = a_world()
    world.join("a", "orders")
    join(world, names=["range", "sticky"])
    with pytest.raises(InconsistentProtocol):
        join(world, names=["roundrobin"])
    join(world, names=["sticky"])
    with pytest.raises(InconsistentProtocol):
        join(world, names=["range"])


def test_no_classic_member_joins_where_migration_is_disabled() -> None:
    world = a_world(MigrationPolicy.DISABLED)
    world.join("a", "orders")
    with pytest.raises(InconsistentProtocol, match="disabled"):
        join(world)


def test_a_member_that_was_fenced_and_still_reads_must_begin_anew() -> None:
    """I-27. It would read what others have until it fetched its new assignment."""
    world = a_world()
    world.join("a", "orders")
    with pytest.raises(UnknownMember):
        join(world, "fenced", owned={"orders": [1]})


def test_old_versions_are_given_their_id_at_once() -> None:
    world = a_world()
    world.join("a", "orders")
    assert join(world, version=3).member_id == "server-made-1"
    assert world.group.member_count == 2


def test_members_of_both_kinds_are_removed_by_leave_group() -> None:
    world = a_world(MigrationPolicy.UPGRADE)
    world.join("a", "orders", instance_id="i")
    c = join(world).member_id
    members = [
        MemberIdentity(member_id=c),
        MemberIdentity(member_id="nobody"),
        MemberIdentity(member_id="other", group_instance_id="i"),
        MemberIdentity(member_id="", group_instance_id="i"),
    ]
    request = LeaveGroupRequest(group_id=GROUP, members=members)
    answer = world.submit(world.group.leave, request, world.caller(5))
    assert [one.error_code for one in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
    ]
    assert world.group.is_empty


def test_a_single_member_leaves_in_old_versions() -> None:
    world = a_world(MigrationPolicy.UPGRADE)
    world.join("a", "orders")
    c = join(world).member_id
    request = LeaveGroupRequest(group_id=GROUP, member_id=c)
    assert world.submit(world.group.leave, request, world.caller(2)).error_code == ErrorCode.NONE
    again = world.submit(world.group.leave, request, world.caller(2))
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# -- upgrade ---------------------------------------------------------------------------------------


def test_a_classic_group_goes_on_with_what_its_members_have() -> None:
    world = a_world()
    answer = upgrade(world, a_classic_group(c1=[0, 1], c2=[2, 3]))
    assert (answer.member_epoch, world.assignment_in(answer)) == (8, {})
    assert isinstance(world.log[0].key, ClassicGroupKey)
    assert world.log[0].value is None
    members = {one.member_id: one for one in world.group.describe().members}
    assert members["c1"].member_epoch == 7
    assert members["c1"].assignment.topic_partitions[0].partitions == [0, 1]
    assert facts_of(world.group) == facts_of(world.reload())
    world.pass_ms(10_000)  # their sessions went on
    assert world.group.member_count == 1


def test_the_first_assignment_after_an_upgrade_does_not_wait_for_the_interval() -> None:
    """What the classic group had was computed by its leader, not by this coordinator."""
    world = a_world(consumer_assignment_interval_ms=1_000)
    assert upgrade(world, a_classic_group(c1=[0, 1, 2, 3])).member_epoch == 8
    states = [world.group.state]
    assert world.join("b", "orders").member_epoch == 8
    states.append(world.group.state)
    assert states == [ConsumerGroupState.RECONCILING, ConsumerGroupState.ASSIGNING]
    world.pass_ms(1_000)
    assert world.heartbeat("b", 8).member_epoch == 9


def test_no_member_is_in_the_epoch_of_a_group_that_had_not_gathered() -> None:
    world = a_world()
    value = a_classic_group(c1=[])
    value.generation = 0
    assert upgrade(world, value, topics=()).member_epoch == 1
    assert facts_of(world.group) == facts_of(world.reload())


@pytest.mark.parametrize(
    ("settings", "changed", "why"),
    [
        ({"migration_policy": MigrationPolicy.DOWNGRADE}, {}, "disabled"),
        ({}, {"protocol_type": "connect"}, "embedded"),
        ({"consumer_group_size_max": 0}, {}, "size"),
        ({}, {"members": [MemberMetadata(member_id="x", subscription=b"\0\1\0")]}, "malformed"),
        (
            {},
            {
                "protocol": "mine",
                "members": [
                    MemberMetadata(
                        member_id="x",
                        subscription=subscription("orders"),
                        assignment=assignment(b"mine", orders=[1]),
                    )
                ],
            },
            "custom assignor",
        ),
    ],
)
def test_a_group_that_can_not_be_upgraded_stays_what_it_is(
    settings: dict[str, Any], changed: dict[str, Any], why: str
) -> None:
    world = GroupWorld(FakeTopics(orders=4), FakeSettings(**settings))
    value = a_classic_group(c1=[0])
    for name, field_value in changed.items():
        setattr(value, name, field_value)
    with pytest.raises(GroupNotFound, match=why):
        upgrade(world, value)


@pytest.mark.parametrize("name", ["cooperative-sticky", "sticky", "range", "roundrobin"])
def test_what_a_standard_assignor_adds_to_an_assignment_is_no_reason_to_refuse(name: str) -> None:
    """Members of librdkafka with cooperative-sticky get back what they had said themselves."""
    world = a_world()
    value = a_classic_group(c1=[0, 1])
    value.protocol = name
    value.members[0].assignment = assignment(b"sticky state", orders=[0, 1])
    upgrade(world, value)
    topic = world.topics.id_of("orders")
    assert sorted(world.group._core.state.members[MemberId("c1")].assigned[topic]) == [0, 1]


def test_an_assignment_in_which_two_members_have_a_partition_is_set_right() -> None:
    """A client made it; it must not be able to break the coordinator (I-27)."""
    world = a_world()
    upgrade(world, a_classic_group(c1=[0, 1, 99], c2=[1, 2]))
    members = world.group._core.state.members
    topic = world.topics.id_of("orders")
    assert sorted(members[MemberId("c1")].assigned[topic]) == [0, 1]
    assert sorted(members[MemberId("c2")].assigned[topic]) == [2]


# -- downgrade -------------------------------------------------------------------------------------


def test_the_group_becomes_classic_when_its_last_new_member_leaves() -> None:
    world = a_world()
    upgrade(world, a_classic_group(c1=[0, 1], c2=[2, 3]))
    epoch = world.group.epoch
    world.heartbeat("a", -1)
    value = classic_value(world)
    assert (value.generation, value.protocol, value.protocol_type) == (epoch, "range", "consumer")
    assert [one.member_id for one in value.members] == ["c1", "c2"]
    assert world.group.downgrade_rebalances
    assert world.group.is_empty
    assert world.group.epoch == 1  # as of a group that nothing was written of
    assigned = decode_assignment(value.members[0].assignment).assigned_partitions
    target = {one.topic: one.partitions for one in assigned}
    assert set(target) == {"orders"}


def test_it_stays_where_the_policy_or_the_size_says_so() -> None:
    for settings in ({"policy": MigrationPolicy.UPGRADE}, {"group_size_max": 1}):
        world = a_world(**settings)
        upgrade(world, a_classic_group(c1=[0, 1], c2=[2, 3]))
        world.heartbeat("a", -1)
        assert world.group.member_count == 2
        assert world.group.state is ConsumerGroupState.ASSIGNING


def test_it_becomes_classic_when_its_last_new_member_is_silent() -> None:
    world = a_world()
    upgrade(world, a_classic_group(c1=[0, 1]))
    join(world, "c1", owned={"orders": [0, 1]})
    sync(world, "c1", 8)
    for _ in range(4):
        world.pass_ms(9_000)
        beat(world, "c1", 8)
    assert world.group.member_count == 2
    world.pass_ms(9_000)
    assert [one.member_id for one in classic_value(world).members] == ["c1"]


def test_it_becomes_classic_when_its_last_new_member_is_replaced_by_a_classic_one() -> None:
    """A static member that was started again with the other protocol."""
    world = a_world()
    world.join("a", "orders", instance_id="i")
    answer = join(world, group_instance_id="i")
    value = classic_value(world)
    assert [(one.member_id, one.group_instance_id) for one in value.members] == [
        (answer.member_id, "i")
    ]
    assigned = decode_assignment(value.members[0].assignment).assigned_partitions
    assert [(one.topic, one.partitions) for one in assigned] == [("orders", [0, 1, 2, 3])]
    assert not world.group.downgrade_rebalances
    assert world.group.is_empty


def test_a_static_classic_member_must_be_the_one_it_says() -> None:
    world = a_world(MigrationPolicy.UPGRADE)
    world.join("a", "orders")
    join(world, group_instance_id="i")
    with pytest.raises(FencedInstance):
        join(world, "other", group_instance_id="i")


def test_a_static_member_comes_back_with_the_new_protocol() -> None:
    world = a_world()
    world.join("a", "orders")
    c = join(world, group_instance_id="i")
    answer = world.join("b", "orders", instance_id="i")
    assert answer.member_epoch == c.generation_id
    assert world.group._core.state.classic_count == 0
