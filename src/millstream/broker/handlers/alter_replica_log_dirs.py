"""AlterReplicaLogDirs (key 34), versions 1-2.

Behaviour: moves partitions between the log directories of this broker while they are written and
read; the answer says that the move was accepted, DescribeLogDirs shows how far it is. A move to
somewhere else is given up for the new one; where the partition already is there is nothing to do.
For a partition that does not exist yet the wish is kept until it is created, and the answer is
UNKNOWN_TOPIC_OR_PARTITION (REPLICA_NOT_AVAILABLE where the topic has it and this broker does not).
A path that is no directory of this broker: LOG_DIR_NOT_FOUND; a directory that failed, or any
failed one when a move would begin: KAFKA_STORAGE_ERROR; a topic's name too long for that of a
copy: INVALID_TOPIC_EXCEPTION.
v2 flexible.

Where it differs from Kafka: a full target ends the move and leaves the directory in use; moves run
one after the other; a move interrupted by a stop begins anew.
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
"""Moves begun between two turns of others: each makes a directory."""

NAMES_PER_TURN: Final = 10_000


def handle(
    context: Context, request: AlterReplicaLogDirsRequest
) -> StepGenerator[AlterReplicaLogDirsResponse]:
    """Begin the moves. Of a partition that is named twice the last wish counts."""
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
        return _wish(context, partition, path) if is_legal_partition(partition) else code_of(error)
    except OperatingError as error:
        return code_of(error)
    return ErrorCode.NONE


def _wish(context: Context, partition: TopicPartition, path: str) -> ErrorCode:
    topic = context.services.image.topics.get(partition.topic)
    context.services.logs.moves.prefer(partition, path)
    if topic is None or partition.partition >= len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.REPLICA_NOT_AVAILABLE
