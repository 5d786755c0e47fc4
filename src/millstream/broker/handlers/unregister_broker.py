"""UnregisterBroker (key 64), version 0.

Behaviour: removes a broker that will not return. BROKER_ID_NOT_REGISTERED for an unknown one. The
controller does it; other brokers forward the request.

Where it differs from Kafka: a broker that is alive is refused with INVALID_REQUEST, since its
registration would be back at once; so is one that still has replicas.
"""

from millstream.broker.cluster.membership import administration_of
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.controller.cluster.errors import NotController
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


async def handle(context: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Remove it, or answer with what prevents that."""
    try:
        await administration_of(context.services).unregister_broker(BrokerId(request.broker_id))
    except NotController:
        raise
    except OperatingError as error:
        return UnregisterBrokerResponse(error_code=code_of(error), error_message=text_of(error))
    return UnregisterBrokerResponse(error_message=None)


def failed(
    request: UnregisterBrokerRequest, error: ErrorCode, version: int
) -> UnregisterBrokerResponse:
    """The error of the whole request."""
    del request, version
    return UnregisterBrokerResponse(error_code=error, error_message=error.text)
