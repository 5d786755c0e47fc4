"""A producer of columns while brokers die, leaders move and the network cuts.

What is checked in the logs afterwards: every record at most once; the records of a partition in
the order of sending; what was acknowledged is there. Every send and flush ends in its time, and
when the faults are over everything works again.
"""

import asyncio

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.client.fake_cluster import DISCONNECT, SILENCE
from kits.client.produce_cluster import ProduceCluster, numbers
from kits.rpc.rpc_server import PORT
from millstream.client.cluster import Cluster
from millstream.client.column_producer import ColumnProducer
from millstream.client.errors import ClientError
from millstream.runtime.randomness import SeededRandomness
from millstream.wire.errors import ErrorCode

BROKERS = 3
PARTITIONS = 5
DELIVERY_S = 30.0
BLOCK_S = 20.0
CONFIGS = {
    "bootstrap.servers": ",".join(f"broker{number + 1}:{PORT}" for number in range(BROKERS)),
    "request.timeout.ms": 3000,
    "delivery.timeout.ms": int(DELIVERY_S * 1000),
    "max.block.ms": int(BLOCK_S * 1000),
    "socket.connection.setup.timeout.ms": 2000,
    "connections.max.idle.ms": 5000,
    "metadata.max.age.ms": 8000,
    "buffer.memory": 20_000,
}
PASSING: tuple[ErrorCode | str, ...] = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INVALID_RECORD,
    DISCONNECT,
    SILENCE,
)


class Run:
    """One seed."""

    def __init__(self, seed: int, sends: int) -> None:
        self.randomness = SeededRandomness(seed).fork("test")
        self.fake = ProduceCluster(
            BROKERS, seed=seed, bytes_max=self.randomness.choice([300, 2**31])
        )
        self.fake.has_hints = self.randomness.chance(0.5)
        self.topic = self.fake.add_topic("events", PARTITIONS)
        self.sends = sends
        self.linger_ms = self.randomness.choice([0, 5, 500])
        self.written = 0
        self.stopped: set[int] = set()
        self.acknowledged = 0
        self.errors = 0

    def execute(self) -> None:
        self.fake.play(self._scenario, {**CONFIGS, "linger.ms": self.linger_ms})
        self._check()

    async def _scenario(self, cluster: Cluster) -> None:
        producer = ColumnProducer(
            cluster, topic="events", randomness=self.randomness.fork("producer")
        )
        faults = asyncio.create_task(self._faults())
        for _ in range(self.sends):
            await self._send(cluster, producer)
            await asyncio.sleep(self.randomness.choice([0.0, 0.0, 0.1, 2.0]))
        faults.cancel()
        await self._heal()
        await self._flush(cluster, producer)
        before = self.written
        await producer.send(self._batch(20))
        told = await producer.flush()
        self.acknowledged += sum(one.records for one in told.values())
        assert self.acknowledged >= self.written - before
        await producer.close()

    def _batch(self, rows: int) -> pa.RecordBatch:
        values = list(range(self.written, self.written + rows))
        self.written += rows
        if self.randomness.chance(0.5):
            keys = [None if self.randomness.chance(0.2) else b"%d" % (one % 7) for one in values]
            return numbers(values, key=pa.array(keys, pa.binary()))
        return numbers(values)

    async def _send(self, cluster: Cluster, producer: ColumnProducer) -> None:
        batch, begun_s = self._batch(self.randomness.integer(1, 40)), cluster.now_s()
        try:
            await producer.send(batch)
        except ClientError:
            self.errors += 1
        assert cluster.now_s() - begun_s <= 2 * BLOCK_S + 0.1
        if self.randomness.chance(0.1):
            await self._flush(cluster, producer)

    async def _flush(self, cluster: Cluster, producer: ColumnProducer) -> None:
        begun_s = cluster.now_s()
        try:
            told = await producer.flush()
        except ClientError:
            self.errors += 1
        else:
            self.acknowledged += sum(one.records for one in told.values())
        assert cluster.now_s() - begun_s <= DELIVERY_S + BLOCK_S + 0.1

    async def _faults(self) -> None:
        network, randomness = self.fake.world.network, self.randomness.fork("faults")
        while True:
            await asyncio.sleep(randomness.between(0.0, 2.0))
            broker = self.fake.broker(randomness.integer(1, BROKERS + 1))
            match randomness.integer(0, 9):
                case 0 | 1 | 2:
                    index = randomness.integer(0, PARTITIONS)
                    epoch = self.topic.leaders[index][1]
                    self.topic.leaders[index] = (broker.broker_id, epoch + 1)
                case 3 | 4:
                    broker.script.append(randomness.choice(PASSING))
                case 5:
                    network.reset("client", broker.host)
                case 6:
                    network.clog(broker.host, "client", duration_s=randomness.between(0, 5))
                case 7 if broker.broker_id not in self.stopped:
                    broker.stop()
                    self.stopped.add(broker.broker_id)
                case _:
                    await self._heal()

    async def _heal(self) -> None:
        self.fake.world.network.heal_all()
        for broker_id in sorted(self.stopped):
            await self.fake.broker(broker_id).listen()
        self.stopped.clear()
        for broker in self.fake.brokers:
            broker.script.clear()

    def _check(self) -> None:
        stored = 0
        for log in self.fake.stored():
            assert len(set(log)) == len(log), "a record is stored twice"
            assert log == sorted(log), "records are stored in another order"
            stored += len(log)
        assert stored >= self.acknowledged, "an acknowledged record is lost"
        if not self.errors:
            assert stored == self.acknowledged == self.written


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), sends=st.integers(1, 40))
def test_every_record_once_and_in_order(seed: int, sends: int) -> None:
    Run(seed, sends).execute()


@pytest.mark.parametrize("seed", range(3))
def test_most_is_stored_despite_the_faults(seed: int) -> None:
    """The property says something only if records are stored while faults happen."""
    run = Run(seed, 60)
    run.execute()
    assert sum(len(log) for log in run.fake.stored()) > run.written // 2
