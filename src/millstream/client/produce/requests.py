"""Encodes Produce requests as parts, so that batches are sent without a copy; reads responses.

The bytes around the batches are those of `ProduceRequest`; a test compares every version.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from millstream.client.errors import code_of
from millstream.client.metadata import Broker, LeaderHint
from millstream.client.produce.answers import Answer
from millstream.client.produce.batches import Batch
from millstream.model.ids import BrokerId, Offset, TopicId, TopicPartition
from millstream.rpc.pipeline import Bytes
from millstream.wire.messages.produce import PartitionProduceResponse, ProduceResponse
from millstream.wire.primitives import (
    write_compact_length,
    write_compact_string,
    write_int32,
    write_nullable_compact_string,
    write_nullable_string,
    write_string,
)

FLEXIBLE_FROM: Final = 9
IDS_FROM: Final = 13
"""From this version on, topics are identified by their ids alone."""

_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_NO_TAGS: Final = 0


class ProduceHead(NamedTuple):
    """The fields of a request before its batches."""

    acks: int
    timeout_ms: int
    transactional_id: str | None = None


def produce_parts(
    head: ProduceHead,
    batches: Iterable[Batch],
    topic_ids: Mapping[str, TopicId | None],
    version: int,
) -> list[Bytes]:
    """The body of the request."""
    by_topic: dict[str, list[Batch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.partition.topic, []).append(batch)
    is_flexible = version >= FLEXIBLE_FROM
    parts: list[Bytes] = []
    out = bytearray()
    (write_nullable_compact_string if is_flexible else write_nullable_string)(
        out, head.transactional_id
    )
    out += _ACKS_AND_TIMEOUT.pack(head.acks, head.timeout_ms)
    write_count = write_compact_length if is_flexible else write_int32
    write_count(out, len(by_topic))
    for topic, members in by_topic.items():
        topic_id = topic_ids.get(topic)
        if version >= IDS_FROM and topic_id is not None:
            out += topic_id.bytes
        else:
            (write_compact_string if is_flexible else write_string)(out, topic)
        write_count(out, len(members))
        for batch in members:
            write_int32(out, batch.partition.partition)
            write_count(out, len(batch.data))
            parts += (out, batch.data)
            out = bytearray()
            if is_flexible:
                out.append(_NO_TAGS)
        if is_flexible:
            out.append(_NO_TAGS)
    if is_flexible:
        out.append(_NO_TAGS)
    parts.append(out)
    return parts


class PartitionResponse(NamedTuple):
    """The response about one partition."""

    answer: Answer
    hint: LeaderHint | None


def read_answers(
    body: Bytes, version: int, names: Mapping[TopicId, str]
) -> tuple[dict[TopicPartition, PartitionResponse], int]:
    """By partition, and the throttle time in milliseconds."""
    response = ProduceResponse.decode(body, version)
    endpoints = tuple(
        Broker(BrokerId(one.node_id), one.host, one.port, one.rack)
        for one in response.node_endpoints
    )
    found: dict[TopicPartition, PartitionResponse] = {}
    for topic in response.responses:
        name = names.get(TopicId(topic.topic_id), "") if version >= IDS_FROM else topic.name
        for one in topic.partition_responses:
            found[TopicPartition(name, one.index)] = _partition_response(one, endpoints)
    return found, response.throttle_time_ms


def _partition_response(
    one: PartitionProduceResponse, endpoints: tuple[Broker, ...]
) -> PartitionResponse:
    bad = one.record_errors[0] if one.record_errors else None
    message = one.error_message
    if bad is not None and bad.batch_index_error_message:
        message = bad.batch_index_error_message
    answer = Answer(
        code_of(one.error_code),
        Offset(one.base_offset),
        message,
        bad.batch_index if bad is not None else None,
    )
    leader = one.current_leader
    hint = None
    if leader.leader_id >= 0:
        hint = LeaderHint(leader.leader_id, leader.leader_epoch, endpoints)
    return PartitionResponse(answer, hint)
