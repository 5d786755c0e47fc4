"""DescribeGroups (key 15), versions 0-6.

Behaviour: state, protocol and members of each group with their subscriptions and assignments; each
has its own error. A group that does not exist, or is not of the classic protocol, is Dead (from
version 6 on GROUP_ID_NOT_FOUND with a reason). The empty id is a valid group id, as in Kafka.
Authorized operations are included on request (v3+).
v3 authorized operations · v4 static members · v5 flexible · v6 GROUP_ID_NOT_FOUND (KIP-1043)
"""

import asyncio

from millstream.broker.groups.calls import coordinator_of, group_code, response_of
from millstream.broker.requests.context import Context
from millstream.controller.views import GROUP_OPERATIONS_ALL
from millstream.model.errors import OperatingError
from millstream.model.ids import GroupId
from millstream.runtime.scheduler import YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


async def handle(context: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe every group, each once."""
    response = DescribeGroupsResponse()
    pace = YieldCounter()
    for name in dict.fromkeys(request.groups):
        found = await response_of(coordinator_of(context).describe_group, context, GroupId(name))
        if isinstance(found, OperatingError):
            found = DescribedGroup(group_id=name, error_code=group_code(found))
        elif request.include_authorized_operations and found.error_code == ErrorCode.NONE:
            found.authorized_operations = GROUP_OPERATIONS_ALL
        response.groups.append(found)
        if pace.is_due(1 + len(found.members)):
            await asyncio.sleep(0)
    return response


def failed(
    request: DescribeGroupsRequest, error: ErrorCode, version: int
) -> DescribeGroupsResponse:
    """The same error for every group."""
    del version
    groups = [DescribedGroup(group_id=name, error_code=error) for name in request.groups]
    return DescribeGroupsResponse(groups=groups)
