"""Envelope (key 58): a client's request that a broker passes on to the controller."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import blob, int16
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message


class EnvelopeRequest(Message, key=ApiKey.ENVELOPE):
    request_data: Bytes = blob()
    request_principal: Bytes | None = blob(nullable="0+")
    client_host_address: Bytes = blob()


class EnvelopeResponse(Message, key=ApiKey.ENVELOPE):
    response_data: Bytes | None = blob(nullable="0+", default=None)
    error_code: int = int16()
