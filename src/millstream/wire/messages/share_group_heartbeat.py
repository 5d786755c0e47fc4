"""ShareGroupHeartbeat (key 76): a member of a share group joins, stays or leaves."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, nested, string, uuid
from millstream.wire.schema import Message, Struct


class ShareGroupHeartbeatRequest(Message, key=ApiKey.SHARE_GROUP_HEARTBEAT):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)


class TopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ShareGroupHeartbeatResponse(Message, key=ApiKey.SHARE_GROUP_HEARTBEAT):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nested(Assignment, nullable="0+", default=None)
