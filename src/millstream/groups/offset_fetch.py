"""OffsetFetch (key 9), versions 1-10: how far a group has read.

v2 all offsets of a group · v5 leader epochs · v7 stable offsets only (KIP-447) · v8 several groups
· v9 the member and its epoch · v10 topics by id.
Only what the high watermark has passed is told (I-29); who asks for stable offsets waits until it
has passed all that is written. A group that is not there has no offsets, which is no error.
"""

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.offsets import requests
from millstream.groups.parts import Parts
from millstream.model.ids import GroupId
from millstream.shards.effects import Caller, Reply, Write
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup


def offset_fetch(
    parts: Parts, caller: Caller, request: OffsetFetchRequestGroup, *, is_stable: bool
) -> None:
    """Raises GroupRefused if the member is not one of the group, or not of this epoch."""
    group = parts.groups.get(GroupId(request.group_id))
    if group is not None and not isinstance(group, ClassicGroup):
        group.check_fetch(request.member_id, request.member_epoch)
    response = requests.fetch(parts.offsets, request, require_stable=is_stable)
    if is_stable and parts.offsets.unseen_count:
        # Nothing of it may be taken back, or followed by what is in the log already.
        parts.outbox.write(Write((), (Reply(caller.token, response),)))
    else:
        parts.outbox.reply(caller, response)
