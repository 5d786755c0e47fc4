"""DeleteRecords with followers: answered when nobody who is alive has the records any more."""

import asyncio
from typing import Any

from kits.replication.replica_kit import LAG_S, PORT, TOPIC, WAIT_MAX_MS, Cluster
from millstream.rpc.connection import connect
from millstream.rpc.settings import RpcSettings
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)


async def deleted(
    cluster: Cluster, before: int, *, timeout_ms: int = 5_000
) -> DeleteRecordsPartitionResult:
    host = cluster.world.network.host("admin")
    settings = RpcSettings(request_timeout_s=100.0)
    connection = await connect(host, settings, host="broker-1", port=PORT)
    one = DeleteRecordsPartition(partition_index=0, offset=before)
    topic = DeleteRecordsTopic(name=TOPIC, partitions=[one])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
    answer: Any = await connection.send(request)
    connection.close()
    result = answer.topics[0].partitions[0]
    assert isinstance(result, DeleteRecordsPartitionResult)
    return result


def told(result: DeleteRecordsPartitionResult) -> tuple[str, int]:
    return ErrorCode(result.error_code).name, result.low_watermark


async def filled(cluster: Cluster, count: int = 10) -> None:
    outcomes = cluster[1].append(*(b"%d" % number for number in range(count)))
    await cluster.until(lambda: len(outcomes) == count)
    await cluster.until_equal()


def test_the_answer_comes_when_the_followers_logs_begin_there_too() -> None:
    """And soon: a follower's fetch that waits for records is answered with the new start."""

    async def story(cluster: Cluster) -> None:
        await filled(cluster)
        for before in (4, 7):
            started_s = cluster.world.loop.time()
            assert told(await deleted(cluster, before)) == ("NONE", before)
            assert [cluster[one].log().log_start for one in (1, 2, 3)] == [before] * 3
            assert cluster.world.loop.time() - started_s < WAIT_MAX_MS / 2000
        assert cluster[1].leader().low_watermark_waiters == {}

    Cluster().play(story)


def test_a_follower_that_does_not_answer_is_waited_for_until_the_time_is_up() -> None:
    """Kafka's answer: the code, and the low watermark of before; the leader has done it."""

    async def story(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.world.network.partition("broker-1", "broker-3")
        started_s = cluster.world.loop.time()
        result = await deleted(cluster, 6, timeout_ms=1_000)
        assert told(result) == ("REQUEST_TIMED_OUT", 0)
        assert 1.0 <= cluster.world.loop.time() - started_s < 1.5
        assert [cluster[one].log().log_start for one in (1, 2, 3)] == [6, 6, 0]
        assert cluster[1].leader().low_watermark_waiters == {}
        assert told(await deleted(cluster, 6, timeout_ms=0)) == ("REQUEST_TIMED_OUT", 0)
        cluster.world.network.heal("broker-1", "broker-3")
        assert told(await deleted(cluster, 6, timeout_ms=int(LAG_S * 3000))) == ("NONE", 6)

    Cluster().play(story)


def test_one_that_is_dead_is_not_waited_for() -> None:
    async def story(cluster: Cluster) -> None:
        await filled(cluster)
        await cluster[3].crash()
        assert told(await deleted(cluster, 3)) == ("NONE", 3)
        cluster.world.network.partition("broker-1", "broker-2")
        waiting = asyncio.get_running_loop().create_task(deleted(cluster, 5, timeout_ms=60_000))
        await cluster.until(lambda: cluster[1].leader().low_watermark_waiters, "somebody waits")
        await cluster[2].crash()
        now = cluster.partition()
        cluster.put(0, now._replace(isr=(now.leader,), partition_epoch=now.partition_epoch + 1))
        started_s = cluster.world.loop.time()
        assert told(await waiting) == ("NONE", 5)
        assert cluster.world.loop.time() - started_s < 1.0

    Cluster().play(story)


def test_a_leadership_that_is_lost_meanwhile_is_told() -> None:
    async def story(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.world.network.partition("broker-1", "broker-3")
        waiting = asyncio.get_running_loop().create_task(deleted(cluster, 5, timeout_ms=60_000))
        await cluster.until(lambda: cluster[1].leader().low_watermark_waiters, "somebody waits")
        cluster.elect(2, isr=[1, 2, 3])
        assert told(await waiting) == ("NOT_LEADER_OR_FOLLOWER", -1)

    Cluster().play(story)


def test_whoever_is_gone_leaves_nothing_waiting() -> None:
    """I-37. A client that gives up does not stay in the leader's list for days."""

    async def story(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.world.network.partition("broker-1", "broker-3")
        waiting = asyncio.get_running_loop().create_task(deleted(cluster, 5, timeout_ms=86_400_000))
        await cluster.until(lambda: cluster[1].leader().low_watermark_waiters, "somebody waits")
        cluster.world.network.reset("admin", "broker-1")
        await asyncio.wait([waiting])
        assert waiting.exception() is not None
        await cluster.until(lambda: not cluster[1].leader().low_watermark_waiters, "nobody waits")

    Cluster().play(story)
