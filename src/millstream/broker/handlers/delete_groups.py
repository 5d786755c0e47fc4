"""DeleteGroups (key 42), versions 0-2.

Behaviour: groups without members go, with all their offsets; each has its own error,
NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND. That a group is gone is in the log before it is told. The
empty id is a group like others, as in Kafka.
v2 flexible
Invariants: I-29.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from millstream.broker.context import Context
from millstream.broker.group_calls import asking, group_code
from millstream.groups.effects import Caller
from millstream.model.errors import OperatingError
from millstream.model.ids import GroupId
from millstream.runtime.turns import Pace
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from millstream.groups.shard import Shard
    from millstream.groups.shell.home import Moment

VERSIONS: Final = range(3)

GROUPS_PER_TURN: Final = 20
"""Each is a batch of the log."""


async def handle(context: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Ask every group, each once; all are asked before the first has to be in the log."""
    asked = {}
    pace = Pace(GROUPS_PER_TURN)
    for name in dict.fromkeys(request.groups_names):
        asked[name] = asking(context, name, _ask, GroupId(name))
        if pace.is_due():
            await asyncio.sleep(0)
    response = DeleteGroupsResponse()
    for name, future in asked.items():
        found = await future
        if isinstance(found, OperatingError):
            found = DeletableGroupResult(group_id=name, error_code=group_code(found))
        response.results.append(found)
    return response


def _ask(shard: "Shard", caller: Caller, group_id: GroupId, moment: "Moment") -> None:
    shard.delete_group(caller, group_id, now_ms=moment.now_ms)


def failed(request: DeleteGroupsRequest, error: ErrorCode, version: int) -> DeleteGroupsResponse:
    """The same error for every group."""
    del version
    results = [
        DeletableGroupResult(group_id=name, error_code=error) for name in request.groups_names
    ]
    return DeleteGroupsResponse(results=results)
