"""AlterReplicaLogDirs (key 34), versions 1-2.

Behaviour: moves partitions between the log directories of this broker while they are written and
read; the answer says that the move was accepted, DescribeLogDirs shows its progress. A move to
another directory replaces one in progress; to the directory of the partition it does nothing. For a
partition that does not exist yet the directory is kept until it is created, and the answer is
UNKNOWN_TOPIC_OR_PARTITION (REPLICA_NOT_AVAILABLE if the topic has it and this broker does not).
A path that is no directory of this broker: LOG_DIR_NOT_FOUND; a directory that failed, or any
failed one when a move would start: KAFKA_STORAGE_ERROR; a topic's name too long for that of a
copy: INVALID_TOPIC_EXCEPTION.
v2 flexible.

Where it differs from Kafka: a full target ends the move and leaves the directory in use; moves run
one after the other; a move interrupted by a stop starts again from the beginning.
Invariants: I-02, I-11.
"""

import os
from typing import Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.model.errors import OperatingError, UnknownPartition
from millstream.model.ids import TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter, chunked
from millstream.storage.names import is_legal_partition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

MOVES_PER_TURN: Final = 20
"""Moves started per step, between which others are served: each creates a directory."""

NAMES_PER_TURN: Final = 10_000


def handle(
    context: Context, request: AlterReplicaLogDirsRequest
) -> StepGenerator[AlterReplicaLogDirsResponse]:
    """Start the moves. If a partition is named twice the last directory is used."""
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            paths = wanted.setdefault(topic.name, {})
            for part in chunked(topic.partitions, NAMES_PER_TURN):
                paths.update(dict.fromkeys(part, directory.path))
                if len(part) == NAMES_PER_TURN:
                    yield None
    pace = YieldCounter(MOVES_PER_TURN)
    response = AlterReplicaLogDirsResponse()
    for name, paths in wanted.items():
        result = AlterReplicaLogDirTopicResult(topic_name=name)
        response.results.append(result)
        for index, path in paths.items():
            result.partitions.append(
                AlterReplicaLogDirPartitionResult(
                    partition_index=index,
                    error_code=_move(context, TopicPartition(name, index), path),
                )
            )
            if pace.is_due():
                yield None
    return response


def failed(
    request: AlterReplicaLogDirsRequest, error: ErrorCode, version: int
) -> AlterReplicaLogDirsResponse:
    """The same error for every partition."""
    del version
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def _move(context: Context, partition: TopicPartition, path: str) -> ErrorCode:
    logs = context.services.logs
    # Clients name directories as DescribeLogDirs does.
    own = {os.path.abspath(one.path): one.path for one in logs.directories}
    path = own.get(path, path)
    try:
        logs.moves.move(partition, path)
    except UnknownPartition as error:
        return (
            _keep_preference(context, partition, path)
            if is_legal_partition(partition)
            else code_of(error)
        )
    except OperatingError as error:
        return code_of(error)
    return ErrorCode.NONE


def _keep_preference(context: Context, partition: TopicPartition, path: str) -> ErrorCode:
    topic = context.services.image.topics.get(partition.topic)
    context.services.logs.moves.prefer(partition, path)
    if topic is None or partition.partition >= len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.REPLICA_NOT_AVAILABLE
