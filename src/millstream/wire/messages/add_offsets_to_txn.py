"""AddOffsetsToTxn (key 25): a group whose offsets join a transaction."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import int16, int32, int64, string
from millstream.wire.schema import Message


class AddOffsetsToTxnRequest(Message, key=ApiKey.ADD_OFFSETS_TO_TXN):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, key=ApiKey.ADD_OFFSETS_TO_TXN):
    throttle_time_ms: int = int32()
    error_code: int = int16()
