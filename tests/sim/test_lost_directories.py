"""Log directories of a cluster's brokers that fail, are missing, or come back, story by story.

Every broker has two of them. The only partition is in the first; what happens to that directory
leaves its broker alive, so that nobody else would notice.
"""

import asyncio
import errno

import pytest

from millstream.runtime.disk import remove_tree
from millstream.testing.simulation.cluster.stage import TOPIC, Stage
from millstream.wire.errors import ErrorCode

SEEDS = [1, 2, 3]
FIRST, SECOND = "/data", "/more"
TWO_DIRECTORIES = {"log.dirs": f"{FIRST},{SECOND}"}


def stage_of(seed: int, *, brokers: int = 3) -> Stage:
    return Stage(seed, brokers=brokers, settings=TWO_DIRECTORIES)


def fail(stage: Stage, broker: int, *directories: str) -> None:
    """As the kernel reports it, from now on."""
    running = stage.machine(broker).broker
    assert running is not None
    for one in running.logs.directories:
        if one.path in (directories or (FIRST,)):
            one.failed(OSError(errno.EIO, "the disk is gone", one.path))


def give_up_first(stage: Stage, broker: int) -> None:
    """Between two starts, as the handbook says."""
    machine = stage.machine(broker)
    machine.node.disk.remove(f"{SECOND}/cluster.directories")
    machine._settings["log.dirs"] = SECOND
    machine._recovery._fates.clear()  # it is not asked what became of those logs


async def until_leaderless(stage: Stage, *, last_known: int) -> None:
    def is_so() -> bool:
        state = stage.state()
        return state is not None and (state.leader, state.last_known_leader) == (-1, last_known)

    await stage.until(is_so, f"nobody leads, and {last_known} did")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dies", [None, 2, 3])
