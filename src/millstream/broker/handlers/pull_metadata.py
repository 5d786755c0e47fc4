"""PullMetadata (key 31000), version 0. Between brokers; ours, Kafka has nothing of the kind.

Behaviour: the changes since the position in the request, as soon as there are any, or nothing when
the wait time is over. The complete metadata instead of changes for a position of another
controller, or an old one. NOT_CONTROLLER from a broker that is not the controller, with the
controller's id and address, if known. A large answer is requested in chunks; SNAPSHOT_NOT_FOUND if
the rest is gone, and the broker starts again.
"""

from millstream.broker.requests.between_brokers import check_sender
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse


async def handle(context: Context, request: PullMetadataRequest) -> PullMetadataResponse:
    """From the controller in this broker."""
    membership = context.services.membership
    if membership is None:
        return failed(request, ErrorCode.NOT_CONTROLLER, context.version)
    check_sender(context, request.broker_id)
    return await membership.pull_metadata(request)


def failed(request: PullMetadataRequest, error: ErrorCode, version: int) -> PullMetadataResponse:
    """The error of the whole request."""
    del request, version
    return PullMetadataResponse(error_code=error)
