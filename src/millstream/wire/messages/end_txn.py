"""EndTxn (key 26): commit or abort a transaction."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import boolean, int16, int32, int64, string
from millstream.wire.schema import Message


class EndTxnRequest(Message, key=ApiKey.END_TXN):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, key=ApiKey.END_TXN):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)
