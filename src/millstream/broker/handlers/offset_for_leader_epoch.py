"""OffsetForLeaderEpoch (key 23), versions 2-4.

Behaviour: the end offset of an epoch in the leader's log, which is where two logs, or a log and the
records a consumer has read, diverge (KIP-101, KIP-279, KIP-320). The answer has the largest epoch
not above the requested one; for the newest epoch the end is the log end; epoch and offset are -1 if
the epoch is above all. The client's leader epoch is checked first (FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH). Only leaders answer. Offsets above the high
watermark are returned to consumers too, as in Kafka; a replica id from 0 on is a follower's, and
CLUSTER_AUTHORIZATION_FAILED unless the connection has proven to be of that broker.
v3 replica id · v4 flexible.
Invariants: I-10, I-15.
"""

from millstream.broker.requests.between_brokers import check_replica
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
    check_replica(context, request.replica_id)
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


def _answer(context: Context, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        leader = context.services.partitions.get((topic, requested.partition))
        leader.log.check_open()
        leader.check_leader_epoch(requested.current_leader_epoch)
    except OperatingError as error:
        return EpochEndOffset(partition=requested.partition, error_code=code_of(error))
    found = leader.end_of_epoch(LeaderEpoch(requested.leader_epoch))
    return EpochEndOffset(
        partition=requested.partition, leader_epoch=found.epoch, end_offset=found.end_offset
    )
