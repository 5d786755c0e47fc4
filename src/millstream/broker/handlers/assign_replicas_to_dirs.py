"""AssignReplicasToDirs (key 73), version 0. Between brokers.

Behaviour: a broker says which of its replicas have no log any more: those in the directory LOST.
They leave the in-sync sets, others lead, and until the broker registers anew they are neither
elected nor brought in (KIP-858). Each partition by itself: UNKNOWN_TOPIC_ID,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER where the broker has no replica.
STALE_BROKER_EPOCH for a whole request of an earlier incarnation. NOT_CONTROLLER from a broker that
is not; it is not passed on, since brokers ask the controller that they know of.

Where it differs from Kafka: in which directory a replica is that is not lost is its broker's own
matter and not kept. Such an assignment, as none of our brokers sends it, changes nothing and is
answered without an error.
Invariants: I-14, I-16, I-17.
"""

from collections.abc import Mapping

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.port import LostReplica
from millstream.controller.identity import LOST_DIRECTORY
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, TopicId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    RequestDirectoryData,
    ResponseDirectoryData,
    ResponsePartitionData,
    ResponseTopicData,
)

Outcomes = Mapping[LostReplica, OperatingError | None]


async def handle(
    context: Context, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    """Have the controller decide."""
    membership = context.services.membership
    if membership is None:
        raise NotController
    lost = [
        one
        for directory in request.directories
        if directory.id == LOST_DIRECTORY
        for one in _in(directory)
    ]
    errors = await membership.active().lose_replicas(
        lost,
        broker_id=BrokerId(request.broker_id),
        broker_epoch=BrokerEpoch(request.broker_epoch),
    )
    outcomes = dict(zip(lost, errors, strict=True))
    return AssignReplicasToDirsResponse(
        directories=[
            _told(one, outcomes if one.id == LOST_DIRECTORY else {}) for one in request.directories
        ]
    )


def failed(
    request: AssignReplicasToDirsRequest, error: ErrorCode, version: int
) -> AssignReplicasToDirsResponse:
    """The error of the whole request."""
    del request, version
    return AssignReplicasToDirsResponse(error_code=error)


def _in(directory: RequestDirectoryData) -> list[LostReplica]:
    return [
        LostReplica(TopicId(topic.topic_id), one.partition_index)
        for topic in directory.topics
        for one in topic.partitions
    ]


def _told(directory: RequestDirectoryData, outcomes: Outcomes) -> ResponseDirectoryData:
    return ResponseDirectoryData(
        id=directory.id,
        topics=[
            ResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[
                    _partition(LostReplica(TopicId(topic.topic_id), one.partition_index), outcomes)
                    for one in topic.partitions
                ],
            )
            for topic in directory.topics
        ],
    )


def _partition(one: LostReplica, outcomes: Outcomes) -> ResponsePartitionData:
    error = outcomes.get(one)
    code = ErrorCode.NONE if error is None else code_of(error)
    return ResponsePartitionData(partition_index=one.partition, error_code=code)
