"""Disks of a cluster's brokers that become full and get room again, story by story."""

import asyncio

import pytest

from millstream.testing.simulation.cluster.scripted_cluster import ScriptedCluster
from millstream.wire.errors import ErrorCode

SEEDS = [1, 2, 3]
SETTINGS = {"leader.imbalance.check.interval.seconds": "2"}
LARGE = b"v" * 20_000
REFUSED = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def cluster_of(seed: int) -> ScriptedCluster:
    return ScriptedCluster(seed, settings=SETTINGS)


def fill(cluster: ScriptedCluster, *brokers: int) -> None:
    for one in brokers:
        storage = cluster.machine(one).node.disk.storage
        storage.capacity_bytes = storage.used_bytes + len(LARGE) // 2


def make_room(cluster: ScriptedCluster, *brokers: int) -> None:
    for one in brokers:
        cluster.machine(one).node.disk.storage.capacity_bytes = None


def epoch(cluster: ScriptedCluster) -> int:
    state = cluster.state()
    assert state is not None
    return state.leader_epoch


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dies", [None, 2, 3])
def test_leader_without_room_is_replaced_and_leads_again_with_room(
    seed: int, dies: int | None
) -> None:
    """Also when a broker dies just then, which may be the controller."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        fill(cluster, 1)
        assert await cluster.produce(1, LARGE) == ErrorCode.KAFKA_STORAGE_ERROR
        leader = await cluster.successor(1, dies=dies)
        if dies is not None:
            await cluster.start(dies)
        await cluster.until_led(isr={2, 3})
        assert await cluster.produce(1, LARGE) in REFUSED
        since_s = cluster.scene.now_s()
        assert await cluster.produce(leader, LARGE) == 1
        assert cluster.scene.now_s() - since_s < 1.0, "nothing waits for the one without room"
        before = epoch(cluster)
        await asyncio.sleep(6)
        await cluster.until_led(by=leader, isr={2, 3})
        assert epoch(cluster) == before, "it is not elected again while it is full"
        make_room(cluster, 1)
        await cluster.until_led(by=1, isr={1, 2, 3})
        assert await cluster.produce(1, b"b") == 2
        assert await cluster.read_values(1) == [b"a", LARGE, b"b"]

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_follower_without_room_leaves_before_it_lags(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        fill(cluster, 3)
        since_s = cluster.scene.now_s()
        assert await cluster.produce(1, LARGE) == 1
        # replica.lag.time.max.ms is 1500 here, and looked at every 750.
        assert cluster.scene.now_s() - since_s < 1.4
        await cluster.until_led(by=1, isr={1, 2})
        make_room(cluster, 3)
        await cluster.until_led(by=1, isr={1, 2, 3})

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_all_disks_are_full_leaders_change_no_more_often_than_there_are_replicas(
    seed: int,
) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        before = epoch(cluster)
        fill(cluster, 1, 2, 3)
        for _ in range(20):
            for broker in (1, 2, 3):
                assert isinstance(await cluster.produce(broker, LARGE, acks=1), ErrorCode)
            await asyncio.sleep(0.5)
        assert epoch(cluster) - before <= 2
        state = cluster.state()
        assert state is not None
        assert state.leader in (1, 2, 3)
        assert await cluster.read_values(state.leader) == [b"a"], "what there is can be read"
        make_room(cluster, 2)
        await cluster.until_led(by=2)
        assert await cluster.produce(2, LARGE, acks=1) == 1
        make_room(cluster, 1, 3)
        await cluster.until_led(isr={1, 2, 3})
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a", LARGE]

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_single_replica_without_room_stays_where_it_is(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1], in_sync_min=1)
        assert await cluster.produce(1, b"a") == 0
        before = epoch(cluster)
        fill(cluster, 1)
        assert await cluster.produce(1, LARGE) == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(3)
        assert await cluster.read_values(1) == [b"a"]
        make_room(cluster, 1)
        await asyncio.sleep(4)
        assert await cluster.produce(1, LARGE) == 1
        assert epoch(cluster) == before

    cluster_of(seed).run(story)
