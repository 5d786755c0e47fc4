"""ElectLeaders (key 43), versions 0-2.

Behaviour: each partition by itself. Preferred (0): its first replica leads again where that is
alive and in sync (PREFERRED_LEADER_NOT_AVAILABLE). Unclean (1): a partition without a leader gets
any replica that is alive (ELIGIBLE_LEADERS_NOT_AVAILABLE), whatever the topic's settings say. One
that has such a leader is ELECTION_NOT_NEEDED. Null asks for all partitions, and then only those
that got another leader are told. Any other kind is INVALID_REQUEST. REQUEST_TIMED_OUT when it takes
longer than allowed, and it goes on all the same. The controller does it; other brokers pass it on.
v1 the kind, an error of the whole request (KIP-460) · v2 flexible.

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
    """Have leaders elected, and say where none was."""
    if request.election_type not in _KINDS:
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    change = administration_of(context.services).elect_leaders(
        ElectionKind(request.election_type), _asked(request)
    )
    try:
        outcomes = await within(request.timeout_ms, change)
    except TimeoutError:
        return failed(request, ErrorCode.REQUEST_TIMED_OUT, context.version)
    return ElectLeadersResponse(replica_election_results=_results(outcomes))


def failed(request: ElectLeadersRequest, error: ErrorCode, version: int) -> ElectLeadersResponse:
    """The error for every partition that was named, and for the request where it has one."""
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


def _asked(request: ElectLeadersRequest) -> list[TopicPartition] | None:
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
        told = PartitionResult(partition_id=partition.partition, error_message=None)
        if outcome is not None:
            told.error_code, told.error_message = code_of(outcome), text_of(outcome)
        topics.setdefault(partition.topic, []).append(told)
    return [
        ReplicaElectionResult(topic=name, partition_result=all_) for name, all_ in topics.items()
    ]
