"""DescribeQuorum (key 55), versions 0-2.

Behaviour: describes `__cluster_metadata`, partition 0; any other partition is
UNKNOWN_TOPIC_OR_PARTITION. There is no metadata log and no quorum among brokers: the coordination
service stores the metadata and elects one broker as the controller. So the leader is the
controller, the epoch is the controller's, the high watermark is the version of its metadata, and
the voters are the brokers that are alive, each of which can become the next controller. Their log
end offsets are unknown to the controller and -1. There are no observers. The controller answers;
other brokers forward the request.
v1 times of the last fetch, of which there are none · v2 directory ids (none), nodes with addresses.
"""

from typing import Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.services import Services
from millstream.controller.topics import CLUSTER_METADATA_TOPIC
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)

_FIRST_WITH_NODES: Final = 2


def handle(context: Context, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """From the controller's current image."""
    services = context.services
    topics = [
        ResponseTopicData(
            topic_name=topic.topic_name,
            partitions=[
                _decided(services)
                if topic.topic_name == CLUSTER_METADATA_TOPIC and one.partition_index == 0
                else _unknown(one.partition_index)
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    if context.version < _FIRST_WITH_NODES:
        return DescribeQuorumResponse(topics=topics)
    nodes = [
        Node(
            node_id=broker.broker_id,
            listeners=[
                Listener(name=one.listener, host=one.host or context.peer.local_host, port=one.port)
                for one in broker.endpoints
            ],
        )
        for broker in services.image.alive_brokers()
    ]
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes)


def failed(
    request: DescribeQuorumRequest, error: ErrorCode, version: int
) -> DescribeQuorumResponse:
    """The error of the whole request."""
    del request, version
    return DescribeQuorumResponse(error_code=error, error_message=error.text)


def _decided(services: Services) -> ResponsePartitionData:
    membership = services.membership
    controller_epoch = 0 if membership is None else membership.active().controller_epoch
    image = services.image
    version = max(0, image.version)
    return ResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=image.controller_id,
        leader_epoch=controller_epoch,
        high_watermark=version,
        current_voters=[
            ReplicaState(
                replica_id=one.broker_id,
                log_end_offset=version if one.broker_id == image.controller_id else -1,
            )
            for one in image.alive_brokers()
        ],
    )


def _unknown(index: int) -> ResponsePartitionData:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ResponsePartitionData(partition_index=index, error_code=error, error_message=error.text)
