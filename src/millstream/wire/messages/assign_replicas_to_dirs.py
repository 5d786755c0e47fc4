"""AssignReplicasToDirs (key 73): a broker reports to the controller the directory of each log."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, int64, uuid
from millstream.wire.schema import Message, Struct


class RequestPartitionData(Struct):
    partition_index: int = int32()


class RequestTopicData(Struct):
    topic_id: UUID = uuid()
    partitions: list[RequestPartitionData] = array(RequestPartitionData)


class RequestDirectoryData(Struct):
    id: UUID = uuid()
    topics: list[RequestTopicData] = array(RequestTopicData)


class AssignReplicasToDirsRequest(Message, key=ApiKey.ASSIGN_REPLICAS_TO_DIRS):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    directories: list[RequestDirectoryData] = array(RequestDirectoryData)


class ResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class ResponseTopicData(Struct):
    topic_id: UUID = uuid()
    partitions: list[ResponsePartitionData] = array(ResponsePartitionData)


class ResponseDirectoryData(Struct):
    id: UUID = uuid()
    topics: list[ResponseTopicData] = array(ResponseTopicData)


class AssignReplicasToDirsResponse(Message, key=ApiKey.ASSIGN_REPLICAS_TO_DIRS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    directories: list[ResponseDirectoryData] = array(ResponseDirectoryData)
