"""ExpireDelegationToken (key 40): let a token end earlier."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import blob, int16, int32, int64
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message


class ExpireDelegationTokenRequest(Message, key=ApiKey.EXPIRE_DELEGATION_TOKEN):
    hmac: Bytes = blob()
    expiry_time_period_ms: int = int64()


class ExpireDelegationTokenResponse(Message, key=ApiKey.EXPIRE_DELEGATION_TOKEN):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
