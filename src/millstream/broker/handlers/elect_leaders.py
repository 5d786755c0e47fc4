"""ElectLeaders (key 43), versions 0-2.

Behaviour: each partition has its own result. Preferred (0): its first replica becomes the leader if
it is alive and in sync (PREFERRED_LEADER_NOT_AVAILABLE). Unclean (1): any replica that is alive
becomes the leader of a partition without one (ELIGIBLE_LEADERS_NOT_AVAILABLE), regardless of the
topic's settings. A partition that has such a leader is ELECTION_NOT_NEEDED. Null is for all
partitions; only those with a new leader are in the answer then. Any other type is INVALID_REQUEST.
REQUEST_TIMED_OUT if it takes longer than allowed; it continues then. The controller does it; other
brokers forward the request.
v1 the election type, an error of the whole request (KIP-460) · v2 flexible.

Where it differs from Kafka: a `timeout_ms` below a second counts as one second.
"""

from collections.abc import Mapping
from typing import Final

from millstream.broker.cluster.membership import administration_of
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.broker.requests.topic_changes import within
from millstream.controller.cluster.port import ElectionKind
from millstream.model.errors import OperatingError
from millstream.model.ids import TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_FIRST_WITH_ERROR: Final = 1
_KINDS: Final = frozenset(ElectionKind)


async def handle(context: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders; the errors of partitions without an election are in the answer."""
    if request.election_type not in _KINDS:
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    change = administration_of(context.services).elect_leaders(
        ElectionKind(request.election_type), _requested_partitions(request)
    )
    try:
        outcomes = await within(request.timeout_ms, change)
    except TimeoutError:
        return failed(request, ErrorCode.REQUEST_TIMED_OUT, context.version)
    return ElectLeadersResponse(replica_election_results=_results(outcomes))


def failed(request: ElectLeadersRequest, error: ErrorCode, version: int) -> ElectLeadersResponse:
    """The error for every named partition, and for the request if its version has one."""
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=error, error_message=error.text)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    whole = error if version >= _FIRST_WITH_ERROR else ErrorCode.NONE
    return ElectLeadersResponse(error_code=whole, replica_election_results=results)


def _requested_partitions(request: ElectLeadersRequest) -> list[TopicPartition] | None:
    if request.topic_partitions is None:
        return None
    return [
        TopicPartition(topic.topic, index)
        for topic in request.topic_partitions
        for index in topic.partitions
    ]


def _results(
    outcomes: Mapping[TopicPartition, OperatingError | None],
) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionResult]] = {}
    for partition, outcome in outcomes.items():
        result = PartitionResult(partition_id=partition.partition, error_message=None)
        if outcome is not None:
            result.error_code, result.error_message = code_of(outcome), text_of(outcome)
        topics.setdefault(partition.topic, []).append(result)
    return [
        ReplicaElectionResult(topic=name, partition_result=all_) for name, all_ in topics.items()
    ]
