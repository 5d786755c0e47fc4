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
from millstream.model.errors import OffsetOutOfRange, OperatingError
from millstream.model.ids import Offset
from millstream.replication.partition import Partition
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


def handle(context: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move the starts. Of a partition that is named twice the last wish counts."""
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = wanted.setdefault(topic.name, {})
        offsets.update({one.partition_index: one.offset for one in topic.partitions})
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=name,
                partitions=[_delete(context, name, *one) for one in offsets.items()],
            )
            for name, offsets in wanted.items()
        ]
    )


def failed(request: DeleteRecordsRequest, error: ErrorCode, version: int) -> DeleteRecordsResponse:
    """The same error for every partition."""
    del version
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_refused(one.partition_index, error) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _delete(context: Context, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    try:
        leader = context.services.partitions.get((topic, index))
        if topic in INTERNAL_TOPICS:
            return _refused(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
        config = leader.log.config
        if config.cleanup_compact and not config.cleanup_delete:
            return _refused(index, ErrorCode.POLICY_VIOLATION)
        before = _checked(leader, offset)
        low = context.services.logs.delete_records(leader.partition, before)
    except OperatingError as error:
        return _refused(index, code_of(error))
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low)


def _checked(leader: Partition, offset: int) -> Offset:
    if offset == _HIGH_WATERMARK:
        return leader.high_watermark
    if offset < 0:
        end = leader.high_watermark
        raise OffsetOutOfRange(asked=Offset(offset), start=leader.log_start, end=end)
    return Offset(offset)


def _refused(index: int, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=_NO_LOW_WATERMARK, error_code=error
    )
