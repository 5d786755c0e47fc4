"""DescribeProducers, version 0."""

import errno

import pytest

from kits.broker.offsets_kit import TOPIC, LogDesk
from kits.broker.topic_handlers_kit import codes
from kits.storage.log_stories import NOW, batch_of, of_producer
from millstream.broker.handlers import describe_producers
from millstream.model.ids import LeaderEpoch
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
