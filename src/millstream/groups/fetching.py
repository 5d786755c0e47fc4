"""OffsetFetch (key 9), versions 1-10: how far a group has read.

v2 all offsets of a group · v5 leader epochs · v7 stable offsets only (KIP-447) · v8 several groups
· v9 the member and its epoch · v10 topics by id.
Only what the high watermark has passed is told (I-29). A group that is not there has no offsets,
which is no error.
"""

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.effects import Caller
from millstream.groups.offsets import requests
from millstream.groups.parts import Parts
from millstream.groups.records.keys import OffsetKey
from millstream.model.ids import NO_LEADER_EPOCH, NO_OFFSET, GroupId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)


def offset_fetch(
    parts: Parts, caller: Caller, request: OffsetFetchRequestGroup, *, is_stable: bool
) -> None:
    """Raises GroupRefused if the member is not one of the group, or not of this epoch."""
    group = parts.groups.get(GroupId(request.group_id))
    if group is not None and not isinstance(group, ClassicGroup):
        group.check_fetch(request.member_id, request.member_epoch)
    response = requests.fetch(parts.offsets, request, require_stable=is_stable)
    if is_stable and parts.offsets.unseen_count:
        _hold_back(parts, response)
    parts.outbox.reply(caller, response)


def _hold_back(parts: Parts, response: OffsetFetchResponseGroup) -> None:
    """Not to tell of an offset whose successor is in the log already, and may still be lost.

    Kafka lets the request wait until it counts; here the client is told to ask again, as with
    transactions.
    """
    unseen = parts.offsets.keys_unseen()
    group_id = GroupId(response.group_id)
    for topic in response.topics:
        for one in topic.partitions:
            if OffsetKey(group_id, topic.name, one.partition_index) in unseen:
                one.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
                one.committed_offset, one.committed_leader_epoch = NO_OFFSET, NO_LEADER_EPOCH
                one.metadata = ""
