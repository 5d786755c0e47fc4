"""PullMetadata (key 31000), version 0. Between brokers; ours, Kafka has nothing of the kind.

Behaviour: what is new since the position in the request, as soon as there is something, or nothing
when the time is over. Everything comes, not what changed, to who has another controller's position
or an old one. NOT_CONTROLLER from a broker that is not, with who is and where, if it knows. An
answer of several pieces is asked for piece by piece; SNAPSHOT_NOT_FOUND when the rest is gone, and
the broker begins anew.
"""

from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse


async def handle(context: Context, request: PullMetadataRequest) -> PullMetadataResponse:
    """From the controller in this broker."""
    membership = context.services.membership
    if membership is None:
        return failed(request, ErrorCode.NOT_CONTROLLER, context.version)
    return await membership.pulled(request)


def failed(request: PullMetadataRequest, error: ErrorCode, version: int) -> PullMetadataResponse:
    """The error alone."""
    del request, version
    return PullMetadataResponse(error_code=error)
