"""AuthenticateBroker (key 31001), version 0. Between brokers; ours, Kafka has nothing of the kind.

Behaviour: the first request of a broker gets a challenge, together with the proof that this broker
knows the secret of the other's registration; the second answers the challenge, and the connection
is a broker's from then on. CLUSTER_AUTHORIZATION_FAILED, and the connection is closed, for
everything that is no proof: an unknown broker or epoch, another cluster, an address that is not
this broker's, a listener that is not for brokers. BROKER_NOT_AVAILABLE if the secret cannot be read
now. A standalone broker knows no other brokers.
"""

from millstream.broker.requests.between_brokers import NotABroker, refusal
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.authenticate_broker import (
    AuthenticateBrokerRequest,
    AuthenticateBrokerResponse,
)


async def handle(
    context: Context, request: AuthenticateBrokerRequest
) -> AuthenticateBrokerResponse | None:
    """One half of the proof."""
    membership = context.services.membership
    try:
        if membership is None:
            raise NotABroker("a standalone broker has no others")
        return await membership.authenticate(context.peer, request)
    except NotABroker as error:
        refused = refusal(context, reason=str(error))
        context.answer(failed(request, code_of(refused), context.version))
        context.close(f"not a broker: {error}")
        return None


def failed(
    request: AuthenticateBrokerRequest, error: ErrorCode, version: int
) -> AuthenticateBrokerResponse:
    """Neither a challenge nor a proof."""
    del request, version
    return AuthenticateBrokerResponse(error_code=error)
