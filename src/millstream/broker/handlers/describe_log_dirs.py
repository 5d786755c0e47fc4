"""DescribeLogDirs (key 35), versions 1-5.

Behaviour: every log directory of this broker with the requested partitions in it (no list: all; an
empty list: none), the size of their segments in bytes, and their lag: that of a log behind its high
watermark, of a copy that is being moved to the directory (`is_future_key`) behind the log it will
replace. Size and free space of the directory's volume. A directory that failed has
KAFKA_STORAGE_ERROR and no partitions.
v2 flexible · v3 top-level error · v4 size and free space (KIP-827) · v5 cordoned (KIP-1066).

Where it differs from Kafka: directories cannot be cordoned, so none is.
"""

import os
from collections.abc import Container

from millstream.broker.requests.context import Context
from millstream.model.ids import TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.storage.directories.log_directory import LogDirectory
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(
    context: Context, request: DescribeLogDirsRequest
) -> StepGenerator[DescribeLogDirsResponse]:
    """Describe every directory."""
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, index)
            for topic in request.topics
            for index in topic.partitions
        }
    response = DescribeLogDirsResponse()
    for one in context.services.logs.directories:
        response.results.append((yield from _describe(context, one, wanted)))
    return response


def failed(
    request: DescribeLogDirsRequest, error: ErrorCode, version: int
) -> DescribeLogDirsResponse:
    """No directory; versions below 3 have no field for the error."""
    del request, version
    return DescribeLogDirsResponse(error_code=error)


def _describe(
    context: Context, directory: LogDirectory, wanted: Container[TopicPartition] | None
) -> StepGenerator[DescribeLogDirsResult]:
    path = os.path.abspath(directory.path)
    try:
        if directory.failure is not None:
            return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)
        total_bytes = directory.disk.total_bytes(directory.path)
        usable_bytes = directory.disk.free_bytes(directory.path)
    except OSError:
        # Only this query failed, not a read or write: the directory stays online.
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)
    return DescribeLogDirsResult(
        log_dir=path,
        topics=(yield from _topics(context, directory, wanted)),
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )


def _topics(
    context: Context, directory: LogDirectory, wanted: Container[TopicPartition] | None
) -> StepGenerator[list[DescribeLogDirsTopic]]:
    logs = context.services.logs
    found: dict[str, list[DescribeLogDirsPartition]] = {}
    pace = YieldCounter()
    for log in logs:
        if pace.is_due():
            yield None
        if log.owner is directory and (wanted is None or log.partition in wanted):
            found.setdefault(log.partition.topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=log.partition.partition,
                    partition_size=log.size_bytes,
                    offset_lag=max(0, log.high_watermark - log.log_end),
                )
            )
    for future in logs.moves.in_progress():
        is_in_directory = future.directory == directory.path
        if is_in_directory and (wanted is None or future.partition in wanted):
            found.setdefault(future.partition.topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=future.partition.partition,
                    partition_size=future.size_bytes,
                    offset_lag=future.offset_lag,
                    is_future_key=True,
                )
            )
    return [
        DescribeLogDirsTopic(
            name=name, partitions=sorted(parts, key=lambda one: one.partition_index)
        )
        for name, parts in sorted(found.items())
    ]
