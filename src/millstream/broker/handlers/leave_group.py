"""LeaveGroup (key 13), versions 0-5.

Behaviour: members leave at once instead of after their session timeout; static ones are named by
their instance id. Each has its own error from version 3 on; before that it is the error of the
request. An empty group id is INVALID_GROUP_ID.
v3 several members · v4 flexible · v5 reason (KIP-800)
Invariants: I-27.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from millstream.broker.groups.calls import GroupCall, coordinator_of, group_code, response_of
from millstream.broker.requests.context import Context
from millstream.model.errors import OperatingError
from millstream.runtime.scheduler import chunked
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

_FIRST_WITH_MANY: Final = 3

MEMBERS_AT_ONCE_MAX: Final = 200
"""Larger requests are split into parts, between which others are served."""


def handle(
    context: Context, request: LeaveGroupRequest
) -> LeaveGroupResponse | Coroutine[Any, Any, LeaveGroupResponse] | None:
    """Pass the request to the group, which answers later."""
    if not request.group_id:
        return failed(request, ErrorCode.INVALID_GROUP_ID, context.version)
    if len(request.members) > MEMBERS_AT_ONCE_MAX:
        return _leave_in_parts(context, request)
    GroupCall(context, request, failed).submit(coordinator_of(context).leave_group)
    return None


async def _leave_in_parts(context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """An error of the whole request in one part ends it: members that have left by then are unknown
    when the client retries.
    """
    response = LeaveGroupResponse()
    for members in chunked(request.members, MEMBERS_AT_ONCE_MAX):
        part = LeaveGroupRequest(group_id=request.group_id, members=list(members))
        found = await response_of(coordinator_of(context).leave_group, context, part)
        if isinstance(found, OperatingError):
            found = failed(part, group_code(found), context.version)
        if found.error_code != ErrorCode.NONE:
            return LeaveGroupResponse(error_code=found.error_code)
        response.members += found.members
        await asyncio.sleep(0)
    return response


def failed(request: LeaveGroupRequest, error: ErrorCode, version: int) -> LeaveGroupResponse:
    """The error of the whole request."""
    if error is ErrorCode.UNKNOWN_MEMBER_ID and version >= _FIRST_WITH_MANY:
        return LeaveGroupResponse(members=[_refused(one, error) for one in request.members])
    return LeaveGroupResponse(error_code=error)


def _refused(member: MemberIdentity, error: ErrorCode) -> MemberResponse:
    return MemberResponse(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        error_code=error,
    )
