"""ConsumerGroupHeartbeat (key 68), versions 0-1.

Behaviour: a member of a consumer group joins, stays and leaves by this request alone (KIP-848); it
tells what it subscribes to and has, and hears what it shall have and let go. What an answer tells
is in the log. Without `consumer` in `group.coordinator.rebalance.protocols` UNSUPPORTED_VERSION.
v1 the member makes its own id (KIP-1082), regular expressions
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
    """Ask the group; it answers when what it tells cannot be lost."""
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
