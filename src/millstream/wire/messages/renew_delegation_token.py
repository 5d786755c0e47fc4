"""RenewDelegationToken (key 39): let a token live longer."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import blob, int16, int32, int64
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message


class RenewDelegationTokenRequest(Message, key=ApiKey.RENEW_DELEGATION_TOKEN):
    hmac: Bytes = blob()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(Message, key=ApiKey.RENEW_DELEGATION_TOKEN):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
