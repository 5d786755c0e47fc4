"""Whom the simulated producers of a cluster believe that something is lost: only its leader."""

from uuid import UUID

from millstream.rpc.connections import Address
from millstream.testing.simulation.broker.producers import Batch
from millstream.testing.simulation.broker.scene import PORT
from millstream.testing.simulation.cluster.clients import (
    REFUSED_BY_FORMER_LEADERS,
    ClusterIdempotentProducer,
)
from millstream.testing.simulation.cluster.scene import ClusterTopic, host_of
from millstream.testing.simulation.cluster.scripted_cluster import TOPIC, ScriptedCluster
from millstream.wire.errors import ErrorCode

VERSION = 11


async def answer(cluster: ScriptedCluster, broker: int, *, sequence: int) -> int:
    """What a producer makes of the answer to a batch of this sequence: the error code."""
    state = cluster.state()
    assert state is not None
    topic_id = UUID(state.key.topic_id)
    topic = ClusterTopic(TOPIC, topic_id, 1, is_durable=False, segment_bytes=1 << 20)
    name = f"producer-{broker}-{sequence}"
    client = ClusterIdempotentProducer(cluster.scene, name, cluster.scene.randomness.fork(name))
    client.aim(topic, 0)

    async def sending() -> int:
        connection = await client._connections.get(Address(host_of(broker), PORT))
        batch: Batch = client.new_batch(topic, 0, lane=name, number=1)
        batch.build(timestamp_ms=client.clock.wall_ms(), producer_id=7, sequence=sequence)
        request = client.request(topic, batch, partition=0, acks=-1, version=VERSION)
        outcome = await client.produce(connection, request, VERSION)
        assert not isinstance(outcome, Exception)
        return outcome.error_code

    code = await client.process.spawn(sending(), "send")
    client.process.kill()
    return code


def test_a_wrong_sequence_is_believed_of_the_leader_and_not_of_a_former_one() -> None:
    """I-20. A deposed leader that does not know it lacks what its successor stored."""

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a", producer_id=7, sequence=0) == 0
        lost = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await answer(cluster, 1, sequence=50) == lost
        assert cluster.scene.counts[REFUSED_BY_FORMER_LEADERS] == 0
        cluster.cut_from_keeper(1)
        cluster.cut(1, 2)
        cluster.cut(1, 3)
        await cluster.until_led(isr={2, 3})
        former = cluster.machine(1).broker
        assert former is not None
        former.partitions.cluster.may_propose = lambda: True  # as if it had not noticed yet
        refused = await cluster.produce(1, b"b", producer_id=7, sequence=50)
        assert refused is lost, "what it says to others"
        assert await answer(cluster, 1, sequence=50) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert cluster.scene.counts[REFUSED_BY_FORMER_LEADERS] == 1
        state = cluster.state()
        assert state is not None
        assert await answer(cluster, state.leader, sequence=50) == lost
        cluster.heal()
        await cluster.until_led(isr={1, 2, 3})

    ScriptedCluster().run(story)
