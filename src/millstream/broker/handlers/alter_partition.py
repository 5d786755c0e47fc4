"""AlterPartition (key 56), versions 2-3. Between brokers.

Behaviour: a leader requests another ISR from the controller, based on the leader epoch and
partition epoch it knows; each partition has its own result, and the answer is its state after that.
An older base is INVALID_UPDATE_VERSION or FENCED_LEADER_EPOCH; a replica that is gone, shutting
down, or was restarted since it fetched is INELIGIBLE_REPLICA (KIP-903). STALE_BROKER_EPOCH for a
whole request of an earlier incarnation. NOT_CONTROLLER from a broker that is not the controller;
the request is not forwarded, since the leader sends it to the controller that its metadata names.
v3 the broker epochs of the replicas; in v2 they are unknown and not compared.
Invariants: I-09, I-16, I-17.
"""

from typing import Final

from millstream.broker.requests.between_brokers import check_sender
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.port import IsrChange
from millstream.controller.image import PartitionImage
from millstream.model.errors import OperatingError
from millstream.model.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    TopicId,
)
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

_FIRST_WITH_EPOCHS: Final = 3


async def handle(context: Context, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Let the controller decide."""
    membership = context.services.membership
    if membership is None:
        raise NotController
    check_sender(context, request.broker_id)
    changes = [
        IsrChange(
            TopicId(topic.topic_id),
            one.partition_index,
            LeaderEpoch(one.leader_epoch),
            one.partition_epoch,
            _isr(one, context.version),
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    outcomes = await membership.active().alter_partitions(
        changes,
        broker_id=BrokerId(request.broker_id),
        broker_epoch=BrokerEpoch(request.broker_epoch),
    )
    topics: dict[TopicId, list[ResponsePartitionData]] = {}
    for change, outcome in zip(changes, outcomes, strict=True):
        topics.setdefault(change.topic_id, []).append(
            _partition_response(change.partition, outcome)
        )
    return AlterPartitionResponse(
        topics=[ResponseTopicData(topic_id=one, partitions=all_) for one, all_ in topics.items()]
    )


def failed(
    request: AlterPartitionRequest, error: ErrorCode, version: int
) -> AlterPartitionResponse:
    """The error of the whole request."""
    del request, version
    return AlterPartitionResponse(error_code=error)


def _isr(one: RequestPartitionData, version: int) -> tuple[tuple[BrokerId, BrokerEpoch], ...]:
    if version < _FIRST_WITH_EPOCHS:
        return tuple((BrokerId(replica), NO_BROKER_EPOCH) for replica in one.new_isr)
    return tuple(
        (BrokerId(state.broker_id), BrokerEpoch(state.broker_epoch))
        for state in one.new_isr_with_epochs
    )


def _partition_response(
    index: int, outcome: PartitionImage | OperatingError
) -> ResponsePartitionData:
    if isinstance(outcome, OperatingError):
        return ResponsePartitionData(partition_index=index, error_code=code_of(outcome))
    return ResponsePartitionData(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        partition_epoch=outcome.partition_epoch,
    )
