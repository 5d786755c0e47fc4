"""The handlers of groups in every version: over the wire, through the shell, into a real shard."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from group_handlers_kit import GroupDesk
from millstream.broker import registry
from millstream.broker.group_calls import group_code
from millstream.broker.groups_part import OFFSETS_TOPIC
from millstream.broker.registry import SERVED
from millstream.controller.views import GROUP_OPERATIONS_ALL
from millstream.groups import errors as refusals
from millstream.groups.errors import GroupRefused
from millstream.groups.records.entries import decode_batches
from millstream.model.errors import BatchTooLarge, DiskFull, OperatingError, UnknownPartition
from millstream.model.ids import Offset, TopicPartition
from millstream.replication.errors import NotEnoughReplicas, NotLeader
from millstream.runtime.turns import run_whole
from millstream.storage.log_reader import Isolation
from millstream.testing import virtual_loop
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
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

Story = Callable[[GroupDesk], Coroutine[Any, Any, None]]
NO_ID = UUID(int=0)

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


def tell(story: Story, settings: dict[str, str] | None = None) -> None:
    async def main() -> None:
        desk = GroupDesk(settings)
        await desk.make("t", 3)
        await desk.ready()
        await story(desk)

    virtual_loop.run(main)


# -- requests as versions have them ----------------------------------------------------------------


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


def commit_of(
    topics: dict[str, dict[int, int]], *, ids: dict[str, UUID] | None = None, **of: Any
) -> commits.OffsetCommitRequest:
    return commits.OffsetCommitRequest(
        group_id=of.pop("group_id", "g"),
        topics=[
            commits.OffsetCommitRequestTopic(
                name=name,
                topic_id=(ids or {}).get(name, NO_ID),
                partitions=[
                    commits.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata="m"
                    )
                    for index, offset in partitions.items()
                ],
            )
            for name, partitions in topics.items()
        ],
        **of,
    )


def fetch_of(
    version: int,
    group: str,
    topics: dict[str, list[int]] | None,
    ids: dict[str, UUID] | None = None,
    **of: Any,
) -> fetches.OffsetFetchRequest:
    if version < 8:
        wanted = None
        if topics is not None:
            wanted = [
                fetches.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ]
        return fetches.OffsetFetchRequest(group_id=group, topics=wanted, **of)
    named = None
    if topics is not None:
        named = [
            fetches.OffsetFetchRequestTopics(
                name=name, topic_id=(ids or {}).get(name, NO_ID), partition_indexes=indexes
            )
            for name, indexes in topics.items()
        ]
    asked = fetches.OffsetFetchRequestGroup(group_id=group, topics=named)
    return fetches.OffsetFetchRequest(groups=[asked], **of)


def offsets_in(answer: fetches.OffsetFetchResponse, version: int) -> dict[tuple[Any, int], Any]:
    topics: Any = answer.topics if version < 8 else answer.groups[0].topics
    return {
        (topic.name if version < 10 else topic.topic_id, one.partition_index): (
            one.committed_offset,
            one.error_code,
        )
        for topic in topics
        for one in topic.partitions
    }


def codes_in(answer: commits.OffsetCommitResponse) -> list[tuple[str, int, int]]:
    return [
        (topic.name, one.partition_index, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    ]


def join_of(member_id: str = "", **of: Any) -> JoinGroupRequest:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01\x00\x00\x00\x00")
    return JoinGroupRequest(
        group_id=of.pop("group_id", "g"),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol],
        **of,
    )


async def member_of(desk: GroupDesk, version: int = 9) -> tuple[str, int]:
    """A group of one that is stable: its member and generation."""
    answer = await desk.ask(join_of(), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await desk.ask(join_of(answer.member_id), version)
    assert answer.error_code == 0
    assert answer.leader == answer.member_id
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"mine")],
    )
    if version >= 5:
        sync.protocol_type, sync.protocol_name = "consumer", "range"
    synced = await desk.ask(sync, min(version, 5))
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"mine")
    return answer.member_id, answer.generation_id


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
        coordinator = desk.groups.coordinator
        for index in coordinator.indexes:
            coordinator.leadership_lost(coordinator.get(index).log)
        answer = await desk.ask(with_id(desk, request_for(key, version)), version)
        if key is ApiKey.LIST_GROUPS:
            assert (answer.error_code, answer.groups) == (0, [])
        else:
            assert ErrorCode.NOT_COORDINATOR in _codes(answer)

    tell(story)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_nothing_is_answered_from_a_group_that_is_being_loaded(key: ApiKey, version: int) -> None:
    """I-30. Above all no offset that looks as if there were none."""

    async def story(desk: GroupDesk) -> None:
        coordinator = desk.groups.coordinator
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
            NotEnoughReplicas(TopicPartition("t", 0), in_sync=1, wanted=2),
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


# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SERVED[ApiKey.OFFSET_COMMIT].versions)
@pytest.mark.parametrize("fetch_version", [1, 5, 7, 8, 10])
def test_committed_offset_is_fetched(version: int, fetch_version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        topic_id = desk.controller.image.topics["t"].topic_id
        ids = {"t": UUID(bytes=topic_id.bytes)}
        answer = await desk.ask(commit_of({"t": {0: 7, 2: 9}}, ids=ids), version)
        name = "t" if version < 10 else ""
        assert codes_in(answer) == [(name, 0, 0), (name, 2, 0)]
        fetched = await desk.ask(fetch_of(fetch_version, "g", {"t": [0, 1, 2]}, ids), fetch_version)
        by = "t" if fetch_version < 10 else ids["t"]
        assert offsets_in(fetched, fetch_version) == {
            (by, 0): (7, 0),
            (by, 1): (-1, 0),
            (by, 2): (9, 0),
        }

    tell(story)


@pytest.mark.parametrize("version", range(2, 10))
def test_what_does_not_exist_is_not_committed_and_the_rest_is(version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        wanted = {"nope": {0: 1}, "t": {0: 1, 3: 1, -1: 1, 2: 4}}
        answer = await desk.ask(commit_of(wanted), version)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes_in(answer) == [
            ("nope", 0, unknown),
            ("t", 0, 0),
            ("t", 3, unknown),
            ("t", -1, unknown),
            ("t", 2, 0),
        ]
        nothing = await desk.ask(commit_of({"nope": {0: 1}}), version)
        assert codes_in(nothing) == [("nope", 0, unknown)]
        assert (await desk.ask(commit_of({}), version)).topics == []

    tell(story)


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_of_one_partition_is_answered_for_that_one(version: int) -> None:
    """Answers of this kind are remembered: another topic, partition or version has its own."""

    async def story(desk: GroupDesk) -> None:
        await desk.make("u", 3)
        for name, index in (("t", 0), ("t", 2), ("u", 2), ("t", 0)):
            ids = {name: UUID(bytes=desk.controller.image.topics[name].topic_id.bytes)}
            answer = await desk.ask(commit_of({name: {index: 1}}, ids=ids), version)
            ((topic, _, code),) = codes_in(answer)
            by_id = version >= 10
            assert (topic, code) == ("" if by_id else name, 0)
            assert answer.topics[0].topic_id == (ids[name] if by_id else NO_ID)
            assert answer.topics[0].partitions[0].partition_index == index

    tell(story)


@pytest.mark.parametrize("version", range(2, 11))
def test_error_of_a_single_partition_is_told(version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        ids = {"t": UUID(bytes=desk.controller.image.topics["t"].topic_id.bytes)}
        request = commit_of({"t": {1: 1}}, ids=ids)
        assert [code for *_, code in codes_in(await desk.ask(request, version))] == [0]
        request.topics[0].partitions[0].committed_metadata = "m" * 5000
        (code,) = [code for *_, code in codes_in(await desk.ask(request, version))]
        assert code == ErrorCode.OFFSET_METADATA_TOO_LARGE
        stale = commit_of({"t": {1: 1}}, ids=ids, generation_id_or_member_epoch=4, member_id="m")
        (code,) = [code for *_, code in codes_in(await desk.ask(stale, version))]
        assert code == ErrorCode.UNKNOWN_MEMBER_ID

    tell(story)


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_writes_the_id_of_its_topic(version: int) -> None:
    """KIP-848: an offset belongs to the topic that has the name now, in all versions alike."""

    async def story(desk: GroupDesk) -> None:
        topic_id = UUID(bytes=desk.controller.image.topics["t"].topic_id.bytes)
        request = commit_of({"t": {0: 5}}, ids={"t": topic_id})
        await desk.ask(request, version)
        log = desk.groups.coordinator.get(desk.groups.partition_of("g")).log
        (found,) = _records(log)
        assert found.what.value.topic_id == topic_id

    tell(story)


def test_topic_ids_that_nobody_has_are_unknown() -> None:
    async def story(desk: GroupDesk) -> None:
        ids = {"t": UUID(bytes=desk.controller.image.topics["t"].topic_id.bytes), "x": UUID(int=9)}
        committed = await desk.ask(commit_of({"t": {0: 3, 5: 3}, "x": {0: 1}}, ids=ids), 10)
        found = [
            (topic.topic_id, [one.error_code for one in topic.partitions])
            for topic in committed.topics
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        assert found == [
            (ids["t"], [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
            (ids["x"], [unknown]),
        ]
        fetched = await desk.ask(fetch_of(10, "g", {"x": [0], "t": [0]}, ids), 10)
        assert offsets_in(fetched, 10) == {(ids["t"], 0): (3, 0), (ids["x"], 0): (-1, unknown)}

    tell(story)


@pytest.mark.parametrize("version", range(2, 11))
def test_all_offsets_of_a_group(version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        await desk.make("u")
        await desk.ask(commit_of({"t": {0: 1, 1: 2}, "u": {0: 3}}), 8)
        answer = await desk.ask(fetch_of(version, "g", None), version)
        assert len(offsets_in(answer, version)) == 3

    tell(story)


def test_offsets_of_several_groups_each_with_its_own_error() -> None:
    async def story(desk: GroupDesk) -> None:
        await desk.ask(commit_of({"t": {0: 1}}, group_id="a"), 8)
        groups = [
            fetches.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("a", "b", "")
        ]
        answer = await desk.ask(fetches.OffsetFetchRequest(groups=groups), 8)
        assert [(one.group_id, len(one.topics)) for one in answer.groups] == [
            ("a", 1),
            ("b", 0),
            ("", 0),
        ]

    tell(story)


def test_large_commit_is_committed_as_a_whole() -> None:
    async def story(desk: GroupDesk) -> None:
        await desk.make("wide", 2000)
        wanted = {"wide": dict.fromkeys(range(2001), 5)}
        codes = codes_in(await desk.ask(commit_of(wanted), 8))
        assert [code for _, _, code in codes[:2000]] == [0] * 2000
        assert codes[2000][2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await desk.ask(fetch_of(8, "g", {"wide": list(range(2000))}), 8)
        assert set(offsets_in(answer, 8).values()) == {(5, 0)}

    tell(story)


def test_commit_of_an_old_generation_is_refused() -> None:
    """I-28."""

    async def story(desk: GroupDesk) -> None:
        member_id, generation = await member_of(desk)
        good = commit_of(
            {"t": {0: 5}}, member_id=member_id, generation_id_or_member_epoch=generation
        )
        assert codes_in(await desk.ask(good, 8)) == [("t", 0, 0)]
        old = commit_of(
            {"t": {0: 1}}, member_id=member_id, generation_id_or_member_epoch=generation - 1
        )
        assert codes_in(await desk.ask(old, 8)) == [("t", 0, ErrorCode.ILLEGAL_GENERATION)]
        answer = await desk.ask(fetch_of(8, "g", {"t": [0]}), 8)
        assert offsets_in(answer, 8) == {("t", 0): (5, 0)}

    tell(story)


def test_offsets_are_deleted_and_what_does_not_exist_is_told() -> None:
    async def story(desk: GroupDesk) -> None:
        await desk.ask(commit_of({"t": {0: 1, 1: 2}}), 8)
        wanted = deletes.OffsetDeleteRequest(
            group_id="g",
            topics=[
                deletes.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        deletes.OffsetDeleteRequestPartition(partition_index=index)
                        for index in (0, 9)
                    ],
                )
                for name in ("t", "nope")
            ],
        )
        answer = await desk.ask(wanted, 0)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes_in(answer) == [
            ("t", 0, 0),
            ("t", 9, unknown),
            ("nope", 0, unknown),
            ("nope", 9, unknown),
        ]
        left = await desk.ask(fetch_of(8, "g", None), 8)
        assert offsets_in(left, 8) == {("t", 1): (2, 0)}
        wanted.group_id = "other"
        gone = await desk.ask(wanted, 0)
        assert (gone.error_code, gone.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])

    tell(story)


def test_offsets_of_deleted_topics_go() -> None:
    async def story(desk: GroupDesk) -> None:
        await desk.make("u")
        await desk.ask(commit_of({"t": {0: 1}, "u": {0: 2}}), 8)
        await desk.controller.delete_topics(["u"])
        await asyncio.sleep(1)
        left = await desk.ask(fetch_of(8, "g", None), 8)
        assert offsets_in(left, 8) == {("t", 0): (1, 0)}

    tell(story)


def test_offsets_are_there_after_a_restart() -> None:
    async def main() -> None:
        first = GroupDesk()
        await first.make("t", 3)
        await first.ready()
        for number in range(40):
            await first.ask(commit_of({"t": {0: number}}, group_id=f"g{number % 8}"), 8)
        first.disk.kill()
        again = GroupDesk(disk=first.disk.after_kill())
        await again.ready()
        for number in range(8):
            answer = await again.ask(fetch_of(8, f"g{number}", {"t": [0]}), 8)
            assert offsets_in(answer, 8) == {("t", 0): (32 + number, 0)}

    virtual_loop.run(main)


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
        assert (await desk.ask(beat_of(member_epoch=0), 1)).error_code == unsupported
        asked = consumers.ConsumerGroupDescribeRequest(group_ids=["n"])
        answer = await desk.ask(asked, 1)
        assert [one.error_code for one in answer.groups] == [unsupported]

    tell(story, {"group.coordinator.rebalance.protocols": "classic"})


# -- the log of it ---------------------------------------------------------------------------------


def test_offsets_topic_is_compacted_and_what_was_deleted_stays_deleted() -> None:
    """The cleaner keeps the last of each key, and tombstones for as long as it is told."""

    async def main() -> None:
        desk = GroupDesk()
        await desk.make("t", 3)
        await desk.ready()
        for number in range(200):
            await desk.ask(commit_of({"t": {0: number, 1: number}}), 8)
            await desk.ask(commit_of({"t": {0: number}}, group_id="gone"), 8)
        await desk.ask(DeleteGroupsRequest(groups_names=["gone"]), 2)
        logs = [desk.groups.coordinator.get(index).log for index in range(4)]
        before = sum(one.log_end - one.log_start for one in logs)
        assert before >= 600
        for one in desk.logs:
            if one.partition.topic == OFFSETS_TOPIC:
                one.roll()
                desk.logs.flush(one, lambda _: None)
        run_whole(desk.logs.storing_checkpoints())
        desk.logs.run_cleaner()
        kept = sum(len(_records(one)) for one in logs)
        assert kept < 10
        desk.disk.kill()
        again = GroupDesk(disk=desk.disk.after_kill())
        await again.ready()
        assert again.groups.coordinator.counts.records_loaded == kept
        answer = await again.ask(fetch_of(8, "g", None), 8)
        assert offsets_in(answer, 8) == {("t", 0): (199, 0), ("t", 1): (199, 0)}
        listed = await again.ask(ListGroupsRequest(), 5)
        assert [one.group_id for one in listed.groups] == ["g"]

    virtual_loop.run(main)


def _records(log: Any) -> list[Any]:
    found: list[Any] = []
    offset = log.log_start
    while offset < log.log_end:
        data = log.read(offset, size_max=1 << 20, isolation=Isolation.LOG_END).data.read()
        part = list(decode_batches(data))
        if not part:
            break
        found += part
        offset = Offset(part[-1].offset + 1)
    return found
