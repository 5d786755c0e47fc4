"""A client while brokers die, leaders move and the network cuts: right answers or errors, in time.

What is checked: an answer is one that was true at some time during the call; every call ends by its
deadline; when the faults are over everything works again; no task is left behind.
"""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.client.fake_cluster import DISCONNECT, SILENCE, FakeCluster, partition
from kits.rpc.rpc_server import PORT
from millstream.client.cluster import Cluster
from millstream.client.errors import ClientError
from millstream.client.offsets import LATEST, list_offsets
from millstream.model.ids import TopicId
from millstream.runtime.randomness import SeededRandomness
from millstream.wire.errors import ErrorCode

BROKERS = 3
PARTITIONS = 5
DEADLINE_S = 20.0
SERVERS = ",".join(f"broker{number + 1}:{PORT}" for number in range(BROKERS))
CONFIGS = {
    "bootstrap.servers": SERVERS,
    "request.timeout.ms": 3000,
    "socket.connection.setup.timeout.ms": 2000,
    "connections.max.idle.ms": 5000,
    "metadata.max.age.ms": 8000,
}
PASSING: tuple[ErrorCode | str, ...] = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    DISCONNECT,
    SILENCE,
)


class Run:
    """One seed: a cluster under faults, and calls against it."""

    def __init__(self, seed: int, call_count: int) -> None:
        self.fake = FakeCluster(BROKERS, seed=seed)
        self.randomness = SeededRandomness(seed).fork("test")
        self.call_count = call_count
        self.topic = self.fake.add_topic("events", PARTITIONS)
        self.ends = [0] * PARTITIONS
        self.stopped: set[int] = set()
        self.answers = 0
        self.errors = 0

    def execute(self) -> None:
        self.fake.play(self._scenario, CONFIGS)

    async def _scenario(self, cluster: Cluster) -> None:
        faults = asyncio.create_task(self._faults())
        async with asyncio.TaskGroup() as calls:
            for _ in range(self.call_count):
                calls.create_task(self._call(cluster))
                await asyncio.sleep(self.randomness.choice([0.0, 0.1, 1.0, 7.0]))
        faults.cancel()
        await self._heal()
        await self._check_everything(cluster)

    async def _call(self, cluster: Cluster) -> None:
        wanted = [partition(index) for index in range(PARTITIONS) if self.randomness.chance(0.6)]
        before, begun_s = list(self.ends), cluster.now_s()
        try:
            deadline = cluster.deadline("test", DEADLINE_S)
            found = await list_offsets(cluster, dict.fromkeys(wanted, LATEST), deadline=deadline)
        except ClientError:
            self.errors += 1
        else:
            self.answers += 1
            for one, listed in found.items():
                assert listed.offset is not None
                assert before[one.partition] <= listed.offset <= self.ends[one.partition]
        assert cluster.now_s() - begun_s <= DEADLINE_S + 0.01

    async def _check_everything(self, cluster: Cluster) -> None:
        found = await list_offsets(
            cluster, {partition(index): LATEST for index in range(PARTITIONS)}
        )
        assert [found[partition(index)].offset for index in range(PARTITIONS)] == self.ends
        for index, (leader, epoch) in enumerate(self.topic.leaders):
            known = await cluster.leader_connection(
                partition(index), topic_id=TopicId(self.topic.topic_id)
            )
            assert (known.leader.broker.broker_id, known.leader.leader_epoch) == (leader, epoch)

    async def _faults(self) -> None:
        network, randomness = self.fake.world.network, self.randomness.fork("faults")
        while True:
            await asyncio.sleep(randomness.between(0.0, 3.0))
            broker = self.fake.broker(randomness.integer(1, BROKERS + 1))
            match randomness.integer(0, 9):
                case 0 | 1:
                    self._move(randomness.integer(0, PARTITIONS), broker.broker_id)
                case 2 | 3:
                    self._grow(randomness.integer(0, PARTITIONS))
                case 4:
                    broker.script.append(randomness.choice(PASSING))
                case 5:
                    network.reset("client", broker.host)
                case 6:
                    seconds = randomness.between(0, 5)
                    network.clog(broker.host, "client", duration_s=seconds)
                case 7 if broker.broker_id not in self.stopped:
                    broker.stop()
                    self.stopped.add(broker.broker_id)
                case _:
                    await self._heal()

    def _move(self, index: int, broker_id: int) -> None:
        self.topic.leaders[index] = (broker_id, self.topic.leaders[index][1] + 1)

    def _grow(self, index: int) -> None:
        """A record is appended; only the leader's answer counts, so all may know."""
        self.ends[index] += 1
        for broker in self.fake.brokers:
            broker.offsets["events", index] = self.ends[index]

    async def _heal(self) -> None:
        self.fake.world.network.heal_all()
        for broker_id in sorted(self.stopped):
            await self.fake.broker(broker_id).listen()
        self.stopped.clear()
        for broker in self.fake.brokers:
            broker.script.clear()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), call_count=st.integers(1, 25))
def test_every_call_ends_in_time_with_the_truth_or_an_error(seed: int, call_count: int) -> None:
    Run(seed, call_count).execute()


@pytest.mark.parametrize("seed", range(3))
def test_answers_come_despite_the_faults(seed: int) -> None:
    """The property above says something only if calls succeed while faults happen."""
    run = Run(seed, 80)
    run.execute()
    assert run.answers > 60
