"""AlterPartition (key 56): a leader asks the controller to change the in-sync replicas."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int8, int16, int32, int64, uuid
from millstream.wire.schema import Message, Struct


class BrokerState(Struct):
    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class RequestPartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array(int32, "0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32()


class RequestTopicData(Struct):
    topic_id: UUID = uuid("2+", ignorable=True)
    partitions: list[RequestPartitionData] = array(RequestPartitionData)


class AlterPartitionRequest(Message, key=ApiKey.ALTER_PARTITION):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[RequestTopicData] = array(RequestTopicData)


class ResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    leader_recovery_state: int = int8("1+", ignorable=True)
    partition_epoch: int = int32()


class ResponseTopicData(Struct):
    topic_id: UUID = uuid("2+", ignorable=True)
    partitions: list[ResponsePartitionData] = array(ResponsePartitionData)


class AlterPartitionResponse(Message, key=ApiKey.ALTER_PARTITION):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[ResponseTopicData] = array(ResponseTopicData)
