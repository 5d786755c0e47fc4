"""ListGroups (key 16), versions 0-5.

Behaviour: the groups of which this broker is the coordinator, with the requested states and types
(case-insensitive); all if none are given. While some of them are being loaded
COORDINATOR_LOAD_IN_PROGRESS for the whole request.
v3 flexible · v4 states · v5 types (KIP-848)
"""

import asyncio
from functools import partial

from millstream.broker.groups.calls import group_code, groups_of, response_of
from millstream.broker.requests.context import Context
from millstream.model.errors import OperatingError
from millstream.runtime.scheduler import YieldCounter
from millstream.shards.errors import NotCoordinator
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


async def handle(context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups of every shard, one after the other."""
    response = ListGroupsResponse()
    coordinator = groups_of(context).loaded
    if coordinator is None:
        return response
    pace = YieldCounter()
    for index in coordinator.shards.indexes:
        found = await response_of(partial(coordinator.list_groups, index=index), context, request)
        if isinstance(found, NotCoordinator):
            continue  # another broker lists them by now
        if isinstance(found, OperatingError):
            return failed(request, group_code(found), context.version)
        response.groups += found
        if pace.is_due(1 + len(found)):
            await asyncio.sleep(0)
    return response


def failed(request: ListGroupsRequest, error: ErrorCode, version: int) -> ListGroupsResponse:
    """The error of the whole request."""
    del request, version
    return ListGroupsResponse(error_code=error)
