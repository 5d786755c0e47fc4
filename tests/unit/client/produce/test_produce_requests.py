"""The parts of a produce request are the bytes of the catalogue's message; answers are read."""

from uuid import UUID

import pytest

from kits.client.sim_partition import encoded
from millstream.client.metadata import LeaderHint
from millstream.client.produce.batches import Batch, Origin, Source
from millstream.client.produce.requests import ProduceHead, produce_parts, read_answers
from millstream.model.ids import TopicId, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

IDS = {"one": TopicId(UUID(int=7)), "two": TopicId(UUID(int=2**127 + 5))}


def batch(topic: str, partition: int, values: list[int]) -> Batch:
    origin = Origin(Source((1,), (0,)), range(len(values)))
    return Batch(TopicPartition(topic, partition), encoded(values), len(values), origin)


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "täglich"])
def test_parts_are_the_bytes_of_the_message(version: int, transactional_id: str | None) -> None:
    batches = [batch("one", 0, [1]), batch("two", 300, list(range(200))), batch("one", 2, [3, 4])]
    head = ProduceHead(acks=-1, timeout_ms=30_000, transactional_id=transactional_id)
    parts = produce_parts(head, batches, IDS, version)
    expected = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=IDS[name],
                partition_data=[
                    PartitionProduceData(index=one.partition.partition, records=one.data)
                    for one in batches
                    if one.partition.topic == name
                ],
            )
            for name in ("one", "two")
        ],
    ).encode(version)
    assert b"".join(parts) == expected
    held = {id(part) for part in parts}
    assert all(id(one.data) in held for one in batches), "a batch was copied"


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_answers_are_read(version: int) -> None:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="one",
                topic_id=IDS["one"],
                partition_responses=[
                    PartitionProduceResponse(index=0, base_offset=77),
                    PartitionProduceResponse(
                        index=1,
                        error_code=ErrorCode.INVALID_RECORD,
                        record_errors=[
                            BatchIndexAndErrorMessage(
                                batch_index=3, batch_index_error_message="no key"
                            )
                        ]
                        if version >= 8
                        else [],
                        error_message="a record" if version >= 8 else None,
                    ),
                    PartitionProduceResponse(
                        index=2,
                        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        current_leader=LeaderIdAndEpoch(leader_id=4, leader_epoch=9)
                        if version >= 10
                        else LeaderIdAndEpoch(),
                    ),
                ],
            )
        ],
        throttle_time_ms=5,
        node_endpoints=[NodeEndpoint(node_id=4, host="h", port=1)] if version >= 10 else [],
    )
    names = {one: name for name, one in IDS.items()}
    told, throttle_ms = read_answers(response.encode(version), version, names)
    assert throttle_ms == 5
    stored, refused, moved = (told[TopicPartition("one", index)] for index in range(3))
    assert (stored.answer.failure, stored.answer.base_offset) == (ErrorCode.NONE, 77)
    assert refused.answer.failure is ErrorCode.INVALID_RECORD
    assert (refused.answer.bad_row, refused.answer.message) == (
        (3, "no key") if version >= 8 else (None, None)
    )
    assert moved.answer.failure is ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 10:
        assert isinstance(moved.hint, LeaderHint)
        assert (moved.hint.leader_id, moved.hint.leader_epoch) == (4, 9)
        assert moved.hint.endpoints[0].host == "h"
    else:
        assert moved.hint is None
