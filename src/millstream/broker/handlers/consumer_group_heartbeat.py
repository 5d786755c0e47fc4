"""ConsumerGroupHeartbeat (key 68), versions 0-1.

Behaviour: a member of a consumer group joins, stays and leaves with this request only (KIP-848); it
sends its subscription and the partitions it owns, and gets its target assignment. What an answer
says is committed to the log before. Without `consumer` in `group.coordinator.rebalance.protocols`
UNSUPPORTED_VERSION.
v1 the member generates its id (KIP-1082), regular expressions
Invariants: I-27, I-31.
"""

from millstream.broker.groups.calls import GroupCall, coordinator_of, is_consumer_protocol_on
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def handle(
    context: Context, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | None:
    """Pass the request to the group, which answers when its state is committed."""
    if not is_consumer_protocol_on(context):
        return failed(request, ErrorCode.UNSUPPORTED_VERSION, context.version)
    GroupCall(context, request, failed).submit(coordinator_of(context).consumer_group_heartbeat)
    return None


def failed(
    request: ConsumerGroupHeartbeatRequest, error: ErrorCode, version: int
) -> ConsumerGroupHeartbeatResponse:
    """The error of the whole request."""
    del request, version
    return ConsumerGroupHeartbeatResponse(error_code=error)
