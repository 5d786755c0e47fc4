"""SyncGroup (key 14): the leader of a classic group hands out the assignment; all fetch theirs."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, blob, int16, int32, string
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message, Struct


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: Bytes = blob()


class SyncGroupRequest(Message, key=ApiKey.SYNC_GROUP):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, key=ApiKey.SYNC_GROUP):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: Bytes = blob()
