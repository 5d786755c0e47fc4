"""SaslHandshake (key 17): choose the SASL mechanism of a connection."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, string
from millstream.wire.schema import Message


class SaslHandshakeRequest(Message, key=ApiKey.SASL_HANDSHAKE):
    mechanism: str = string()


class SaslHandshakeResponse(Message, key=ApiKey.SASL_HANDSHAKE):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
