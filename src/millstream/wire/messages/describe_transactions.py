"""DescribeTransactions (key 65): state of transactional ids."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, int64, string
from millstream.wire.schema import Message, Struct


class DescribeTransactionsRequest(Message, key=ApiKey.DESCRIBE_TRANSACTIONS):
    transactional_ids: list[str] = array(string)


class TopicData(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class TransactionState(Struct):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Message, key=ApiKey.DESCRIBE_TRANSACTIONS):
    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)
