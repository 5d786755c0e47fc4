"""JoinGroup (key 11): become or stay a member of a classic group."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, blob, boolean, int16, int32, string
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message, Struct


class JoinGroupRequestProtocol(Struct):
    name: str = string()
    metadata: Bytes = blob()


class JoinGroupRequest(Message, key=ApiKey.JOIN_GROUP):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    metadata: Bytes = blob()


class JoinGroupResponse(Message, key=ApiKey.JOIN_GROUP):
    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
