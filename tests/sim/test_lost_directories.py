"""Log directories of a cluster's brokers that fail, are missing, or come back, story by story.

Every broker has two of them. The only partition is in the first; what happens to that directory
leaves its broker alive, so that no other broker would notice.
"""

import asyncio
import errno

import pytest

from millstream.runtime.disk import remove_tree
from millstream.testing.simulation.cluster.scripted_cluster import TOPIC, ScriptedCluster
from millstream.wire.errors import ErrorCode

SEEDS = [1, 2, 3]
FIRST, SECOND = "/data", "/more"
TWO_DIRECTORIES = {"log.dirs": f"{FIRST},{SECOND}"}


def cluster_of(seed: int, *, brokers: int = 3) -> ScriptedCluster:
    return ScriptedCluster(seed, brokers=brokers, settings=TWO_DIRECTORIES)


def fail(cluster: ScriptedCluster, broker: int, *directories: str) -> None:
    """As the kernel reports it, from now on."""
    running = cluster.machine(broker).broker
    assert running is not None
    for one in running.logs.directories:
        if one.path in (directories or (FIRST,)):
            one.failed(OSError(errno.EIO, "the disk is gone", one.path))


def give_up_first(cluster: ScriptedCluster, broker: int) -> None:
    """Between two starts, as the handbook says."""
    machine = cluster.machine(broker)
    machine.node.disk.remove(f"{SECOND}/cluster.directories")
    machine._settings["log.dirs"] = SECOND
    machine._recovery._fates.clear()  # it is not asked what became of those logs


async def until_leaderless(cluster: ScriptedCluster, *, last_known: int) -> None:
    def is_so() -> bool:
        state = cluster.state()
        return state is not None and (state.leader, state.last_known_leader) == (-1, last_known)

    await cluster.until(is_so, f"no leader, and {last_known} was the last")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dies", [None, 2, 3])
