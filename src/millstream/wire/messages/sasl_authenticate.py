"""SaslAuthenticate (key 36): one step of the chosen SASL mechanism."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import blob, int16, int64, string
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message


class SaslAuthenticateRequest(Message, key=ApiKey.SASL_AUTHENTICATE):
    auth_bytes: Bytes = blob()


class SaslAuthenticateResponse(Message, key=ApiKey.SASL_AUTHENTICATE):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: Bytes = blob()
    session_lifetime_ms: int = int64("1+", ignorable=True)
