"""AllocateProducerIds (key 67): a block of producer ids for one broker."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import int16, int32, int64
from millstream.wire.schema import Message


class AllocateProducerIdsRequest(Message, key=ApiKey.ALLOCATE_PRODUCER_IDS):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class AllocateProducerIdsResponse(Message, key=ApiKey.ALLOCATE_PRODUCER_IDS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id_start: int = int64()
    producer_id_len: int = int32()
