"""ListPartitionReassignments (key 46), version 0.

Behaviour: the reassignments in progress, of the requested partitions or of all (null), with all
current replicas, those being added and those being removed. A partition that does not exist, or is
not being reassigned, is left out. The controller answers; other brokers forward the request.
"""

from millstream.broker.cluster.membership import administration_of
from millstream.broker.requests.context import Context
from millstream.model.ids import TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    context: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """From the controller's current image."""
    requested = None
    if request.topics is not None:
        requested = [
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        ]
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for one in administration_of(context.services).reassignments(requested):
        result = OngoingPartitionReassignment(
            partition_index=one.partition.partition,
            replicas=list(one.replicas),
            adding_replicas=list(one.adding),
            removing_replicas=list(one.removing),
        )
        topics.setdefault(one.partition.topic, []).append(result)
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[
            OngoingTopicReassignment(name=name, partitions=all_) for name, all_ in topics.items()
        ],
    )


def failed(
    request: ListPartitionReassignmentsRequest, error: ErrorCode, version: int
) -> ListPartitionReassignmentsResponse:
    """The error of the whole request."""
    del request, version
    return ListPartitionReassignmentsResponse(error_code=error, error_message=error.text)
