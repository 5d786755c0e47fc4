"""ListGroups (key 16), versions 0-5.

Behaviour: the groups of which this broker is the coordinator, of the states and types asked for, in
any case of letters; all without any. While a part of them is being loaded
COORDINATOR_LOAD_IN_PROGRESS for the whole.
v3 flexible · v4 states · v5 types (KIP-848)
"""

import asyncio
from typing import TYPE_CHECKING, Final

from millstream.broker.groups.calls import asking_shard, group_code, groups_of
from millstream.broker.requests.context import Context
from millstream.groups.effects import Caller
from millstream.groups.errors import NotCoordinator
from millstream.model.errors import OperatingError
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from millstream.groups.shard import Shard
    from millstream.groups.shell.home import Moment

VERSIONS: Final = range(6)


async def handle(context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    """Ask every shard, one in a turn."""
    response = ListGroupsResponse()
    loaded = groups_of(context).loaded
    for index in loaded.indexes if loaded is not None else ():
        found = await asking_shard(context, index, _ask, request)
        if isinstance(found, NotCoordinator):
            continue  # another broker lists them by now
        if isinstance(found, OperatingError):
            return failed(request, group_code(found), context.version)
        response.groups += found
        await asyncio.sleep(0)
    return response


def _ask(shard: "Shard", caller: Caller, request: ListGroupsRequest, moment: "Moment") -> None:
    del moment
    shard.list_groups(caller, request)


def failed(request: ListGroupsRequest, error: ErrorCode, version: int) -> ListGroupsResponse:
    """The request's one error."""
    del request, version
    return ListGroupsResponse(error_code=error)
