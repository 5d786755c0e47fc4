"""DeleteRecords (key 21), versions 0-2.

Behaviour: the log start moves up to the requested offset, -1 meaning the high watermark, durably
before the answer. Followers get the new start with their next fetch; the answer is sent when those
that are alive have it, with the resulting low watermark, or after `timeout_ms` with
REQUEST_TIMED_OUT and the previous low watermark: the records are deleted on the leader in any case.
An offset at or below the start changes nothing. Above the high watermark, or below -1:
OFFSET_OUT_OF_RANGE. Topics with cleanup.policy compact only: POLICY_VIOLATION. Internal topics:
INVALID_TOPIC_EXCEPTION. A leadership that is lost meanwhile: NOT_LEADER_OR_FOLLOWER.
v2 flexible.

Where it differs from Kafka: Kafka answers before the new start is on disk; here a follower's
waiting fetch is answered at once with the new start, and a follower that dies is not waited for.
Invariants: I-05, I-11.
"""

from typing import Final

from millstream.broker.fetch.delayed import DelayedDeleteRecords
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.controller.topics import INTERNAL_TOPICS
from millstream.model.errors import OperatingError
from millstream.model.ids import Offset, TopicPartition
from millstream.replication.partition import Partition
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_HIGH_WATERMARK: Final = -1
_NO_LOW_WATERMARK: Final = -1
_UNANSWERED: Final = DeleteRecordsPartitionResult()

Results = dict[str, dict[int, DeleteRecordsPartitionResult]]


def handle(
    context: Context, request: DeleteRecordsRequest
) -> StepGenerator[DeleteRecordsResponse | None]:
    """Move the log starts. If a partition is named twice the last offset is used."""
    wanted: dict[TopicPartition, int] = {}
    results: Results = {}
    pace = YieldCounter()
    for topic in request.topics:
        results.setdefault(topic.name, {})
        for one in topic.partitions:
            wanted[TopicPartition(topic.name, one.partition_index)] = one.offset
            results[topic.name][one.partition_index] = (
                _UNANSWERED  # keeps its position in the answer
            )
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
    outcomes = yield from context.services.logs.delete_records_steps(allowed)
    late: dict[Partition, Offset] = {}
    for partition, outcome in outcomes.items():
        result = _result(context, partition, outcome)
        results[partition.topic][partition.partition] = result
        if not result.error_code and result.low_watermark < allowed[partition]:
            late[context.services.partitions.get(partition)] = allowed[partition]
            result.error_code = ErrorCode.REQUEST_TIMED_OUT  # unless the followers do it in time
        if pace.is_due():
            yield None
    if not late:
        return _response(results)
    _wait(context, late, results, timeout_ms=request.timeout_ms)
    return None


def _wait(
    context: Context, late: dict[Partition, Offset], results: Results, *, timeout_ms: int
) -> None:
    """Answer when the followers have done it too."""

    def reached(leader: Partition) -> None:
        partition = leader.partition
        done = _refused(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader.is_usable:
            done = DeleteRecordsPartitionResult(
                partition_index=partition.partition, low_watermark=leader.low_watermark
            )
        results[partition.topic][partition.partition] = done

    delayed = DelayedDeleteRecords(
        context, late, on_reached=reached, finish=lambda: context.answer(_response(results))
    )
    delayed.start(timeout_ms=timeout_ms)


def _response(results: Results) -> DeleteRecordsResponse:
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
    """The new log start, or the error that forbids it."""
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
    context: Context, partition: TopicPartition, outcome: Offset | OperatingError
) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, OperatingError):
        return _refused(partition, code_of(outcome))
    try:
        leader = context.services.partitions.get(partition)
    except OperatingError as error:  # it was led here when the request came
        return _refused(partition, code_of(error))
    leader.start_moved()
    return DeleteRecordsPartitionResult(
        partition_index=partition.partition, low_watermark=leader.low_watermark
    )


def _refused(partition: TopicPartition, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=partition.partition, low_watermark=_NO_LOW_WATERMARK, error_code=error
    )
