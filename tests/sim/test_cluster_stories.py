"""The stories that shaped Kafka's replication, and those that every operator lives through.

Each is played on a simulated cluster of three brokers, with every promise checked meanwhile.
"""

import asyncio

import pytest

from millstream.testing.simulation.cluster.coverage import TRUNCATIONS
from millstream.testing.simulation.cluster.scene import host_of
from millstream.testing.simulation.cluster.scripted_cluster import TOPIC, ScriptedCluster
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SEEDS = [1, 2, 3]


def same_logs(cluster: ScriptedCluster, *brokers: int) -> bool:
    found = [cluster.replica(one) for one in brokers]
    logs = [one.batches if one is not None else None for one in found]
    return logs[0] is not None and all(one == logs[0] for one in logs)


async def until_known(cluster: ScriptedCluster, broker: int, *, brokers: set[int]) -> None:
    """The broker's metadata has these."""
    async with asyncio.timeout(30):
        known: set[int] = set()
        while known != brokers:
            await asyncio.sleep(0.1)
            response = await cluster.call(broker, MetadataRequest(topics=[]), 9)
            known = {one.node_id for one in response.brokers}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_fails_and_comes_back(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        cluster.kill(3)
        await cluster.until_led(by=1, isr={1, 2})
        assert await cluster.produce(1, b"b") == 1
        await cluster.start(3)
        await cluster.until_led(by=1, isr={1, 2, 3})
        assert await cluster.produce(1, b"c") == 2
        await cluster.until(lambda: same_logs(cluster, 1, 2, 3), "three equal logs")
        assert await cluster.read_values(1) == [b"a", b"b", b"c"]

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_fails_with_a_tail_that_nobody_has(seed: int) -> None:
    """acks=1 promises no more; the tail is cut off, and nothing else (I-08)."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        cluster.cut(1, 2)
        cluster.cut(1, 3)
        assert await cluster.produce(1, b"tail", acks=1) == 1
        cluster.kill(1)
        cluster.heal()
        await cluster.until_led(isr={2, 3})
        state = cluster.state()
        assert state is not None
        assert await cluster.produce(state.leader, b"b") == 1
        await cluster.start(1)
        await cluster.until_led(isr={1, 2, 3})
        await cluster.until(lambda: same_logs(cluster, 1, 2, 3), "three equal logs")
        assert await cluster.read_values(state.leader) == [b"a", b"b"]
        assert cluster.scene.counts[TRUNCATIONS] >= 1

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_isr_is_down_and_nobody_else_may_lead(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        cluster.kill(3)
        await cluster.until_led(by=1, isr={1, 2})
        assert await cluster.produce(1, b"a") == 0
        cluster.kill(1, 2)
        await cluster.start(3)
        await asyncio.sleep(10)
        state = cluster.state()
        assert state is not None
        assert state.leader not in (3, *cluster.simulation.view().brokers)
        await cluster.start(1, 2)
        await cluster.until_led(isr={1, 2, 3})
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a"]
        assert cluster.scene.counts["unclean elections"] == 0

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_isr_is_down_and_anybody_may_lead(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3], is_unclean=True, in_sync_min=1)
        cluster.kill(3)
        await cluster.until_led(by=1, isr={1, 2})
        assert await cluster.produce(1, b"lost") == 0
        cluster.kill(1, 2)
        await cluster.start(3)
        await cluster.until_led(by=3)
        assert cluster.scene.counts["unclean elections"] >= 1
        assert await cluster.produce(3, b"new") == 0
        await cluster.start(1, 2)
        await cluster.until_led(isr={1, 2, 3})
        await cluster.until(lambda: same_logs(cluster, 1, 2, 3), "three equal logs")
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"new"]

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_kip_101_a_follower_restarts_before_it_knows_the_high_watermark(seed: int) -> None:
    """It must not cut off what was acknowledged, whoever leads next."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2])
        assert await cluster.produce(1, b"a") == 0
        cluster.kill(2)  # at once: it has the record, and its high watermark is 0
        await cluster.start(2)
        cluster.kill(1)
        await asyncio.sleep(6)
        state, replica = cluster.state(), cluster.replica(2)
        assert state is not None
        assert replica is not None
        assert state.leader != 2 or replica.log_end == 1
        await cluster.start(1)
        await cluster.until_led(isr={1, 2})
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a"]

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_kip_101_both_die_and_the_one_with_less_comes_first(seed: int) -> None:
    """Two logs with different records at one offset become one again."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2], is_unclean=True, in_sync_min=1)
        assert await cluster.produce(1, b"m1") == 0
        cluster.cut(1, 2)
        assert await cluster.produce(1, b"m2", acks=1) == 1
        cluster.kill(1, 2)
        cluster.heal()
        await cluster.start(2)
        await cluster.until_led(by=2)
        assert await cluster.produce(2, b"m3") == 1
        await cluster.start(1)
        await cluster.until_led(by=2, isr={1, 2})
        await cluster.until(lambda: same_logs(cluster, 1, 2), "two equal logs")
        assert await cluster.read_values(2) == [b"m1", b"m3"]

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_kip_279_leaders_change_twice_and_logs_part_in_two_epochs(seed: int) -> None:
    """The follower's last epoch is unknown to the leader: it goes back epoch by epoch."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2], is_unclean=True, in_sync_min=1)
        assert await cluster.produce(1, b"a") == 0
        cluster.cut(1, 2)
        assert await cluster.produce(1, b"c", acks=1) == 1
        cluster.kill(1)
        cluster.heal()
        await cluster.until_led(by=2)
        assert await cluster.produce(2, b"d1", acks=1) == 1
        assert await cluster.produce(2, b"d2", acks=1) == 2
        cluster.kill(2)
        await cluster.start(1)
        await cluster.until_led(by=1)
        assert await cluster.produce(1, b"e", acks=1) == 2
        await cluster.start(2)
        await cluster.until_led(by=1, isr={1, 2})
        await cluster.until(lambda: same_logs(cluster, 1, 2), "two equal logs")
        assert await cluster.read_values(1) == [b"a", b"c", b"e"]

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_kip_320_readers_of_another_epoch_are_fenced(seed: int) -> None:
    """I-15"""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        cluster.kill(1)
        await cluster.until_led(isr={2, 3})
        state = cluster.state()
        assert state is not None
        leader, epoch = state.leader, state.leader_epoch
        old = await cluster.fetch(leader, leader_epoch=epoch - 1)
        assert old.error_code == ErrorCode.FENCED_LEADER_EPOCH
        new = await cluster.fetch(leader, leader_epoch=epoch + 1)
        assert new.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        other = ({2, 3} - {leader}).pop()
        follower = await cluster.fetch(other, leader_epoch=epoch)
        assert follower.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        good = await cluster.fetch(leader, leader_epoch=epoch)
        assert good.error_code == 0

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_kip_320_a_reader_is_told_that_what_it_read_is_gone(seed: int) -> None:
    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2], is_unclean=True, in_sync_min=1)
        assert await cluster.produce(1, b"a") == 0
        cluster.kill(2)
        await cluster.until_led(by=1, isr={1})
        assert await cluster.produce(1, b"lost1", b"lost2") == 1
        assert await cluster.read_values(1) == [b"a", b"lost1", b"lost2"]
        state = cluster.state()
        assert state is not None
        epoch = state.leader_epoch
        cluster.kill(1)
        await cluster.start(2)
        await cluster.until_led(by=2)
        assert await cluster.produce(2, b"x", b"y", b"z") == 1
        state = cluster.state()
        assert state is not None
        data = await cluster.fetch(2, 3, leader_epoch=state.leader_epoch, last_epoch=epoch)
        assert data.error_code == 0
        assert data.diverging_epoch.end_offset == 1
        assert not data.records

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_slept_through_its_session_acknowledges_nothing(seed: int) -> None:
    """I-18: when it wakes there is another one; nothing that it still takes counts."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        process = cluster.machine(1).process
        assert process is not None
        cluster.scene.pauses.pause(host_of(1), process)
        await cluster.until_led(isr={2, 3})
        state = cluster.state()
        assert state is not None
        assert await cluster.produce(state.leader, b"b") == 1
        cluster.scene.pauses.resume(host_of(1))
        outcome = await cluster.produce(1, b"zombie")
        assert outcome is None or isinstance(outcome, ErrorCode)
        await cluster.until_led(isr={1, 2, 3})
        await cluster.until(lambda: same_logs(cluster, 1, 2, 3), "three equal logs")
        state = cluster.state()
        assert state is not None
        assert await cluster.read_values(state.leader) == [b"a", b"b"]

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_cut_off_from_the_keeper_alone_loses_nothing(seed: int) -> None:
    """I-18: it may serve on while it does not know better, but only with all of its ISR."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        cluster.cut_from_keeper(1)
        sent = [b"b", b"c", b"d", b"e"]
        acknowledged = []
        for value in sent:
            outcome = await cluster.produce(1, value)
            if outcome is not None and not isinstance(outcome, ErrorCode):
                acknowledged.append(value)
            await asyncio.sleep(1)
        await cluster.until_led(isr={2, 3})
        cluster.heal()
        await cluster.until_led(isr={1, 2, 3})
        state = cluster.state()
        assert state is not None
        read = await cluster.read_values(state.leader)
        assert [one for one in read if one in [b"a", *acknowledged]] == [b"a", *acknowledged]

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dies", [None, 2])
def test_a_leader_cut_off_from_the_keeper_alone_hears_of_its_successor(
    seed: int, dies: int | None
) -> None:
    """From the others, while it is cut off: or clients that know no other broker stay with it.

    Whichever broker is the controller, and whichever was before.
    """

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3], in_sync_min=1)
        assert await cluster.produce(1, b"a") == 0
        cluster.cut_from_keeper(1)
        leader = await cluster.successor(1, dies=dies)
        await cluster.until(lambda: cluster.claim(1) is None, "it leads no more")
        assert await cluster.produce(1, b"b") is ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = await cluster.call(
            1, MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 9
        )
        assert response.topics[0].partitions[0].leader_id == leader
        assert await cluster.produce(leader, b"b") == 1
        cluster.heal()
        if dies is not None:
            await cluster.start(dies)
        await cluster.until_led(isr={1, 2, 3})
        await cluster.until(lambda: same_logs(cluster, 1, 2, 3), "three equal logs")

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("other", [1, 2, 3])
def test_a_leader_cut_off_together_with_the_controller_hears_of_both_successors(
    seed: int, other: int
) -> None:
    """The old controller does not know better, and is asked as well."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3, 4, 5], in_sync_min=1)
        controller = cluster.scene.committed.controller
        cut = {1, controller, other}
        for broker in cut:
            cluster.cut_from_keeper(broker)
        await cluster.until_led(isr={1, 2, 3, 4, 5} - cut)
        await cluster.until(lambda: not any(map(cluster.claim, cut)), "they lead no more")
        cluster.heal()
        await cluster.until_led(isr={1, 2, 3, 4, 5})

    ScriptedCluster(seed, brokers=5).run(story)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_met", [True, False])
def test_a_leader_cut_off_finds_a_controller_that_is_not_in_its_metadata(
    seed: int, *, has_met: bool
) -> None:
    """Because it has met it, or, if it never did, because another broker knows it."""

    async def story(cluster: ScriptedCluster) -> None:
        cluster.kill(3)
        await until_known(cluster, 2, brokers={1, 2})
        if not has_met:
            cluster.kill(1)
            await cluster.start(1)
        await until_known(cluster, 1, brokers={1, 2})
        await cluster.create([1, 2], in_sync_min=1)
        cluster.cut_from_keeper(1)
        cluster.kill(2)
        await cluster.start(3)
        assert cluster.scene.committed.controller == 3
        if not has_met:
            await cluster.start(2)
        await cluster.until(lambda: cluster.claim(1) is None, "it leads no more")
        cluster.heal()
        if has_met:
            await cluster.start(2)
        await cluster.until_led(by=1, isr={1, 2})

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_cut_off_does_not_call_a_sequence_wrong(seed: int) -> None:
    """I-18, I-20: another leader has what this one misses, so it must not deny that it exists.

    A producer that gets OUT_OF_ORDER_SEQUENCE_NUMBER starts over with another id or epoch, and
    what it had sent and got no answer for is stored twice.
    """

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a", producer_id=7, sequence=0) == 0
        cluster.cut_from_keeper(1)
        cluster.cut(1, 2)
        cluster.cut(1, 3)
        await cluster.until_led(isr={2, 3})
        state = cluster.state()
        assert state is not None
        assert await cluster.produce(state.leader, b"b", producer_id=7, sequence=1) == 1
        assert cluster.claim(1) is not None, "it does not know"
        refused = await cluster.produce(1, b"c", producer_id=7, sequence=2)
        assert refused is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await cluster.produce(state.leader, b"c", producer_id=7, sequence=2) == 2
        real = await cluster.produce(state.leader, b"e", producer_id=7, sequence=4)
        assert real is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        cluster.heal()
        await cluster.until_led(isr={1, 2, 3})
        await cluster.until(lambda: same_logs(cluster, 1, 2, 3), "three equal logs")

    ScriptedCluster(seed).run(story)


@pytest.mark.parametrize("seed", range(1, 41))
def test_records_are_acknowledged_after_the_controller_was_stopped(seed: int) -> None:
    """It goes while leaders ask it for changes: what they did not hear must not keep them waiting.

    The broker that is not there any more may be one of those they asked for.
    """

    async def story(cluster: ScriptedCluster) -> None:
        controller = cluster.scene.committed.controller
        leader, other = sorted({1, 2, 3} - {controller})
        await cluster.create([leader, other, controller])
        offset = await cluster.produce(leader, b"first")
        assert offset == 0

        async def keep_writing() -> None:
            while True:
                await cluster.produce(leader, b"more")

        writing = asyncio.get_running_loop().create_task(keep_writing())
        cluster.kill(other)
        await cluster.start(other)
        await cluster.machine(controller).stop()
        writing.cancel()
        async with asyncio.timeout(20):
            while isinstance(await cluster.produce(leader, b"last"), ErrorCode | None):
                pass
        state = cluster.state()
        assert state is not None
        assert controller not in state.isr

    ScriptedCluster(seed).run(story)
