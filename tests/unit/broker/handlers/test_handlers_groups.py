"""The handlers of groups in every version: over the wire, through the shell, into a real shard.

JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ListGroups, DescribeGroups, DeleteGroups,
ConsumerGroupHeartbeat and ConsumerGroupDescribe.
"""

import asyncio
import gc
from typing import Any, cast

import pytest

from kits.groups.group_handlers_kit import GroupDesk
from kits.groups.group_requests_kit import commit_of, fetch_of, join_of, member_of, tell
from millstream.broker.groups.calls import GroupCall, group_code
from millstream.broker.handlers.delete_groups import GROUPS_AT_ONCE_MAX
from millstream.broker.handlers.join_group import failed
from millstream.broker.handlers.leave_group import MEMBERS_AT_ONCE_MAX
from millstream.broker.requests import registry
from millstream.broker.requests.context import Context, RequestFacts
from millstream.broker.requests.registry import SERVED
from millstream.controller.views import GROUP_OPERATIONS_ALL
from millstream.groups import errors as refusals
from millstream.groups.errors import GroupRefused
from millstream.model.errors import BatchTooLarge, DiskFull, OperatingError, UnknownPartition
from millstream.model.ids import TopicPartition
from millstream.replication.errors import NotEnoughReplicas, NotLeader
from millstream.shards import coordinator as coordinator_module
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages import consumer_group_describe as consumers
from millstream.wire.messages import describe_groups as classics
from millstream.wire.messages import offset_commit as commits
from millstream.wire.messages import offset_delete as deletes
from millstream.wire.messages import offset_fetch as fetches
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.sync_group import SyncGroupRequest

