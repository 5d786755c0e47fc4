"""OffsetFetch (key 9), versions 1-10: the committed offsets of a group.

v2 all offsets of a group · v5 leader epochs · v7 stable offsets only (KIP-447) · v8 several groups
· v9 the member and its epoch · v10 topics by id.
Only offsets that the high watermark has passed are returned (I-29); a request for stable offsets
waits until it has passed all that is written. An unknown group has no offsets, which is no error.
"""

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.offsets import requests
from millstream.groups.parts import Parts
from millstream.model.ids import GroupId
from millstream.shards.effects import Caller, Reply, Write
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup


def offset_fetch(
    parts: Parts, caller: Caller, request: OffsetFetchRequestGroup, *, require_stable: bool
) -> None:
    """Raises GroupRefused if the member is unknown, or its epoch is not current."""
    group = parts.groups.get(GroupId(request.group_id))
    if group is not None and not isinstance(group, ClassicGroup):
        group.check_fetch(request.member_id, request.member_epoch)
    response = requests.fetch(parts.offsets, request, require_stable=require_stable)
    if require_stable and parts.offsets.uncommitted_count:
        # The response may depend on records that are in the log and not committed yet.
        parts.outbox.write(Write((), (Reply(caller.token, response),)))
    else:
        parts.outbox.reply(caller, response)
