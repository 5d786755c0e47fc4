"""ListTransactions (key 66): the transactional ids of one coordinator."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, int64, string
from millstream.wire.schema import Message, Struct


class ListTransactionsRequest(Message, key=ApiKey.LIST_TRANSACTIONS):
    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class TransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message, key=ApiKey.LIST_TRANSACTIONS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)
