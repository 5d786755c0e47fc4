"""AlterPartitionReassignments (key 45), versions 0-1.

Behaviour: each partition has its own result. New replicas, in order of preference, start a
reassignment, and replace one in progress; null cancels it (NO_REASSIGNMENT_IN_PROGRESS). Unknown or
repeated brokers are INVALID_REPLICA_ASSIGNMENT. The answer is sent when the reassignment is
recorded; it completes when the new replicas are in sync, see ListPartitionReassignments.
REQUEST_TIMED_OUT if recording takes longer than allowed; it continues then. The controller does it;
other brokers forward the request.
v1 whether the number of replicas may change (KIP-860; INVALID_REPLICATION_FACTOR if not).

Where it differs from Kafka: a `timeout_ms` below a second counts as one second.
"""

from collections.abc import Mapping

from millstream.broker.cluster.membership import administration_of
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.broker.requests.topic_changes import within
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start, replace or cancel reassignments."""
    wanted = {
        TopicPartition(topic.name, one.partition_index): None
        if one.replicas is None
        else tuple(map(BrokerId, one.replicas))
        for topic in request.topics
        for one in topic.partitions
    }
    may_change_factor = request.allow_replication_factor_change
    change = administration_of(context.services).reassign_partitions(
        wanted, may_change_factor=may_change_factor
    )
    try:
        outcomes = await within(request.timeout_ms, change)
    except TimeoutError:
        return failed(request, ErrorCode.REQUEST_TIMED_OUT, context.version)
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        allow_replication_factor_change=may_change_factor,
        responses=_responses(outcomes),
    )


def failed(
    request: AlterPartitionReassignmentsRequest, error: ErrorCode, version: int
) -> AlterPartitionReassignmentsResponse:
    """The error of the whole request."""
    del request, version
    return AlterPartitionReassignmentsResponse(error_code=error, error_message=error.text)


def _responses(
    outcomes: Mapping[TopicPartition, OperatingError | None],
) -> list[ReassignableTopicResponse]:
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    for partition, outcome in outcomes.items():
        result = ReassignablePartitionResponse(
            partition_index=partition.partition, error_message=None
        )
        if outcome is not None:
            result.error_code, result.error_message = code_of(outcome), text_of(outcome)
        topics.setdefault(partition.topic, []).append(result)
    return [ReassignableTopicResponse(name=name, partitions=all_) for name, all_ in topics.items()]
