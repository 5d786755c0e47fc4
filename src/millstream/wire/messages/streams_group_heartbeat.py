"""StreamsGroupHeartbeat (key 88): a member of a streams group joins, stays or leaves."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, int8, int16, int32, int64, nested, string, uint16
from millstream.wire.schema import Message, Struct


class KeyValue(Struct):
    key: str = string()
    value: str = string()


class TopicInfo(Struct):
    name: str = string()
    partitions: int = int32()
    replication_factor: int = int16()
    topic_configs: list[KeyValue] = array(KeyValue)


class CopartitionGroup(Struct):
    source_topics: list[int] = array(int16)
    source_topic_regex: list[int] = array(int16)
    repartition_source_topics: list[int] = array(int16)


class Subtopology(Struct):
    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    source_topic_regex: list[str] = array(string)
    state_changelog_topics: list[TopicInfo] = array(TopicInfo)
    repartition_sink_topics: list[str] = array(string)
    repartition_source_topics: list[TopicInfo] = array(TopicInfo)
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup)


class Topology(Struct):
    epoch: int = int32()
    subtopologies: list[Subtopology] = array(Subtopology)


class RequestTaskIds(Struct):
    subtopology_id: str = string()
    partitions: list[int] = array(int32)


class RequestEndpoint(Struct):
    host: str = string()
    port: int = uint16()


class TaskOffset(Struct):
    subtopology_id: str = string()
    partition: int = int32()
    offset: int = int64()


class StreamsGroupHeartbeatRequest(Message, key=ApiKey.STREAMS_GROUP_HEARTBEAT):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    endpoint_information_epoch: int = int32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    topology: Topology | None = nested(Topology, nullable="0+", default=None)
    active_tasks: list[RequestTaskIds] | None = array(RequestTaskIds, nullable="0+", default=None)
    standby_tasks: list[RequestTaskIds] | None = array(RequestTaskIds, nullable="0+", default=None)
    warmup_tasks: list[RequestTaskIds] | None = array(RequestTaskIds, nullable="0+", default=None)
    process_id: str | None = string(nullable="0+", default=None)
    user_endpoint: RequestEndpoint | None = nested(RequestEndpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] | None = array(KeyValue, nullable="0+", default=None)
    task_offsets: list[TaskOffset] | None = array(TaskOffset, nullable="0+", default=None)
    task_end_offsets: list[TaskOffset] | None = array(TaskOffset, nullable="0+", default=None)
    shutdown_application: bool = boolean()


class Status(Struct):
    status_code: int = int8()
    status_detail: str = string()


class ResponseTaskIds(Struct):
    subtopology_id: str = string()
    partitions: list[int] = array(int32)


class ResponseEndpoint(Struct):
    host: str = string()
    port: int = uint16()


class TopicPartition(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class EndpointToPartitions(Struct):
    user_endpoint: ResponseEndpoint = nested(ResponseEndpoint)
    active_partitions: list[TopicPartition] = array(TopicPartition)
    standby_partitions: list[TopicPartition] = array(TopicPartition)


class StreamsGroupHeartbeatResponse(Message, key=ApiKey.STREAMS_GROUP_HEARTBEAT):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str = string()
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    acceptable_recovery_lag: int = int32()
    task_offset_interval_ms: int = int32()
    status: list[Status] | None = array(Status, nullable="0+")
    active_tasks: list[ResponseTaskIds] | None = array(ResponseTaskIds, nullable="0+", default=None)
    standby_tasks: list[ResponseTaskIds] | None = array(
        ResponseTaskIds, nullable="0+", default=None
    )
    warmup_tasks: list[ResponseTaskIds] | None = array(ResponseTaskIds, nullable="0+", default=None)
    endpoint_information_epoch: int = int32()
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = array(
        EndpointToPartitions, nullable="0+", default=None
    )
