"""OffsetForLeaderEpoch (key 23), versions 2-4.

Behaviour: where an epoch ended in the leader's log, which is where two logs, or a log and what a
consumer has read, part (KIP-101, KIP-279, KIP-320). The answer names the largest epoch not above
the asked one; for the newest epoch the end is the log's end; epoch and offset -1 when the epoch is
above all. A leader epoch that the client believes in is compared first (FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH). Only leaders answer. The replica id makes no difference, as in Kafka: what
lies above the high watermark is told to all.
v3 replica id · v4 flexible.
Invariants: I-10, I-15.
"""

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.model.errors import OperatingError
from millstream.model.ids import LeaderEpoch
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(
    context: Context, request: OffsetForLeaderEpochRequest
) -> StepGenerator[OffsetForLeaderEpochResponse]:
    """Look up every partition's epoch."""
    pace = YieldCounter()
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        result = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(result)
        for one in topic.partitions:
            result.partitions.append(_answer(context, topic.topic, one))
            if pace.is_due():
                yield None
    return response


def failed(
    request: OffsetForLeaderEpochRequest, error: ErrorCode, version: int
) -> OffsetForLeaderEpochResponse:
    """The same error for every partition."""
    del version
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(partition=one.partition, error_code=error)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(context: Context, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        leader = context.services.partitions.get((topic, asked.partition))
        leader.log.check_open()
        leader.check_leader_epoch(asked.current_leader_epoch)
    except OperatingError as error:
        return EpochEndOffset(partition=asked.partition, error_code=code_of(error))
    found = leader.end_of_epoch(LeaderEpoch(asked.leader_epoch))
    return EpochEndOffset(
        partition=asked.partition, leader_epoch=found.epoch, end_offset=found.end_offset
    )
