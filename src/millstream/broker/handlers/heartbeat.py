"""Heartbeat (key 12), versions 0-4.

Behaviour: keeps a member's session alive, and tells it of a rebalance (REBALANCE_IN_PROGRESS).
While the group is being loaded the answer has no error, as in Kafka: sessions start again with the
load, and an error would make the member rejoin. An empty group id is INVALID_GROUP_ID.
v3 static members · v4 flexible
Invariants: I-27.
"""

from millstream.broker.groups.calls import GroupCall, coordinator_of
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(context: Context, request: HeartbeatRequest) -> HeartbeatResponse | None:
    """Pass the request to the group, which answers later."""
    if not request.group_id:
        return failed(request, ErrorCode.INVALID_GROUP_ID, context.version)
    GroupCall(context, request, failed).submit(coordinator_of(context).heartbeat)
    return None


def failed(request: HeartbeatRequest, error: ErrorCode, version: int) -> HeartbeatResponse:
    """The error of the whole request."""
    del request, version
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return HeartbeatResponse()
    return HeartbeatResponse(error_code=error)