GROUP_APIS = {
    ApiKey.JOIN_GROUP: JoinGroupRequest(group_id="g", member_id="m"),
    ApiKey.SYNC_GROUP: SyncGroupRequest(group_id="g", member_id="m"),
    ApiKey.HEARTBEAT: HeartbeatRequest(group_id="g", member_id="m"),
    ApiKey.LEAVE_GROUP: LeaveGroupRequest(group_id="g"),
    ApiKey.OFFSET_COMMIT: commits.OffsetCommitRequest(group_id="g"),
    ApiKey.OFFSET_FETCH: fetches.OffsetFetchRequest(),
    ApiKey.OFFSET_DELETE: deletes.OffsetDeleteRequest(group_id="g"),
    ApiKey.DELETE_GROUPS: DeleteGroupsRequest(groups_names=["g"]),
    ApiKey.LIST_GROUPS: ListGroupsRequest(),
    ApiKey.DESCRIBE_GROUPS: classics.DescribeGroupsRequest(groups=["g"]),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatRequest(group_id="g", member_id="m"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumers.ConsumerGroupDescribeRequest(group_ids=["g"]),
}
EVERY_VERSION = [(key, version) for key in GROUP_APIS for version in SERVED[key].versions]


def request_for(key: ApiKey, version: int) -> Any:
    if key is ApiKey.OFFSET_FETCH:
        return fetch_of(version, "g", {"t": [0]})
    if key is ApiKey.OFFSET_COMMIT:
        return commit_of({"t": {0: 1}})
    if key is ApiKey.LEAVE_GROUP and version >= 3:
        return LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    return GROUP_APIS[key]


def with_id(desk: GroupDesk, request: Any) -> Any:
    """Topics must exist before their group is asked."""
    if isinstance(request, commits.OffsetCommitRequest):
        request.topics[0].topic_id = desk.controller.image.topics["t"].topic_id
    return request


# -- every API in every version --------------------------------------------------------------------


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_failure_can_be_told_in_every_version(key: ApiKey, version: int) -> None:
    handler = registry.load(key)
    request = request_for(key, version)
    error = ErrorCode.NOT_COORDINATOR
    answer = handler.failed(request, error, version)
    told = type(answer).decode(memoryview(answer.encode(version)), version)
    assert error in _codes(told)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_every_version_is_answered_by_a_group_that_is_not_there(key: ApiKey, version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        await desk.ask(request_for(key, version), version)

    tell(story)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_broker_that_is_not_the_coordinator_says_so(key: ApiKey, version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        coordinator = desk.groups.coordinator.shards
        for index in coordinator.indexes:
            coordinator.leadership_lost(coordinator.get(index).log)
        answer = await desk.ask(with_id(desk, request_for(key, version)), version)
        if key is ApiKey.LIST_GROUPS:
            assert (answer.error_code, answer.groups) == (0, [])
        else:
            assert ErrorCode.NOT_COORDINATOR in _codes(answer)

    tell(story)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_nothing_is_answered_from_a_group_that_is_being_loaded(
    key: ApiKey, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-30. Above all no offset that looks as if there were none; and nobody waits for ever."""

    async def story(desk: GroupDesk) -> None:
        monkeypatch.setattr(coordinator_module, "LOADS_AT_ONCE_MAX", 0)
        coordinator = desk.groups.coordinator.shards
        for index in coordinator.indexes:
            log = coordinator.get(index).log
            coordinator.leadership_lost(log)
            coordinator.leadership_gained(log, log.leader_epoch)
        answer = await desk.ask(with_id(desk, request_for(key, version)), version)
        if key is ApiKey.HEARTBEAT:
            assert answer.error_code == ErrorCode.NONE
        else:
            assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in _codes(answer)
            assert -2 not in _codes(answer)

    tell(story)


def _codes(message: Any) -> set[int]:
    """All error codes in an answer."""
    found: set[int] = set()
    for name in message.__slots__:
        value = getattr(message, name, None)
        if name == "error_code" and isinstance(value, int):
            found.add(value)
        elif isinstance(value, list) and value and hasattr(value[0], "__slots__"):
            for one in value:
                found |= _codes(one)
    return found


@pytest.mark.parametrize(
    "request_",
    [
        join_of(group_id=""),
        SyncGroupRequest(group_id=""),
        HeartbeatRequest(group_id=""),
        LeaveGroupRequest(group_id=""),
        deletes.OffsetDeleteRequest(group_id=""),
        consumers.ConsumerGroupDescribeRequest(group_ids=[""]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_group_without_a_name_is_refused(request_: Any) -> None:
    async def story(desk: GroupDesk) -> None:
        assert _codes(await desk.ask(request_, 0)) >= {ErrorCode.INVALID_GROUP_ID}

    tell(story)


def test_every_refusal_has_its_code() -> None:
    kinds = [
        one
        for one in vars(refusals).values()
        if isinstance(one, type) and issubclass(one, GroupRefused) and one is not GroupRefused
    ]
    assert len(kinds) > 20
    codes = [group_code(kind()) for kind in kinds]
    assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownPartition(TopicPartition("t", 0)), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (
            NotEnoughReplicas(TopicPartition("t", 0), in_sync=1, required=2),
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
        (NotLeader(TopicPartition("t", 0)), ErrorCode.NOT_COORDINATOR),
        (DiskFull("full"), ErrorCode.NOT_COORDINATOR),
        (BatchTooLarge(size_bytes=2, limit_bytes=1), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_the_log_refuses_is_told_as_by_kafka(error: OperatingError, code: ErrorCode) -> None:
    assert group_code(error) is code


# -- classic groups --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SERVED[ApiKey.JOIN_GROUP].versions)
def test_member_joins_syncs_beats_and_leaves(version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        member_id, generation = await member_of(desk, version)
        beat = HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)
        for other in SERVED[ApiKey.HEARTBEAT].versions:
            assert (await desk.ask(beat, other)).error_code == 0
        beat.generation_id = 99
        assert (await desk.ask(beat, 4)).error_code == ErrorCode.ILLEGAL_GENERATION
        gone = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
        answer = await desk.ask(gone, 5)
        assert (answer.error_code, [one.error_code for one in answer.members]) == (0, [0])
        again = LeaveGroupRequest(group_id="g", member_id=member_id)
        assert (await desk.ask(again, 0)).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    tell(story)


@pytest.mark.parametrize("group_id", ["g", "nobody's"])
def test_many_leave_in_parts_between_which_others_are_served(group_id: str) -> None:
    async def story(desk: GroupDesk) -> None:
        member_id, generation = await member_of(desk)
        names = [f"unknown-{number}" for number in range(2 * MEMBERS_AT_ONCE_MAX)]
        leaving = [MemberIdentity(member_id=name) for name in (*names, member_id, "last")]
        asked = desk.ask(LeaveGroupRequest(group_id=group_id, members=leaving), 5)
        asking = asyncio.get_running_loop().create_task(asked)
        await asyncio.sleep(0)
        beat = HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)
        assert (await desk.ask(beat, 4)).error_code == ErrorCode.NONE
        assert not asking.done()
        answer = await asking
        assert answer.error_code == ErrorCode.NONE
        assert [one.member_id for one in answer.members] == [one.member_id for one in leaving]
        left = [one.member_id for one in answer.members if one.error_code == ErrorCode.NONE]
        assert left == ([member_id] if group_id == "g" else [])
        others = {one.error_code for one in answer.members if one.member_id not in left}
        assert others == {ErrorCode.UNKNOWN_MEMBER_ID}

    tell(story)


@pytest.mark.parametrize("character", ["i", "\U0001f600"])
def test_member_whose_names_are_as_long_as_can_be_is_told_its_id(character: str) -> None:
    """The id begins with the name of the client or the instance, and is a string as well."""

    async def story(desk: GroupDesk) -> None:
        instance_id = character * (32_767 // len(character.encode()))
        answer = await desk.ask(join_of(group_instance_id=instance_id), 5)
        assert answer.error_code == ErrorCode.NONE
        assert answer.member_id.startswith(instance_id[:8_000])
        assert answer.encode(5)

    tell(story)


def test_connection_is_closed_when_an_answer_cannot_be_sent() -> None:
    """Whoever waits for it, and for all that it asked after it, would wait for ever."""

    async def story(desk: GroupDesk) -> None:
        closed: list[str] = []

        class Peer:
            is_open, close = True, closed.append

        facts = RequestFacts(ApiKey.JOIN_GROUP, 5, 1, "c", 1, 0, 0)
        context = Context(desk.services, cast("Any", Peer), facts)
        call = GroupCall(context, join_of(), failed, None)
        with pytest.raises(KeyError):  # the desk knows of no such request
            call.respond(JoinGroupResponse())
        assert len(closed) == 1

    tell(story)


def test_refusals_leave_nothing_to_the_garbage_collector() -> None:
    """It would stop everybody for seconds after a request with hundreds of thousands of them."""

    async def story(desk: GroupDesk) -> None:
        names = [f"nobody-{number}" for number in range(GROUPS_AT_ONCE_MAX + 1)]
        await desk.ask(DeleteGroupsRequest(groups_names=names), 2)
        gc.collect()
        gc.disable()
        try:
            answer = await desk.ask(DeleteGroupsRequest(groups_names=names), 2)
            assert {one.error_code for one in answer.results} == {ErrorCode.GROUP_ID_NOT_FOUND}
            assert [one.group_id for one in answer.results] == names
            assert not [one for one in gc.get_objects() if isinstance(one, GroupRefused)]
        finally:
            gc.enable()

    tell(story)


def test_groups_are_listed_described_and_deleted() -> None:
    async def story(desk: GroupDesk) -> None:
        member_id, _ = await member_of(desk)
        assert (await desk.ask(commit_of({"t": {0: 5}}, group_id="lone"), 8)).topics
        for version in SERVED[ApiKey.LIST_GROUPS].versions:
            answer = await desk.ask(ListGroupsRequest(), version)
            assert {one.group_id for one in answer.groups} == {"g", "lone"}
        stable = await desk.ask(ListGroupsRequest(states_filter=["stable"]), 4)
        assert [(one.group_id, one.group_state) for one in stable.groups] == [("g", "Stable")]
        none = await desk.ask(ListGroupsRequest(types_filter=["share"]), 5)
        assert none.groups == []
        asked = classics.DescribeGroupsRequest(
            groups=["g", "nope", "g"], include_authorized_operations=True
        )
        for version in SERVED[ApiKey.DESCRIBE_GROUPS].versions:
            if version < 3:
                asked.include_authorized_operations = False
            answer = await desk.ask(asked, version)
            first, second = answer.groups
            assert [one.member_id for one in first.members] == [member_id]
            assert first.members[0].client_host == "/127.0.0.1"
            missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
            assert (second.group_state, second.error_code) == ("Dead", missing)
            asked.include_authorized_operations = True
            if version > 3:
                assert first.authorized_operations == GROUP_OPERATIONS_ALL
        for version in SERVED[ApiKey.DELETE_GROUPS].versions:
            wanted = DeleteGroupsRequest(groups_names=["lone", "g", "nope"])
            answer = await desk.ask(wanted, version)
            codes = {one.group_id: one.error_code for one in answer.results}
            gone = ErrorCode.NONE if version == 0 else ErrorCode.GROUP_ID_NOT_FOUND
            assert codes == {
                "lone": gone,
                "g": ErrorCode.NON_EMPTY_GROUP,
                "nope": ErrorCode.GROUP_ID_NOT_FOUND,
            }

    tell(story)


def test_many_groups_of_one_request_are_all_answered() -> None:
    async def story(desk: GroupDesk) -> None:
        names = [f"g{number}" for number in range(1000)]
        await asyncio.gather(
            *(desk.ask(commit_of({"t": {0: 1}}, group_id=name), 8) for name in names)
        )
        described = await desk.ask(classics.DescribeGroupsRequest(groups=names), 5)
        assert [one.group_id for one in described.groups] == names
        deleted = await desk.ask(DeleteGroupsRequest(groups_names=names), 2)
        assert {one.error_code for one in deleted.results} == {0}
        assert (await desk.ask(ListGroupsRequest(), 5)).groups == []

    tell(story)


# -- the next-generation protocol ------------------------------------------------------------------


def beat_of(**of: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id="n", member_id=of.pop("member_id", "m1"), **of)


@pytest.mark.parametrize("version", [0, 1])
def test_member_of_a_consumer_group_gets_its_partitions(version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        joining = beat_of(
            member_id="" if version == 0 else "m1",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        answer = await desk.ask(joining, version)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert answer.member_id
        assigned = {}
        for _ in range(5):
            if answer.assignment is not None and answer.assignment.topic_partitions:
                assigned = {
                    one.topic_id.bytes: sorted(one.partitions)
                    for one in answer.assignment.topic_partitions
                }
                break
            await asyncio.sleep(1)
            beat = beat_of(member_id=answer.member_id, member_epoch=answer.member_epoch)
            answer = await desk.ask(beat, version)
        assert assigned == {desk.controller.image.topics["t"].topic_id.bytes: [0, 1, 2]}
        asked = consumers.ConsumerGroupDescribeRequest(
            group_ids=["n", "nope"], include_authorized_operations=True
        )
        for other in SERVED[ApiKey.CONSUMER_GROUP_DESCRIBE].versions:
            described = await desk.ask(asked, other)
            first, second = described.groups
            assert [one.member_id for one in first.members] == [answer.member_id]
            assert first.authorized_operations == GROUP_OPERATIONS_ALL
            assert second.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert second.error_message

    tell(story)


def test_refusal_of_a_heartbeat_says_why() -> None:
    async def story(desk: GroupDesk) -> None:
        answer = await desk.ask(beat_of(member_epoch=5), 1)
        assert answer.error_code != 0
        assert answer.error_message

    tell(story)


def test_without_the_protocol_nothing_of_it_is_served() -> None:
    async def story(desk: GroupDesk) -> None:
        unsupported = ErrorCode.UNSUPPORTED_VERSION
        refused = await desk.ask(beat_of(member_epoch=0), 1)
        assert (refused.error_code, refused.error_message) == (unsupported, None)
        asked = consumers.ConsumerGroupDescribeRequest(group_ids=["n"])
        answer = await desk.ask(asked, 1)
        (described,) = answer.groups
        assert (described.error_code, described.error_message) == (unsupported, None)

    tell(story, {"group.coordinator.rebalance.protocols": "classic"})