def test_leader_loses_its_directory_and_another_leads(seed: int, dies: int | None) -> None:
    """Also when a broker dies just then, which may be the controller."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        fail(cluster, 1)
        leader = await cluster.successor(1, dies=dies)
        if dies is not None:
            await cluster.start(dies)
        await cluster.until_led(isr={2, 3})
        assert await cluster.produce(1, b"lost?") in (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        assert await cluster.produce(leader, b"b") == 1
        assert cluster.claim(1) is None
        await cluster.machine(1).stop()
        await cluster.start(1)
        await cluster.until_led(isr={1, 2, 3})
        assert await cluster.read_values(leader) == [b"a", b"b"]

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_follower_loses_its_directory_and_leaves_before_it_lags(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        await cluster.until(lambda: cluster.replica(3) is not None, "the follower has its log")
        before_s = cluster.scene.now_s()
        fail(cluster, 3)
        await cluster.until_led(by=1, isr={1, 2})
        # replica.lag.time.max.ms is 1500 here, and looked at every 750.
        assert cluster.scene.now_s() - before_s < 1.4
        assert await cluster.produce(1, b"a") == 0

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_last_one_in_sync_loses_its_directory_and_nobody_leads_until_it_is_back(seed: int) -> None:
    """The others are behind: with one of them what was acknowledged would be lost."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2], in_sync_min=1)
        cluster.kill(2)
        await cluster.until_led(by=1, isr={1})
        assert await cluster.produce(1, b"a") == 0
        fail(cluster, 1)
        await until_leaderless(cluster, last_known=1)
        await cluster.start(2)
        await asyncio.sleep(3)
        await until_leaderless(cluster, last_known=1)
        await cluster.machine(1).stop()
        await cluster.start(1)
        await cluster.until_led(isr={1, 2})
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a"]

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_session_that_is_lost_meanwhile_brings_nothing_back(seed: int) -> None:
    """Under its next epoch the broker says it again: the first registration forgot it."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        fail(cluster, 1)
        await cluster.until_led(isr={2, 3})
        epoch = cluster.scene.committed.registered[1]
        cluster.cut_from_keeper(1)
        await cluster.until(lambda: 1 not in cluster.scene.committed.registered, "its session ends")
        cluster.heal()
        await cluster.until(
            lambda: cluster.scene.committed.registered.get(1, -1) > epoch, "it comes again"
        )
        await cluster.until(lambda: cluster.lost() == (1,), "it is known to be lost again")
        await cluster.until_led(isr={2, 3})
        state = cluster.state()
        assert state is not None
        assert await cluster.produce(state.leader, b"b") == 1

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_missing_directory_is_not_made_anew_where_its_broker_was_the_last_in_sync(
    seed: int,
) -> None:
    """A typing error in `log.dirs`, or a disk that is not mounted, must not lose what counted."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2], in_sync_min=1)
        cluster.kill(2)
        await cluster.until_led(by=1, isr={1})
        assert await cluster.produce(1, b"a") == 0
        machine = cluster.machine(1)
        await machine.stop()
        machine._settings["log.dirs"] = SECOND
        await cluster.start(1, 2)
        await until_leaderless(cluster, last_known=1)
        assert cluster.lost() == (1,)
        await machine.stop()
        machine._settings["log.dirs"] = f"{SECOND},{FIRST}"
        await cluster.start(1)
        await cluster.until_led(isr={1, 2})
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a"]

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_directory_from_an_earlier_time_does_not_say_that_nothing_is_missing(seed: int) -> None:
    """It has the proof of a clean stop without any logs; the broker went on without it.

    The first start is refused with the reason, the next one has no proof any more and misses it.
    """

    async def story(cluster: ScriptedCluster) -> None:
        machine = cluster.machine(1)
        await machine.stop()
        machine.node.disk.rename(SECOND, "/earlier")
        await cluster.start(1)
        await cluster.create([1], in_sync_min=1)
        assert await cluster.produce(1, b"a") == 0
        cluster.kill(1)
        disk = machine.node.disk
        assert disk.is_directory(f"{FIRST}/{TOPIC}-0")
        disk.rename(FIRST, "/elsewhere")
        remove_tree(disk, SECOND)
        disk.rename("/earlier", SECOND)
        machine.absent = FIRST
        before = cluster.scene.counts["starts that failed"]
        await cluster.start(1)
        assert cluster.scene.counts["starts that failed"] == before + 1
        await until_leaderless(cluster, last_known=1)
        assert cluster.lost() == (1,)
        await machine.stop()
        disk = machine.node.disk
        assert not disk.exists(f"{FIRST}/{TOPIC}-0")
        remove_tree(disk, FIRST)
        disk.rename("/elsewhere", FIRST)
        machine.absent = None
        await cluster.start(1)
        await cluster.until_led(by=1, isr={1})
        assert await cluster.read_values(1) == [b"a"]

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_directory_that_fails_at_the_start_is_not_made_anew_in_the_other(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2], in_sync_min=1)
        cluster.kill(2)
        await cluster.until_led(by=1, isr={1})
        assert await cluster.produce(1, b"a") == 0
        machine = cluster.machine(1)
        await machine.stop()
        machine.node.disk.faults.fail_next("list", path_part=FIRST)
        await cluster.start(1, 2)
        await until_leaderless(cluster, last_known=1)
        assert cluster.lost() == (1,)
        assert not machine.node.disk.exists(f"{SECOND}/{TOPIC}-0")
        await machine.stop()
        await cluster.start(1)
        await cluster.until_led(isr={1, 2})
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a"]

    cluster_of(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_directory_that_is_given_up_is_fetched_again_from_the_others(seed: int) -> None:
    """Its broker stopped cleanly, and proves nothing: it is in sync when it has all again."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        machine = cluster.machine(1)
        await machine.stop()
        give_up_first(cluster, 1)
        await cluster.start(1)
        await cluster.until_led(isr={1, 2, 3})
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a"]
        replica = cluster.replica(1)
        assert replica is not None
        assert replica.log_end == 1
        assert machine.node.disk.is_directory(f"{SECOND}/{TOPIC}-0")

    cluster = cluster_of(seed)
    cluster.scene.excuses.wounded.add(1)  # its first directory is not scanned in the end
    cluster.run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_given_up_is_no_reason_to_lead_though_the_stop_was_clean(seed: int) -> None:
    """It is eligible for what it had, and has it no more: only the other one has everything."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2])
        assert await cluster.produce(1, b"a") == 0
        await cluster.machine(1).stop()
        await cluster.until_led(by=2, isr={2})
        cluster.kill(2)
        give_up_first(cluster, 1)
        await cluster.start(1)
        await asyncio.sleep(10)  # the other one's session has ended
        state = cluster.state()
        assert state is not None
        assert state.leader == -1
        await cluster.start(2)
        await cluster.until_led(by=2, isr={1, 2})
        assert await cluster.read_values(2) == [b"a"]

    cluster = cluster_of(seed)
    cluster.scene.excuses.wounded.add(1)
    cluster.run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_broker_without_any_directory_gives_up(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        fail(cluster, 1, FIRST)
        await cluster.until_led(isr={2, 3})
        running = cluster.machine(1).broker
        assert running is not None
        assert running.failure is None
        fail(cluster, 1, SECOND)
        await cluster.until(lambda: running.failure is not None, "it cannot go on")
        message = str(running.failure)
        assert FIRST in message
        assert SECOND in message

    cluster_of(seed).run(story)
