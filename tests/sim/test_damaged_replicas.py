"""Files of a cluster's brokers that are cut, zeroed or removed while in use, story by story."""

from collections.abc import Callable

import pytest

from millstream.testing.sim.disk import SimDisk
from millstream.testing.simulation.cluster.scripted_cluster import TOPIC, ScriptedCluster
from millstream.wire.errors import ErrorCode

SEEDS = [1, 2, 3]
VALUES = [bytes([65 + number]) * 300 for number in range(6)]
REFUSED = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)

Damage = Callable[[SimDisk, str], None]


def zeroed(disk: SimDisk, path: str) -> None:
    with disk.open_write(path) as file:
        file.write_at(400, bytes(file.size() - 400))


def cut(disk: SimDisk, path: str) -> None:
    with disk.open_write(path) as file:
        file.truncate(400)


damages = pytest.mark.parametrize("damage", [zeroed, cut])
seeds = pytest.mark.parametrize("seed", SEEDS)


def damage_at(cluster: ScriptedCluster, broker: int, damage: Damage) -> None:
    """Done by somebody else: the broker does not see it happen."""
    running = cluster.machine(broker).broker
    assert running is not None
    log = next(one for one in running.logs if one.partition.topic == TOPIC)
    log.slot.forget_tail()  # as after a while: its newest records are read from the file again
    disk = cluster.machine(broker).node.disk
    damage(disk, log.segments.active.log.path)


async def fill(cluster: ScriptedCluster) -> None:
    for number, value in enumerate(VALUES):
        assert await cluster.produce(1, value) == number


async def successor(cluster: ScriptedCluster, dead: int | None) -> int:
    """Not all others are in sync at any time: the one that was replaced may be quicker."""
    others = {2, 3} - {dead}

    def leader() -> int:
        state = cluster.state()
        return state.leader if state is not None else -1

    await cluster.until(
        lambda: leader() in others and cluster.claim(leader()), f"one of {others} leads"
    )
    return leader()


@seeds
@damages
@pytest.mark.parametrize("dies", [None, 2, 3])
def test_leader_with_a_damaged_file_is_replaced_and_fetches_everything_again(
    seed: int, damage: Damage, dies: int | None
) -> None:
    """Also when a broker dies just then, which may be the controller."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3], in_sync_min=1)
        await fill(cluster)
        damage_at(cluster, 1, damage)
        data = await cluster.fetch(1)
        assert data.error_code in REFUSED
        assert not data.records
        if dies is not None:
            cluster.kill(dies)
        leader = await successor(cluster, dies)
        if dies is not None:
            await cluster.start(dies)
        await cluster.until_led(by=leader, isr={1, 2, 3})
        assert await cluster.produce(leader, b"next") == len(VALUES)
        assert await cluster.read_values(leader) == [*VALUES, b"next"]
        assert not cluster.lost()
        cluster.kill(2, 3)
        await cluster.until_led(by=1)
        assert await cluster.read_values(1) == [*VALUES, b"next"]

    ScriptedCluster(seed).run(story)


@seeds
def test_follower_with_a_damaged_file_fetches_everything_again(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        await fill(cluster)
        await cluster.until(lambda: cluster.replica(3) is not None, "the follower has its log")
        cluster.scene.excuses.without_directory.add(3)  # in sync without a log, until it is known
        damage_at(cluster, 3, cut)
        assert await cluster.produce(1, b"next") == len(VALUES)
        await cluster.until(lambda: cluster.lost() == (3,), "its append notices")
        await cluster.until_led(by=1, isr={1, 2, 3})
        replica = cluster.replica(3)
        assert replica is not None
        assert not cluster.lost()

    ScriptedCluster(seed).run(story)
