"""AssignReplicasToDirs (key 73), version 0. Between brokers.

Behaviour: a broker reports replicas whose log has failed: those in the directory LOST. They leave
the ISR, others lead, and until the broker registers again they are neither elected nor added to the
ISR (KIP-858). Those in the directory FULL, which is ours, cannot grow: they leave the ISR where
another member has room, and are the last to be elected (ADR 0027). Those in the directory USABLE,
ours too, are neither lost nor full any more. Each partition has its own result: UNKNOWN_TOPIC_ID,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER if the broker has no replica. STALE_BROKER_EPOCH
for a whole request of an earlier incarnation. NOT_CONTROLLER from a broker that is not the
controller; the request is not forwarded, since brokers send it to the controller they know.

Where it differs from Kafka: the directory of a replica is not stored. An assignment to any other
one, which none of our brokers sends, changes nothing and is answered without an error.
Invariants: I-14, I-16, I-17.
"""

from collections.abc import Mapping
from uuid import UUID

from millstream.broker.requests.between_brokers import check_sender
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.port import ReplicaName
from millstream.controller.identity import FULL_DIRECTORY, LOST_DIRECTORY, USABLE_DIRECTORY
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

Outcomes = Mapping[ReplicaName, OperatingError | None]


async def handle(
    context: Context, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    """Let the controller decide."""
    membership = context.services.membership
    if membership is None:
        raise NotController
    check_sender(context, request.broker_id)
    controller = membership.active()
    sender, epoch = BrokerId(request.broker_id), BrokerEpoch(request.broker_epoch)
    lost = _replicas_in(request, LOST_DIRECTORY)
    errors = await controller.lose_replicas(lost, broker_id=sender, broker_epoch=epoch)
    outcomes: dict[UUID, Outcomes] = {LOST_DIRECTORY: dict(zip(lost, errors, strict=True))}
    for directory in (FULL_DIRECTORY, USABLE_DIRECTORY):
        replicas = _replicas_in(request, directory)
        if replicas:
            is_full = directory == FULL_DIRECTORY
            errors = await controller.note_room(
                replicas, is_full=is_full, broker_id=sender, broker_epoch=epoch
            )
            outcomes[directory] = dict(zip(replicas, errors, strict=True))
    return AssignReplicasToDirsResponse(
        directories=[
            _directory_response(one, outcomes.get(one.id, {})) for one in request.directories
        ]
    )


def failed(
    request: AssignReplicasToDirsRequest, error: ErrorCode, version: int
) -> AssignReplicasToDirsResponse:
    """The error of the whole request."""
    del request, version
    return AssignReplicasToDirsResponse(error_code=error)


def _replicas_in(request: AssignReplicasToDirsRequest, directory_id: UUID) -> list[ReplicaName]:
    return [
        ReplicaName(TopicId(topic.topic_id), one.partition_index)
        for directory in request.directories
        if directory.id == directory_id
        for topic in directory.topics
        for one in topic.partitions
    ]


def _directory_response(
    directory: RequestDirectoryData, outcomes: Outcomes
) -> ResponseDirectoryData:
    return ResponseDirectoryData(
        id=directory.id,
        topics=[
            ResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[
                    _partition_response(
                        ReplicaName(TopicId(topic.topic_id), one.partition_index), outcomes
                    )
                    for one in topic.partitions
                ],
            )
            for topic in directory.topics
        ],
    )


def _partition_response(one: ReplicaName, outcomes: Outcomes) -> ResponsePartitionData:
    error = outcomes.get(one)
    code = ErrorCode.NONE if error is None else code_of(error)
    return ResponsePartitionData(partition_index=one.partition, error_code=code)
