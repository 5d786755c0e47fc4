"""SyncGroup (key 14), versions 0-5.

Behaviour: the leader hands in what every member shall have, the others wait for it; each gets its
part. The assignment is in the log before anybody hears of it. An empty group id: INVALID_GROUP_ID.
v3 static members · v4 flexible · v5 protocol type and name (KIP-559)
Invariants: I-27.
"""

from typing import TYPE_CHECKING, Final

from millstream.broker.groups.calls import call
from millstream.broker.requests.context import Context
from millstream.groups.effects import Caller
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from millstream.groups.shard import Shard
    from millstream.groups.shell.home import Moment

VERSIONS: Final = range(6)


def handle(context: Context, request: SyncGroupRequest) -> SyncGroupResponse | None:
    """Ask the group; it answers when it can."""
    if not request.group_id:
        return failed(request, ErrorCode.INVALID_GROUP_ID, context.version)
    call(context, request, _ask, failed)
    return None


def _ask(shard: "Shard", caller: Caller, request: SyncGroupRequest, moment: "Moment") -> None:
    shard.sync_group(caller, request, now_ms=moment.now_ms, wall_ms=moment.wall_ms)


def failed(request: SyncGroupRequest, error: ErrorCode, version: int) -> SyncGroupResponse:
    """The error of the whole request."""
    del request, version
    return SyncGroupResponse(error_code=error)
