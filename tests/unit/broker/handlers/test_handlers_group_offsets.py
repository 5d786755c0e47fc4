"""The handlers of committed offsets in every version, into a real shard and its log.

OffsetCommit, OffsetFetch and OffsetDelete.
"""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from kits.groups.group_handlers_kit import GroupDesk
from kits.groups.group_requests_kit import (
    NO_ID,
    codes_in,
    commit_of,
    fetch_of,
    member_of,
    offsets_in,
    tell,
)
from millstream.broker.groups.service import OFFSETS_TOPIC
from millstream.broker.requests.registry import SERVED
from millstream.groups.records.entries import decode_batches
from millstream.model.ids import Offset
from millstream.runtime.scheduler import run_blocking
from millstream.storage.log.reader import Isolation
from millstream.testing.sim import virtual_loop
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages import offset_delete as deletes
from millstream.wire.messages import offset_fetch as fetches
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.list_groups import ListGroupsRequest

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
        log = desk.groups.coordinator.shards.get(desk.groups.partition_of("g")).log
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


@pytest.mark.slow
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
        logs = [desk.groups.coordinator.shards.get(index).log for index in range(4)]
        before = sum(one.log_end - one.log_start for one in logs)
        assert before >= 600
        for one in desk.logs:
            if one.partition.topic == OFFSETS_TOPIC:
                one.roll()
                desk.logs.flush(one, lambda _: None)
        run_blocking(desk.logs.store_checkpoints_steps())
        desk.logs.run_cleaner()
        kept = sum(len(_records(one)) for one in logs)
        assert kept < 10
        desk.disk.kill()
        again = GroupDesk(disk=desk.disk.after_kill())
        await again.ready()
        assert again.groups.coordinator.shards.counts.records_loaded == kept
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
