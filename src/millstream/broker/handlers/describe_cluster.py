"""DescribeCluster (key 60), versions 0-2.

Behaviour: cluster id, controller, and the brokers that have an address on the client's listener.
Only broker endpoints are supported: for controllers the answer is MISMATCHED_ENDPOINT_TYPE, for
anything else UNSUPPORTED_ENDPOINT_TYPE. Authorized operations are included on request, all of them
while there is no authorizer.
v1 endpoint type (KIP-919) · v2 fenced brokers (KIP-1073).

Where it differs from Kafka: the controller id is the controller's and not any broker's, since it is
a broker.
"""

from typing import Final

from millstream.broker.requests.advertised_brokers import advertised_brokers
from millstream.broker.requests.context import Context
from millstream.controller.views import (
    CLUSTER_OPERATIONS_ALL,
    OPERATIONS_NOT_REQUESTED,
    controller_on,
)
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def handle(context: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """From the current image."""
    if request.endpoint_type == _CONTROLLERS:
        return failed(request, ErrorCode.MISMATCHED_ENDPOINT_TYPE, context.version)
    if request.endpoint_type != _BROKERS:
        return failed(request, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, context.version)
    image = context.services.image
    nodes = advertised_brokers(context, with_fenced=request.include_fenced_brokers)
    with_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=controller_on(image, nodes),
        brokers=[
            DescribeClusterBroker(
                broker_id=node.broker_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=node.is_fenced,
            )
            for node in nodes
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS_ALL
        if with_operations
        else OPERATIONS_NOT_REQUESTED,
    )


def failed(
    request: DescribeClusterRequest, error: ErrorCode, version: int
) -> DescribeClusterResponse:
    """The error of the whole request."""
    del request, version
    return DescribeClusterResponse(error_code=error, error_message=error.text)
