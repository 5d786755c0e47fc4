"""Requests of groups as versions have them, and a desk that answers them."""

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from kits.groups.group_handlers_kit import GroupDesk
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages import offset_commit as commits
from millstream.wire.messages import offset_fetch as fetches
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

Story = Callable[[GroupDesk], Coroutine[Any, Any, None]]
NO_ID = UUID(int=0)


def tell(story: Story, settings: dict[str, str] | None = None) -> None:
    async def main() -> None:
        desk = GroupDesk(settings)
        await desk.make("t", 3)
        await desk.ready()
        await story(desk)

    virtual_loop.run(main)


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