def test_leader_loses_its_directory_and_another_leads(seed: int, dies: int | None) -> None:
    """Also when a broker dies just then, which may be the controller."""

    async def story(stage: Stage) -> None:
        await stage.create([1, 2, 3])
        assert await stage.produce(1, b"a") == 0
        fail(stage, 1)
        leader = await stage.successor(1, dies=dies)
        if dies is not None:
            await stage.start(dies)
        await stage.until_led(isr={2, 3})
        assert await stage.produce(1, b"lost?") in (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        assert await stage.produce(leader, b"b") == 1
        assert stage.claim(1) is None
        await stage.machine(1).stop()
        await stage.start(1)
        await stage.until_led(isr={1, 2, 3})
        assert await stage.read_values(leader) == [b"a", b"b"]

    stage_of(seed).tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_follower_loses_its_directory_and_leaves_before_it_lags(seed: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create([1, 2, 3])
        await stage.until(lambda: stage.replica(3) is not None, "the follower has its log")
        before_s = stage.scene.now_s()
        fail(stage, 3)
        await stage.until_led(by=1, isr={1, 2})
        # replica.lag.time.max.ms is 1500 here, and looked at every 750.
        assert stage.scene.now_s() - before_s < 1.4
        assert await stage.produce(1, b"a") == 0

    stage_of(seed).tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_last_one_in_sync_loses_its_directory_and_nobody_leads_until_it_is_back(seed: int) -> None:
    """The others are behind: with one of them what was acknowledged would be lost."""

    async def story(stage: Stage) -> None:
        await stage.create([1, 2], in_sync_min=1)
        stage.kill(2)
        await stage.until_led(by=1, isr={1})
        assert await stage.produce(1, b"a") == 0
        fail(stage, 1)
        await until_leaderless(stage, last_known=1)
        await stage.start(2)
        await asyncio.sleep(3)
        await until_leaderless(stage, last_known=1)
        await stage.machine(1).stop()
        await stage.start(1)
        await stage.until_led(isr={1, 2})
        state = stage.state()
        assert state is not None
        assert await stage.read_values(state.leader) == [b"a"]

    stage_of(seed).tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_session_that_is_lost_meanwhile_brings_nothing_back(seed: int) -> None:
    """Under its next epoch the broker says it again: the first registration forgot it."""

    async def story(stage: Stage) -> None:
        await stage.create([1, 2, 3])
        assert await stage.produce(1, b"a") == 0
        fail(stage, 1)
        await stage.until_led(isr={2, 3})
        epoch = stage.scene.committed.registered[1]
        stage.cut_from_keeper(1)
        await stage.until(lambda: 1 not in stage.scene.committed.registered, "its session ends")
        stage.heal()
        await stage.until(
            lambda: stage.scene.committed.registered.get(1, -1) > epoch, "it comes again"
        )
        await stage.until(lambda: stage.lost() == (1,), "it is known to be lost again")
        await stage.until_led(isr={2, 3})
        state = stage.state()
        assert state is not None
        assert await stage.produce(state.leader, b"b") == 1

    stage_of(seed).tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_missing_directory_is_not_made_anew_where_its_broker_was_the_last_in_sync(
    seed: int,
) -> None:
    """A typing error in `log.dirs`, or a disk that is not mounted, must not lose what counted."""

    async def story(stage: Stage) -> None:
        await stage.create([1, 2], in_sync_min=1)
        stage.kill(2)
        await stage.until_led(by=1, isr={1})
        assert await stage.produce(1, b"a") == 0
        machine = stage.machine(1)
        await machine.stop()
        machine._settings["log.dirs"] = SECOND
        await stage.start(1, 2)
        await until_leaderless(stage, last_known=1)
        assert stage.lost() == (1,)
        await machine.stop()
        machine._settings["log.dirs"] = f"{SECOND},{FIRST}"
        await stage.start(1)
        await stage.until_led(isr={1, 2})
        state = stage.state()
        assert state is not None
        assert await stage.read_values(state.leader) == [b"a"]

    stage_of(seed).tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_directory_from_an_earlier_time_does_not_say_that_nothing_is_missing(seed: int) -> None:
    """It has the proof of a clean stop without any logs; the broker went on without it.

    The first start is refused with the reason, the next one has no proof any more and misses it.
    """

    async def story(stage: Stage) -> None:
        machine = stage.machine(1)
        await machine.stop()
        machine.node.disk.rename(SECOND, "/earlier")
        await stage.start(1)
        await stage.create([1], in_sync_min=1)
        assert await stage.produce(1, b"a") == 0
        stage.kill(1)
        disk = machine.node.disk
        assert disk.is_directory(f"{FIRST}/{TOPIC}-0")
        disk.rename(FIRST, "/elsewhere")
        remove_tree(disk, SECOND)
        disk.rename("/earlier", SECOND)
        machine.absent = FIRST
        before = stage.scene.made["starts that failed"]
        await stage.start(1)
        assert stage.scene.made["starts that failed"] == before + 1
        await until_leaderless(stage, last_known=1)
        assert stage.lost() == (1,)
        await machine.stop()
        disk = machine.node.disk
        assert not disk.exists(f"{FIRST}/{TOPIC}-0")
        remove_tree(disk, FIRST)
        disk.rename("/elsewhere", FIRST)
        machine.absent = None
        await stage.start(1)
        await stage.until_led(by=1, isr={1})
        assert await stage.read_values(1) == [b"a"]

    stage_of(seed).tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_directory_that_fails_at_the_start_is_not_made_anew_in_the_other(seed: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create([1, 2], in_sync_min=1)
        stage.kill(2)
        await stage.until_led(by=1, isr={1})
        assert await stage.produce(1, b"a") == 0
        machine = stage.machine(1)
        await machine.stop()
        machine.node.disk.faults.fail_next("list", path_part=FIRST)
        await stage.start(1, 2)
        await until_leaderless(stage, last_known=1)
        assert stage.lost() == (1,)
        assert not machine.node.disk.exists(f"{SECOND}/{TOPIC}-0")
        await machine.stop()
        await stage.start(1)
        await stage.until_led(isr={1, 2})
        state = stage.state()
        assert state is not None
        assert await stage.read_values(state.leader) == [b"a"]

    stage_of(seed).tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_directory_that_is_given_up_is_fetched_again_from_the_others(seed: int) -> None:
    """Its broker stopped cleanly, and proves nothing: it is in sync when it has all again."""

    async def story(stage: Stage) -> None:
        await stage.create([1, 2, 3])
        assert await stage.produce(1, b"a") == 0
        machine = stage.machine(1)
        await machine.stop()
        give_up_first(stage, 1)
        await stage.start(1)
        await stage.until_led(isr={1, 2, 3})
        state = stage.state()
        assert state is not None
        assert await stage.read_values(state.leader) == [b"a"]
        replica = stage.replica(1)
        assert replica is not None
        assert replica.log_end == 1
        assert machine.node.disk.is_directory(f"{SECOND}/{TOPIC}-0")

    stage = stage_of(seed)
    stage.scene.excuses.wounded.add(1)  # its first directory is not scanned in the end
    stage.tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_given_up_is_no_reason_to_lead_though_the_stop_was_clean(seed: int) -> None:
    """It is eligible for what it had, and has it no more: only the other one has everything."""

    async def story(stage: Stage) -> None:
        await stage.create([1, 2])
        assert await stage.produce(1, b"a") == 0
        await stage.machine(1).stop()
        await stage.until_led(by=2, isr={2})
        stage.kill(2)
        give_up_first(stage, 1)
        await stage.start(1)
        await asyncio.sleep(10)  # the other one's session has ended
        state = stage.state()
        assert state is not None
        assert state.leader == -1
        await stage.start(2)
        await stage.until_led(by=2, isr={1, 2})
        assert await stage.read_values(2) == [b"a"]

    stage = stage_of(seed)
    stage.scene.excuses.wounded.add(1)
    stage.tell(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_broker_without_any_directory_gives_up(seed: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create([1, 2, 3])
        fail(stage, 1, FIRST)
        await stage.until_led(isr={2, 3})
        running = stage.machine(1).broker
        assert running is not None
        assert running.failure is None
        fail(stage, 1, SECOND)
        await stage.until(lambda: running.failure is not None, "it cannot go on")
        told = str(running.failure)
        assert FIRST in told
        assert SECOND in told

    stage_of(seed).tell(story)
