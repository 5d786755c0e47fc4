"""Envelope (key 58), version 0. Between brokers.

Behaviour: serves a client's request that another broker forwards; the answer contains the client's
answer with its header. NOT_CONTROLLER from a broker that is not the controller, or no longer is
when the request has been served: the other broker tries the next controller then. INVALID_REQUEST
for malformed requests, and for APIs that are not forwarded. The principal is ignored while there is
no authentication.
"""

from typing import Final

from millstream.broker.cluster.forwarding import FORWARDED
from millstream.broker.requests.context import Context, RequestFacts
from millstream.broker.requests.response_collector import CollectingPeer, RequestRefused
from millstream.observe.logs import get_logger
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import RequestHeader, decode_request_header
from millstream.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from millstream.wire.primitives import MalformedFrame

ADDRESS_BYTES_MAX: Final = 64
"""An IPv6 address as text, with some margin."""

log = get_logger("millstream.broker.envelope")


async def handle(context: Context, request: EnvelopeRequest) -> EnvelopeResponse:
    """Serve the request inside."""
    services, membership = context.services, context.services.membership
    if membership is not None and not membership.is_active:
        return failed(request, ErrorCode.NOT_CONTROLLER, context.version)
    data = memoryview(request.request_data)
    try:
        header, begin = decode_request_header(data)
    except MalformedFrame as error:
        context.services.client_log.warning(
            log,
            "envelope without a request",
            client=_client_host(request),
            forwarded_by=context.peer.proven_broker,
            reason=str(error),
        )
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    if header.api_key not in FORWARDED:
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    peer = context.peer
    collecting = CollectingPeer(
        listener=peer.listener, client_host=_client_host(request), local_host=peer.local_host
    )
    services.responder.serve(collecting, _facts(context, header, len(data)), data[begin:])
    try:
        # NotController is passed on: the dispatcher answers with `failed`.
        return EnvelopeResponse(response_data=await collecting.response)
    except RequestRefused as error:
        context.services.client_log.warning(
            log,
            "forwarded request refused",
            client=collecting.client_host,
            forwarded_by=peer.proven_broker,
            api=header.api_key.name,
            reason=str(error),
        )
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)


def failed(request: EnvelopeRequest, error: ErrorCode, version: int) -> EnvelopeResponse:
    """The error of the whole request."""
    del request, version
    return EnvelopeResponse(response_data=None, error_code=error)


def _facts(context: Context, header: RequestHeader, size_bytes: int) -> RequestFacts:
    return RequestFacts(
        api_key=header.api_key,
        version=header.api_version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
        number=0,
        received_us=context.facts.received_us,
        bytes_in=size_bytes,
    )


def _client_host(request: EnvelopeRequest) -> str:
    return bytes(request.client_host_address[:ADDRESS_BYTES_MAX]).decode("utf-8", "replace")
