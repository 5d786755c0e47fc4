"""DeleteGroups (key 42), versions 0-2.

Behaviour: groups without members are deleted, with all their offsets; each has its own error,
NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND. A deletion is committed to the log before it is answered. The
empty id is a valid group id, as in Kafka.
v2 flexible
Invariants: I-29.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from millstream.broker.groups.calls import coordinator_of, group_code, response_of
from millstream.broker.requests.context import Context
from millstream.model.errors import OperatingError
from millstream.model.ids import GroupId
from millstream.runtime.scheduler import YieldCounter, chunked
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

GROUPS_PER_TURN: Final = 20
"""Per step, between which others are served: each is a batch of the log."""
GROUPS_AT_ONCE_MAX: Final = 200
"""Submitted before the first of them has to be committed."""


async def handle(context: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete every group, each once."""
    response = DeleteGroupsResponse()
    names = list(dict.fromkeys(request.groups_names))
    for some in chunked(names, GROUPS_AT_ONCE_MAX):
        response.results += await _deleted(context, some)
    return response


async def _deleted(context: Context, names: Sequence[str]) -> list[DeletableGroupResult]:
    coordinator = coordinator_of(context)
    responses = []
    pace = YieldCounter(GROUPS_PER_TURN)
    for name in names:
        responses.append(response_of(coordinator.delete_group, context, GroupId(name)))
        if pace.is_due():
            await asyncio.sleep(0)
    results = []
    for name, future in zip(names, responses, strict=True):
        found = await future
        if isinstance(found, OperatingError):
            found = DeletableGroupResult(group_id=name, error_code=group_code(found))
        results.append(found)
    return results


def failed(request: DeleteGroupsRequest, error: ErrorCode, version: int) -> DeleteGroupsResponse:
    """The same error for every group."""
    del version
    results = [
        DeletableGroupResult(group_id=name, error_code=error) for name in request.groups_names
    ]
    return DeleteGroupsResponse(results=results)
