"""AuthenticateBroker (key 31001): a broker proves who it is, and the other one that it may know.

Ours, not Kafka's. Two requests on a new connection, before any other between brokers: the first
asks for a challenge, the second answers it. What the proofs are made of is in
`broker/requests/broker_proof.py`.
"""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import blob, int16, int32, int64, string
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message


class AuthenticateBrokerRequest(Message, key=ApiKey.AUTHENTICATE_BROKER):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    cluster_id: str = string()
    address: str = string()
    """Of the broker that is connected to, as its registration has it."""
    nonce: Bytes = blob()
    """Random bytes of the sender; the same in both requests."""
    proof: Bytes = blob()
    """Empty in the first request."""


class AuthenticateBrokerResponse(Message, key=ApiKey.AUTHENTICATE_BROKER):
    error_code: int = int16()
    nonce: Bytes = blob()
    """Random bytes of the answering broker: the challenge. Empty in the second answer."""
    proof: Bytes = blob()
    """That the answering broker knows the secret, too. Empty in the second answer."""
