"""ConsumerGroupHeartbeat (key 68), versions 0-1.

Behaviour: a member of a consumer group joins, stays and leaves by this request alone (KIP-848); it
tells what it subscribes to and has, and hears what it shall have and let go. What an answer tells
is in the log. Without `consumer` in `group.coordinator.rebalance.protocols` UNSUPPORTED_VERSION.
v1 the member makes its own id (KIP-1082), regular expressions
Invariants: I-27, I-31.
"""

from typing import TYPE_CHECKING, Final

from millstream.broker.groups.calls import call, is_consumer_protocol_on
from millstream.broker.requests.context import Context
from millstream.groups.effects import Caller
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from millstream.groups.shard import Shard
    from millstream.groups.shell.home import Moment

VERSIONS: Final = range(2)


def handle(
    context: Context, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | None:
    """Ask the group; it answers when what it tells cannot be lost."""
    if not is_consumer_protocol_on(context):
        return failed(request, ErrorCode.UNSUPPORTED_VERSION, context.version)
    call(context, request, _ask, failed)
    return None


def _ask(
    shard: "Shard", caller: Caller, request: ConsumerGroupHeartbeatRequest, moment: "Moment"
) -> None:
    shard.consumer_group_heartbeat(caller, request, now_ms=moment.now_ms, wall_ms=moment.wall_ms)


def failed(
    request: ConsumerGroupHeartbeatRequest, error: ErrorCode, version: int
) -> ConsumerGroupHeartbeatResponse:
    """The error of the whole request."""
    del request, version
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=error.text)
