"""JoinGroup (key 11), versions 0-9.

Behaviour: the member waits until all members of the group have joined, or the rebalance timeout has
passed; the answer has the generation, and for the leader the members with their subscriptions. A
new member first gets its id with MEMBER_ID_REQUIRED (v4+, unless it is static), and joins again
with it. An empty group id is INVALID_GROUP_ID; everything else is decided by the group.
v1 rebalance timeout · v4 member id required (KIP-394) · v5 static members (KIP-345) · v6 flexible
v7 protocol type in the answer · v8 reason (KIP-800) · v9 skip assignment (KIP-814)
Invariants: I-27, I-31.
"""

from typing import Final

from millstream.broker.groups.calls import GroupCall, coordinator_of
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

_FIRST_WITH_NULL_NAME: Final = 7


def handle(context: Context, request: JoinGroupRequest) -> JoinGroupResponse | None:
    """Pass the request to the group, which answers later."""
    if not request.group_id:
        return failed(request, ErrorCode.INVALID_GROUP_ID, context.version)
    # It waits for minutes: the metadata is in the group by then, and must not be there twice.
    kept = JoinGroupRequest(group_id=request.group_id, member_id=request.member_id)
    GroupCall(context, kept, failed).submit(coordinator_of(context).join_group, request)
    return None


def failed(request: JoinGroupRequest, error: ErrorCode, version: int) -> JoinGroupResponse:
    """The error of the whole request."""
    return JoinGroupResponse(
        error_code=error,
        member_id=request.member_id,
        protocol_name=None if version >= _FIRST_WITH_NULL_NAME else "",
    )
