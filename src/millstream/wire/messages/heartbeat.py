"""Heartbeat (key 12): a member of a classic group reports that it is alive."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import int16, int32, string
from millstream.wire.schema import Message


class HeartbeatRequest(Message, key=ApiKey.HEARTBEAT):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, key=ApiKey.HEARTBEAT):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
