"""InitProducerId (key 22), versions 0-5.

Behaviour: without a transactional id an id that no producer ever had, with epoch 0. A producer that
sends its id and epoch (since version 3, after an error it cannot resolve) gets a new id too, as in
Kafka: the broker does not know an idempotent producer's epoch, only its partitions do, and a new id
cannot collide with anything. Id and epoch must be given together (INVALID_REQUEST). With a
transactional id: an empty one is INVALID_REQUEST, a timeout of zero or less, or above
`transaction.max.timeout.ms`, is INVALID_TRANSACTION_TIMEOUT, else, while transactions are not
supported, TRANSACTIONAL_ID_AUTHORIZATION_FAILED: clients fail at once, where
COORDINATOR_NOT_AVAILABLE makes them retry until they time out.
v2 flexible · v3 id and epoch (KIP-360) · v4 PRODUCER_FENCED · v5 TRANSACTION_ABORTABLE (KIP-890).
Version 6 (two-phase commit) is not stable in Kafka 4.3 and not supported.

Where it differs from Kafka: if no new block of ids can be allocated the answer is, as there,
COORDINATOR_LOAD_IN_PROGRESS, but only after the attempt; Kafka answers so during the attempt.
Invariants: I-20.
"""

from collections.abc import Coroutine
from typing import Any

from millstream.broker.requests.context import Context
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def handle(
    context: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse | Coroutine[Any, Any, InitProducerIdResponse]:
    """Allocate an id, without waiting if the current block has one."""
    error = _refusal(context, request)
    if error is not None:
        return failed(request, error, context.version)
    producer_id = context.services.producer_ids.try_next()
    return _wait_for_id(context, request) if producer_id is None else _response(producer_id)


async def _wait_for_id(context: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        return _response(await context.services.producer_ids.next())
    except OperatingError:
        # Retriable, whatever the error: nothing was written under any id.
        return failed(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, context.version)


def failed(
    request: InitProducerIdRequest, error: ErrorCode, version: int
) -> InitProducerIdResponse:
    """No id."""
    del request, version
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _response(producer_id: ProducerId) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refusal(context: Context, request: InitProducerIdRequest) -> ErrorCode | None:
    has_id = request.producer_id != NO_PRODUCER_ID
    has_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is None:
        return None
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    timeout_max_ms = context.services.configs.get_int("transaction.max.timeout.ms")
    if not 0 < request.transaction_timeout_ms <= timeout_max_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
