"""UnregisterBroker (key 64): remove a broker that will not come back."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import int16, int32, string
from millstream.wire.schema import Message


class UnregisterBrokerRequest(Message, key=ApiKey.UNREGISTER_BROKER):
    broker_id: int = int32()


class UnregisterBrokerResponse(Message, key=ApiKey.UNREGISTER_BROKER):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
