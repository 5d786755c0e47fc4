"""FindCoordinator (key 10), versions 0-6.

Behaviour: consumer groups and transactions have no coordinator yet, so every key is answered with
COORDINATOR_NOT_AVAILABLE and node -1: clients that only assign and seek but have a `group.id` ask
anyway, and go on without. Key type 2 (share groups, since version 6) and unknown types are
INVALID_REQUEST.
v1 key type and messages · v3 flexible · v4 many keys at once (KIP-699) · v5 TRANSACTION_ABORTABLE
(KIP-890) · v6 share groups (KIP-932).

Where it differs from Kafka: nobody is a coordinator yet; Kafka would create its internal topics.
"""

from functools import partial
from typing import Final

from millstream.broker.context import Context
from millstream.runtime.turns import ITEMS_PER_TURN, Steps
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

VERSIONS: Final = range(7)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_FIRST_WITH_MANY: Final = 4
_NO_NODE: Final = -1
_NO_PORT: Final = -1


def handle(context: Context, request: FindCoordinatorRequest) -> Steps[FindCoordinatorResponse]:
    """Say that there is none, or that there never can be one of that type."""
    is_known = request.key_type in (_GROUP, _TRANSACTION)
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_known else ErrorCode.INVALID_REQUEST
    if is_known:
        _tell(context, request.key_type)
    if len(request.coordinator_keys) <= ITEMS_PER_TURN:
        return failed(request, error, context.version)
    response: FindCoordinatorResponse = yield partial(failed, request, error, context.version)
    return response


def _tell(context: Context, key_type: int) -> None:
    """Clients ask again and again in silence, so their operator has to hear it from us."""
    what = "consumer groups" if key_type == _GROUP else "transactions"
    told = f"a client asks for a coordinator: there are no {what} yet"
    context.services.repeated.warning(what, told, client=context.peer.client_host)


def failed(
    request: FindCoordinatorRequest, error: ErrorCode, version: int
) -> FindCoordinatorResponse:
    """The same error for every key."""
    if version < _FIRST_WITH_MANY:
        return FindCoordinatorResponse(
            error_code=error, error_message=error.text, node_id=_NO_NODE, host="", port=_NO_PORT
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key,
                node_id=_NO_NODE,
                host="",
                port=_NO_PORT,
                error_code=error,
                error_message=error.text,
            )
            for key in request.coordinator_keys
        ]
    )
