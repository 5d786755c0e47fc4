"""Requests that only brokers of this cluster may send, and the refusal of all others.

A connection has proven to be a broker's, or it has not (`Peer.proven_broker`); there is no third
way to be one. APIs between brokers are refused before they are decoded; requests of clients that
a follower sends, too, are refused where their replica id is known.
"""

from typing import TYPE_CHECKING, Final

from millstream.model.errors import OperatingError
from millstream.observe.logs import get_logger
from millstream.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from millstream.broker.requests.context import Context

log = get_logger("millstream.broker.requests.between_brokers")

BETWEEN_BROKERS: Final = frozenset(
    {
        ApiKey.ALTER_PARTITION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ENVELOPE,
        ApiKey.PULL_METADATA,
    }
)
"""Their `failed` needs no request: they are refused before they are decoded."""

HANDSHAKE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE_BROKER})
"""What a broker sends before it is known to be one."""


class NotABroker(OperatingError):
    """The connection has not proven to be of a registered broker of this cluster."""


class BrokerUnverifiable(OperatingError):
    """Nothing can be said about it: the coordination service is out of reach. It may try again."""


def refusal(context: "Context", *, reason: str = "no proof") -> NotABroker:
    """The error to answer with; the log has one line for each address."""
    api = ApiKey(context.facts.api_key).name
    message = "request refused: only brokers of this cluster may send it"
    context.services.client_log.warning_once(
        log, message, client=context.peer.client_host, api=api, reason=reason
    )
    return NotABroker(f"{api} is for brokers of this cluster")


def check_replica(context: "Context", replica_id: int) -> None:
    """Raise NotABroker for a request in the name of a replica that did not send it."""
    if replica_id >= 0 and replica_id != context.peer.proven_broker:
        raise refusal(context)


def check_sender(context: "Context", broker_id: int) -> None:
    """Raise NotABroker for a request in the name of another broker than the one that sent it."""
    if broker_id != context.peer.proven_broker:
        raise refusal(context, reason=f"in the name of broker {broker_id}")
