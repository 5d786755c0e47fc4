"""What brokers prove to each other on a new connection. Pure.

The broker that connects names itself: its id, its epoch, its cluster, the address that it connected
to. Each side adds random bytes, and each proves with an HMAC over all of it that it knows the
secret of the connecting broker's registration. So neither an old proof, nor one made for another
broker's address, nor one of the other side can be used in its place.
"""

import hmac
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.observe.redaction import Secret

NONCE_BYTES: Final = 32
"""More than could ever be repeated by chance; every other size is refused."""

_IDS: Final = Struct(">iq")
_SIZE: Final = Struct(">I")


class Side(Enum):
    """Whose proof it is; without it one side's could be sent back as the other's."""

    CONNECTING = b"millstream broker connects"
    ANSWERING = b"millstream broker answers"


class Claim(NamedTuple):
    """Who a connecting broker says it is."""

    broker_id: BrokerId
    epoch: BrokerEpoch
    cluster_id: str
    address: str
    """That it connected to: the broker there must have registered it as its own."""
    nonce: bytes


class Challenge(NamedTuple):
    """What the answering broker expects a proof of, on one connection."""

    claim: Claim
    nonce: bytes


def proof_of(secret: Secret, side: Side, challenge: Challenge) -> bytes:
    """One side's proof; every part with its size, so that no two challenges look the same."""
    claim = challenge.claim
    parts = (
        side.value,
        _IDS.pack(claim.broker_id, claim.epoch),
        claim.cluster_id.encode("utf-8", "surrogatepass"),
        claim.address.encode("utf-8", "surrogatepass"),
        claim.nonce,
        challenge.nonce,
    )
    text = b"".join(_SIZE.pack(len(one)) + one for one in parts)
    return hmac.digest(secret.reveal().encode(), text, "sha256")


def is_proven(proof: bytes, secret: Secret, side: Side, challenge: Challenge) -> bool:
    """In constant time: the duration would reveal how much of a guess is right."""
    return hmac.compare_digest(proof, proof_of(secret, side, challenge))
