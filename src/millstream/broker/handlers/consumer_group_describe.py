"""ConsumerGroupDescribe (key 69), versions 0-1.

Behaviour: epochs, assignor and members of each consumer group with their current and target
assignment; each has its own error, GROUP_ID_NOT_FOUND also for a classic group. An empty id is
INVALID_GROUP_ID. Authorized operations are included on request. Without `consumer` in
`group.coordinator.rebalance.protocols` UNSUPPORTED_VERSION.
v1 member types (KIP-1099)
"""

import asyncio

from millstream.broker.groups.calls import (
    coordinator_of,
    group_code,
    group_text,
    is_consumer_protocol_on,
    response_of,
)
from millstream.broker.requests.context import Context
from millstream.controller.views import GROUP_OPERATIONS_ALL
from millstream.groups.errors import InvalidGroupId
from millstream.model.errors import OperatingError
from millstream.model.ids import GroupId
from millstream.runtime.scheduler import YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


async def handle(
    context: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe every group, each once."""
    if not is_consumer_protocol_on(context):
        return failed(request, ErrorCode.UNSUPPORTED_VERSION, context.version)
    response = ConsumerGroupDescribeResponse()
    pace = YieldCounter()
    for name in dict.fromkeys(request.group_ids):
        found: DescribedGroup | OperatingError = InvalidGroupId()
        if name:
            describe = coordinator_of(context).consumer_group_describe
            found = await response_of(describe, context, GroupId(name))
        if isinstance(found, OperatingError):
            found = DescribedGroup(
                group_id=name, error_code=group_code(found), error_message=group_text(found)
            )
        elif request.include_authorized_operations and found.error_code == ErrorCode.NONE:
            found.authorized_operations = GROUP_OPERATIONS_ALL
        response.groups.append(found)
        if pace.is_due(1 + len(found.members)):
            await asyncio.sleep(0)
    return response


def failed(
    request: ConsumerGroupDescribeRequest, error: ErrorCode, version: int
) -> ConsumerGroupDescribeResponse:
    """The same error for every group."""
    del version
    groups = [DescribedGroup(group_id=name, error_code=error) for name in request.group_ids]
    return ConsumerGroupDescribeResponse(groups=groups)
