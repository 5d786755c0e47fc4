"""Groups on a simulated cluster of three brokers: what their coordinator promised, its successor
keeps.
"""

import asyncio
from typing import Any

import pytest

from millstream.rpc.errors import RpcError
from millstream.testing.simulation.cluster.scripted_cluster import TOPIC, ScriptedCluster
from millstream.wire.errors import ErrorCode
from millstream.wire.messages import offset_commit as commits
from millstream.wire.messages import offset_fetch as fetches
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

SEEDS = [1, 2, 3]
GROUP = "readers"
AGAIN = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


async def coordinator(cluster: ScriptedCluster, *brokers: int, not_: int = 0) -> int:
    """Where the group's is, asked of each of them until they agree."""
    for _ in range(300):
        found = set()
        for one in brokers:
            request = FindCoordinatorRequest(coordinator_keys=[GROUP], key_type=0)
            try:
                answer = await cluster.call(one, request, 4)
            except RpcError:
                continue
            (found_at,) = answer.coordinators
            found.add(found_at.node_id)
        if len(found) == 1 and not found & {-1, not_}:
            return int(found.pop())
        await asyncio.sleep(0.1)
    raise AssertionError("no coordinator is found")


async def until_definite(cluster: ScriptedCluster, broker: int, request: Any, version: int) -> Any:
    """Ask again while the coordinator says so; every answer on the way is a refusal."""
    for _ in range(300):
        answer = await cluster.call(broker, request, version)
        codes = _codes(answer)
        if not codes & set(AGAIN):
            return answer
        await asyncio.sleep(0.1)
    raise AssertionError("only refusals")


def _codes(answer: Any) -> set[int]:
    if isinstance(answer, commits.OffsetCommitResponse):
        return {one.error_code for topic in answer.topics for one in topic.partitions}
    return {group.error_code for group in answer.groups}


def commit_of(offset: int) -> commits.OffsetCommitRequest:
    one = commits.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    topic = commits.OffsetCommitRequestTopic(name=TOPIC, partitions=[one])
    return commits.OffsetCommitRequest(group_id=GROUP, topics=[topic])


async def committed(cluster: ScriptedCluster, broker: int) -> int:
    topic = fetches.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    group = fetches.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
    request = fetches.OffsetFetchRequest(groups=[group], require_stable=True)
    answer = await until_definite(cluster, broker, request, 8)
    (one,) = answer.groups[0].topics[0].partitions
    assert one.error_code == 0
    return int(one.committed_offset)


async def commit(cluster: ScriptedCluster, broker: int, offset: int) -> None:
    answer = await until_definite(cluster, broker, commit_of(offset), 8)
    assert _codes(answer) == {0}


@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_survive_every_coordinator_in_turn(seed: int) -> None:
    """I-29. Every broker names the same coordinator, and the last offset is never lost."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        place = await coordinator(cluster, 1, 2, 3)
        await commit(cluster, place, 10)
        for offset in (20, 30):
            others = [one for one in (1, 2, 3) if one != place]
            cluster.kill(place)
            metadata_follower = await coordinator(cluster, *others, not_=place)
            assert await committed(cluster, metadata_follower) == offset - 10
            await commit(cluster, metadata_follower, offset)
            await cluster.start(place)
            await cluster.until_led(isr={1, 2, 3})
            assert await committed(cluster, metadata_follower) == offset
            place = await coordinator(cluster, 1, 2, 3)

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_coordinator_that_loses_its_session_tells_members_that_wait(seed: int) -> None:
    """I-18, I-30. It must not keep them, nor answer from what it has in memory."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        place = await coordinator(cluster, 1, 2, 3)
        await commit(cluster, place, 10)
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
        joining = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        # A member of an empty group waits group.initial.rebalance.delay.ms for others.
        waiting = asyncio.ensure_future(cluster.call(place, joining, 3, timeout_s=20.0))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        cluster.cut_from_keeper(place)
        answer = await waiting
        # Within the session it may have been complete; otherwise it has to find a coordinator.
        assert answer.error_code in (0, ErrorCode.NOT_COORDINATOR)
        others = [one for one in (1, 2, 3) if one != place]
        metadata_follower = await coordinator(cluster, *others, not_=place)
        assert await committed(cluster, metadata_follower) == 10
        stale = await cluster.call(place, commit_of(99), 8)
        assert _codes(stale) <= {*AGAIN, ErrorCode.UNKNOWN_MEMBER_ID}
        cluster.heal()
        await cluster.until_led(isr={1, 2, 3})
        place = await coordinator(cluster, 1, 2, 3)
        assert await committed(cluster, place) == 10

    ScriptedCluster(seed).run(story)
