"""DescribeProducers, version 0."""

import errno
from typing import Any

import pytest

from kits.broker.offsets_kit import TOPIC, LogDesk
from kits.broker.topic_handlers_kit import codes
from kits.replication.replica_kit import PORT, Cluster
from kits.replication.replica_kit import TOPIC as REPLICATED
from kits.storage.log_stories import NOW, batch_of, of_producer
from millstream.broker.handlers import describe_producers
from millstream.model.ids import LeaderEpoch
from millstream.rpc.connection import connect
from millstream.rpc.settings import RpcSettings
from millstream.storage.ports import AppendOutcome
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)


def request_for(*indexes: int, name: str = TOPIC) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=list(indexes))]
    )


def ask(desk: LogDesk, request: DescribeProducersRequest) -> PartitionResponse:
    response = desk.send(describe_producers, request, DescribeProducersResponse, 0)
    return response.topics[0].partitions[0]


def test_producers_and_their_open_transactions() -> None:
    desk = LogDesk()
    desk.put(b"of nobody")
    for sequence in range(3):
        batch = batch_of(b"x", spec=of_producer(9, sequence, epoch=2))
        desk.leader.log.append_as_leader(batch, leader_epoch=LeaderEpoch(0))
    desk.put_open_transaction(5)
    found = ask(desk, request_for(0)).active_producers
    assert [one.producer_id for one in found] == [5, 9]
    transactional, idempotent = found
    assert (idempotent.producer_epoch, idempotent.last_sequence) == (2, 2)
    assert idempotent.last_timestamp == NOW
    assert idempotent.coordinator_epoch == -1
    assert idempotent.current_txn_start_offset == -1
    assert transactional.current_txn_start_offset == 4
    desk.end_transaction(5)
    [transactional, _] = ask(desk, request_for(0)).active_producers
    assert transactional.current_txn_start_offset == -1
    assert transactional.coordinator_epoch == 3


@pytest.mark.parametrize("name", ["", "no spaces", "a/b", ".", "..", "x" * 250])
def test_names_that_no_topic_can_have(name: str) -> None:
    found = ask(LogDesk(), request_for(0, name=name))
    assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert found.error_message


def test_what_is_not_here() -> None:
    desk = LogDesk()
    unknown = ask(desk, request_for(0, name="nope"))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown.error_message
    missing = ask(desk, request_for(4))
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert missing.error_message is None
    desk.leader.log.owner.failed(OSError(errno.EIO, "gone"))
    assert ask(desk, request_for(0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_failure_of_the_whole() -> None:
    response = describe_producers.failed(request_for(0, 1), ErrorCode.KAFKA_STORAGE_ERROR, 0)
    again = DescribeProducersResponse.decode(memoryview(response.encode(0)), 0)
    assert codes(again.topics[0].partitions) == ["KAFKA_STORAGE_ERROR"] * 2


async def answer_of(cluster: Cluster, broker_id: int) -> PartitionResponse:
    host = cluster.world.network.host("admin")
    connection = await connect(host, RpcSettings(), host=f"broker-{broker_id}", port=PORT)
    answer: Any = await connection.send(request_for(0, name=REPLICATED))
    connection.close()
    partition = answer.topics[0].partitions[0]
    assert isinstance(partition, PartitionResponse)
    return partition


def test_followers_tell_the_producers_of_their_logs() -> None:
    """As in Kafka: who looks for a transaction that hangs may ask any replica."""

    async def story(cluster: Cluster) -> None:
        done: list[AppendOutcome] = []
        batch = batch_of(b"x", spec=of_producer(7, 0, epoch=3))
        cluster[1].leader().append(batch, acks=-1, done=done.append)
        cluster[1].partitions.wake_readers()
        await cluster.until_equal()
        for broker_id in (1, 2, 3):
            found = await answer_of(cluster, broker_id)
            assert found.error_code == ErrorCode.NONE, broker_id
            (producer,) = found.active_producers
            facts = (producer.producer_id, producer.producer_epoch, producer.last_sequence)
            assert facts == (7, 3, 0), broker_id

    Cluster(brokers=3).play(story)


def test_a_broker_without_a_replica_tells_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        now, only = cluster.partition(), (cluster[1].broker_id,)
        epoch = now.partition_epoch + 1
        cluster.put(0, now._replace(replicas=only, isr=only, partition_epoch=epoch))
        found = await answer_of(cluster, 2)
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    Cluster(brokers=2).play(story)
