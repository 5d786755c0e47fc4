"""ConsumerGroupHeartbeat (key 68): a member of a consumer group joins, stays or leaves."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, nested, string, uuid
from millstream.wire.schema import Message, Struct


class RequestTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupHeartbeatRequest(Message, key=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[RequestTopicPartitions] | None = array(
        RequestTopicPartitions, nullable="0+", default=None
    )


class ResponseTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class Assignment(Struct):
    topic_partitions: list[ResponseTopicPartitions] = array(ResponseTopicPartitions)


class ConsumerGroupHeartbeatResponse(Message, key=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nested(Assignment, nullable="0+", default=None)
