"""BrokerHeartbeat (key 63), versions 0-1. Between brokers.

Behaviour: only for controlled shutdown: with `want_shut_down` the controller moves the broker's
leaderships and removes it from every ISR, and `should_shut_down` says that nothing is left to be
moved; else the broker sends it again. STALE_BROKER_EPOCH for an earlier incarnation, NOT_CONTROLLER
from a broker that is not the controller. Whether a broker is alive is known by its session with the
coordination service and not by heartbeats, so none are sent without `want_shut_down`; such a one is
answered with the broker's state.
v1 offline log directories, which are ignored: a broker reports lost replicas with
AssignReplicasToDirs.
"""

from millstream.broker.requests.between_brokers import check_sender
from millstream.broker.requests.context import Context
from millstream.controller.cluster.errors import NotController, StaleBrokerEpoch
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)


async def handle(context: Context, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
    """Move the leaderships away if requested."""
    membership = context.services.membership
    if membership is None:
        raise NotController
    check_sender(context, request.broker_id)
    controller = membership.active()
    broker_id, epoch = BrokerId(request.broker_id), BrokerEpoch(request.broker_epoch)
    is_done = False
    if request.want_shut_down:
        is_done = await controller.shut_down(broker_id, epoch)
    known = controller.image.brokers.get(broker_id)
    if known is None or known.epoch != epoch:
        raise StaleBrokerEpoch(broker_id, epoch)
    return BrokerHeartbeatResponse(
        is_caught_up=True, is_fenced=known.is_fenced, should_shut_down=is_done
    )


def failed(
    request: BrokerHeartbeatRequest, error: ErrorCode, version: int
) -> BrokerHeartbeatResponse:
    """The error of the whole request."""
    del request, version
    return BrokerHeartbeatResponse(error_code=error)
