"""DeleteRecords (key 21), versions 0-2.

Behaviour: the log's start moves up to the asked offset, -1 meaning the high watermark, durably
before the answer; the answer has the start of then. An offset at or below it changes nothing.
Above the high watermark, or below -1: OFFSET_OUT_OF_RANGE. Topics that are compacted and not
deleted from: POLICY_VIOLATION. Internal topics: INVALID_TOPIC_EXCEPTION.
v2 flexible.

Where it differs from Kafka: there are no followers yet whose log start would be waited for, so
`timeout_ms` has nothing to limit; Kafka's answer comes before its new start is on disk.
Invariants: I-05, I-11.
"""

from typing import Final

from millstream.broker.context import Context
from millstream.broker.error_codes import code_of
from millstream.controller.topics import INTERNAL_TOPICS
from millstream.model.errors import OperatingError
from millstream.model.ids import Offset, TopicPartition
from millstream.runtime.turns import Pace, Steps
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

VERSIONS: Final = range(3)

_HIGH_WATERMARK: Final = -1
_NO_LOW_WATERMARK: Final = -1
_UNANSWERED: Final = DeleteRecordsPartitionResult()


def handle(context: Context, request: DeleteRecordsRequest) -> Steps[DeleteRecordsResponse]:
    """Move the starts. Of a partition that is named twice the last wish counts."""
    wanted: dict[TopicPartition, int] = {}
    results: dict[str, dict[int, DeleteRecordsPartitionResult]] = {}
    pace = Pace()
    for topic in request.topics:
        results.setdefault(topic.name, {})
        for one in topic.partitions:
            wanted[TopicPartition(topic.name, one.partition_index)] = one.offset
            results[topic.name][one.partition_index] = _UNANSWERED  # its place in the answer
            if pace.is_due():
                yield None
    allowed: dict[TopicPartition, Offset] = {}
    for partition, offset in wanted.items():
        start = _checked(context, partition, offset)
        if isinstance(start, ErrorCode):
            results[partition.topic][partition.partition] = _refused(partition, start)
        else:
            allowed[partition] = start
        if pace.is_due():
            yield None
    outcomes = yield from context.services.logs.deleting_records(allowed)
    for partition, outcome in outcomes.items():
        results[partition.topic][partition.partition] = _result(partition, outcome)
        if pace.is_due():
            yield None
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(name=name, partitions=list(found.values()))
            for name, found in results.items()
        ]
    )


def failed(request: DeleteRecordsRequest, error: ErrorCode, version: int) -> DeleteRecordsResponse:
    """The same error for every partition."""
    del version
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _refused(TopicPartition(topic.name, one.partition_index), error)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _checked(context: Context, partition: TopicPartition, offset: int) -> Offset | ErrorCode:
    """Where the log shall start, or what forbids it."""
    try:
        leader = context.services.partitions.get(partition)
    except OperatingError as error:
        return code_of(error)
    if partition.topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    config = leader.log.config
    if config.cleanup_compact and not config.cleanup_delete:
        return ErrorCode.POLICY_VIOLATION
    if offset == _HIGH_WATERMARK:
        return leader.high_watermark
    return Offset(offset) if offset >= 0 else ErrorCode.OFFSET_OUT_OF_RANGE


def _result(
    partition: TopicPartition, outcome: Offset | OperatingError
) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, OperatingError):
        return _refused(partition, code_of(outcome))
    return DeleteRecordsPartitionResult(partition_index=partition.partition, low_watermark=outcome)


def _refused(partition: TopicPartition, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=partition.partition, low_watermark=_NO_LOW_WATERMARK, error_code=error
    )
