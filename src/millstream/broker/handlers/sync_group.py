"""SyncGroup (key 14), versions 0-5.

Behaviour: the leader sends the assignment of every member, the others wait for it; each gets its
own. The assignment is committed to the log before any member gets it. An empty group id:
INVALID_GROUP_ID.
v3 static members · v4 flexible · v5 protocol type and name (KIP-559)
Invariants: I-27.
"""

from millstream.broker.groups.calls import GroupCall, coordinator_of
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def handle(context: Context, request: SyncGroupRequest) -> SyncGroupResponse | None:
    """Pass the request to the group, which answers later."""
    if not request.group_id:
        return failed(request, ErrorCode.INVALID_GROUP_ID, context.version)
    GroupCall(context, request, failed).submit(coordinator_of(context).sync_group)
    return None


def failed(request: SyncGroupRequest, error: ErrorCode, version: int) -> SyncGroupResponse:
    """The error of the whole request."""
    del request, version
    return SyncGroupResponse(error_code=error)
