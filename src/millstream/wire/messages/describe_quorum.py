"""DescribeQuorum (key 55): leader, voters and observers of the metadata log."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, int64, string, uint16, uuid
from millstream.wire.schema import Message, Struct


class RequestPartitionData(Struct):
    partition_index: int = int32()


class RequestTopicData(Struct):
    topic_name: str = string()
    partitions: list[RequestPartitionData] = array(RequestPartitionData)


class DescribeQuorumRequest(Message, key=ApiKey.DESCRIBE_QUORUM):
    topics: list[RequestTopicData] = array(RequestTopicData)


class ReplicaState(Struct):
    replica_id: int = int32()
    replica_directory_id: UUID = uuid("2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class ResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class ResponseTopicData(Struct):
    topic_name: str = string()
    partitions: list[ResponsePartitionData] = array(ResponsePartitionData)


class Listener(Struct):
    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class Node(Struct):
    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


class DescribeQuorumResponse(Message, key=ApiKey.DESCRIBE_QUORUM):
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: list[ResponseTopicData] = array(ResponseTopicData)
    nodes: list[Node] = array(Node, "2+")
