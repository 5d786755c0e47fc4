"""InitProducerId (key 22): a producer's id and epoch."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import boolean, int16, int32, int64, string
from millstream.wire.schema import Message


class InitProducerIdRequest(Message, key=ApiKey.INIT_PRODUCER_ID):
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


class InitProducerIdResponse(Message, key=ApiKey.INIT_PRODUCER_ID):
    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
