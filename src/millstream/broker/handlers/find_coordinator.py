"""FindCoordinator (key 10), versions 0-6.

Behaviour: a group's coordinator is the leader of its partition of the offsets topic, with its
address on the client's listener. The topic is created with the first request; until it has leaders,
and while the group's partition has none, the answer is COORDINATOR_NOT_AVAILABLE and node -1.
Transactions are not supported yet: CLUSTER_AUTHORIZATION_FAILED, with a message that says so. Key
type 2 (share groups, since version 6) and unknown types are INVALID_REQUEST.
v1 key type and messages · v3 flexible · v4 many keys at once (KIP-699) · v5 TRANSACTION_ABORTABLE
(KIP-890) · v6 share groups (KIP-932).

Where it differs from Kafka: the first request is answered when the offsets topic exists; Kafka
makes the client retry. Share groups are not supported.
"""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from millstream.broker.requests.advertised_brokers import advertised_brokers
from millstream.broker.requests.context import Context
from millstream.controller.views import Node
from millstream.observe.logs import get_logger
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_on_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from millstream.broker.groups.service import GroupService

log = get_logger("millstream.broker.handlers.find_coordinator")

_GROUP: Final = 0
_TRANSACTION: Final = 1
_FIRST_WITH_MANY: Final = 4
_NO_NODE: Final = -1
_NO_PORT: Final = -1
_TOPIC: Final = "__consumer_offsets"
_NO_TRANSACTIONS: Final = "transactions are not supported yet: produce without transactional.id"


def handle(
    context: Context, request: FindCoordinatorRequest
) -> StepGenerator[FindCoordinatorResponse] | Coroutine[Any, Any, FindCoordinatorResponse]:
    """Find the coordinators."""
    groups = context.services.groups
    if request.key_type == _GROUP and groups is not None:
        if _TOPIC not in context.services.image.topics:
            return _after_creation(context, request, groups)
        return _find_steps(context, request, groups)
    return _refuse_steps(context, request)


def _refuse_steps(
    context: Context, request: FindCoordinatorRequest
) -> StepGenerator[FindCoordinatorResponse]:
    """An error for every key: there is no coordinator of this type."""
    error, message = ErrorCode.INVALID_REQUEST, ""
    if request.key_type == _GROUP:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if request.key_type == _TRANSACTION:
        # The one code that ends `init_transactions` at once in librdkafka (which retries forever
        # after most others) and with which Java's producer shows the message.
        error, message = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _NO_TRANSACTIONS
        warning = "a client requested a transaction coordinator: transactions are not supported yet"
        context.services.client_log.warning(log, warning, client=context.peer.client_host)
    found = []
    pace = YieldCounter()
    for key in _keys(request, context.version):
        found.append(_no_coordinator(key, error, message))
        if pace.is_due():
            yield None
    return _response(found, context.version)


async def _after_creation(
    context: Context, request: FindCoordinatorRequest, groups: "GroupService"
) -> FindCoordinatorResponse:
    await groups.topic()
    return await run_on_loop(_find_steps(context, request, groups))


def _find_steps(
    context: Context, request: FindCoordinatorRequest, groups: "GroupService"
) -> StepGenerator[FindCoordinatorResponse]:
    topic = context.services.image.topics.get(_TOPIC)
    nodes = advertised_brokers(context)
    by_id = {int(node.broker_id): node for node in nodes}
    found = []
    pace = YieldCounter()
    for key in _keys(request, context.version):
        node = None
        if topic is not None:
            node = by_id.get(topic.partitions[groups.partition_of(key)].leader)
        found.append(
            _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if node is None
            else _at(key, node)
        )
        if pace.is_due():
            yield None
            topic = context.services.image.topics.get(_TOPIC)
    return _response(found, context.version)


def _keys(request: FindCoordinatorRequest, version: int) -> Sequence[str]:
    return request.coordinator_keys if version >= _FIRST_WITH_MANY else [request.key]


def _at(key: str, node: Node) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=node.broker_id,
        host=node.host,
        port=node.port,
        error_code=ErrorCode.NONE,
        error_message="",
    )


def _no_coordinator(key: str, error: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(
        key=key,
        node_id=_NO_NODE,
        host="",
        port=_NO_PORT,
        error_code=error,
        error_message=message or error.text,
    )


def _response(found: list[Coordinator], version: int) -> FindCoordinatorResponse:
    if version >= _FIRST_WITH_MANY:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def failed(
    request: FindCoordinatorRequest, error: ErrorCode, version: int
) -> FindCoordinatorResponse:
    """The same error for every key."""
    return _response([_no_coordinator(key, error) for key in _keys(request, version)], version)
