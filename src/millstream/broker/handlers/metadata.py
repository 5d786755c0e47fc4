"""Metadata (key 3), versions 0-13.

Behaviour: brokers are those with an address on the client's listener. Null topics are all topics
(v0: the empty list), an empty list is none. A topic that does not exist is created if the request
(v4+; before always) and `auto.create.topics.enable` allow it, with `num.partitions` and
`default.replication.factor`; an invalid name is INVALID_TOPIC_EXCEPTION. Authorized operations are
included on request (v8+), all of them while there is no authorizer.
v1 controller, rack, internal topics · v2 cluster id · v5 offline replicas · v6 LISTENER_NOT_FOUND
(before: LEADER_NOT_AVAILABLE) · v7 leader epochs · v9 flexible · v10 topic ids in the answer · v12
and in the request (in 10 and 11 INVALID_REQUEST, as are null names); names are ignored then · v13
error of the whole request.

Where it differs from Kafka: a created topic is in the same answer, with its leaders; Kafka answers
UNKNOWN_TOPIC_OR_PARTITION and creates it later. That is the answer here too if the controller
refuses the topic (too few brokers are registered for its replicas, its name collides with
another's, more than 10 000 would have to be created), and the reason is in the log; retriable
errors keep their code. The topics of the group and transaction coordinators are not created here.
Topics are in the order of the request, all topics sorted by name.

librdkafka requests all topics (v9+) with a null array in four bytes instead of one. Kafka ignores
trailing bytes of a request; here they are an error, except for these three.
"""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from millstream.broker.requests.advertised_brokers import advertised_brokers
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.broker.requests.services import Services
from millstream.broker.requests.topic_changes import is_log_offline, topic_defaults
from millstream.controller.errors import InvalidTopicName, TooManyPartitions
from millstream.controller.image import TopicImage
from millstream.controller.topics import (
    CLUSTER_METADATA_TOPIC,
    NewTopic,
    check_topic_name,
    is_internal,
)
from millstream.controller.views import (
    CLUSTER_OPERATIONS_ALL,
    TOPIC_OPERATIONS_ALL,
    PartitionViews,
    controller_on,
)
from millstream.model.errors import OperatingError
from millstream.model.ids import TopicId
from millstream.model.limits import PARTITIONS_PER_REQUEST_MAX
from millstream.observe.logs import get_logger
from millstream.runtime.scheduler import (
    ITEMS_PER_TURN,
    StepGenerator,
    YieldCounter,
    run_blocking,
    run_on_loop,
)
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

log = get_logger("millstream.broker.handlers.metadata")

AUTO_CREATE: Final = "auto.create.topics.enable"

_FIRST_WITH_TOPIC_IDS: Final = 12
_NO_ID: Final = UUID(int=0)

_FIRST_FLEXIBLE: Final = 9
_LEFT_ROOM: Final = bytes(4)
_LEFT_ROOM_SIZES: Final = (7, 8)
"""Of librdkafka's request: a null array in four bytes, two flags (v9 and 10: three), no tags."""

NoTopics = Mapping[str, ErrorCode]
"""Error codes of topics that could not be created."""


def decode(body: memoryview, version: int) -> MetadataRequest:
    """Decode the request, also in librdkafka's form."""
    has_room_left = len(body) in _LEFT_ROOM_SIZES and body[: len(_LEFT_ROOM)] == _LEFT_ROOM
    if version >= _FIRST_FLEXIBLE and has_room_left:
        body = memoryview(bytes(body[len(_LEFT_ROOM) - 1 :]))
    return MetadataRequest.decode_served(body, version)


def handle(
    context: Context, request: MetadataRequest
) -> StepGenerator[MetadataResponse] | Coroutine[Any, Any, MetadataResponse]:
    """Answer at once, unless topics have to be created first or there are many names."""
    if len(request.topics or ()) > ITEMS_PER_TURN:
        return _after_creation(context, request)
    requested = run_blocking(_wanted_topics_steps(request, context.version))
    if requested is not None and _may_create(context.services, request, requested):
        return _after_creation(context, request)
    return _answer_steps(context, request, requested, {})


def failed(request: MetadataRequest, error: ErrorCode, version: int) -> MetadataResponse:
    """The error for every topic of the request, and from v13 on for the request."""
    del version  # the codec leaves out fields that it does not have
    topics = [
        MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(topics=topics, error_code=error)


class _RequestedTopics(NamedTuple):
    """The topics of a request, each once."""

    is_all: bool
    ids: list[TopicId]
    names: list[str]


def _wanted_topics_steps(
    request: MetadataRequest, version: int
) -> StepGenerator[_RequestedTopics | None]:
    """The requested topics; None for an invalid request. If an id is given, names are ignored."""
    ids: dict[TopicId, None] = {}
    names: dict[str, None] = {}
    pace = YieldCounter()
    for topic in request.topics or ():
        if topic.topic_id != _NO_ID:
            if version < _FIRST_WITH_TOPIC_IDS:
                return None
            ids[TopicId(topic.topic_id)] = None
        elif topic.name is None:
            return None
        if topic.name is not None:
            names[topic.name] = None
        elif version < _FIRST_WITH_TOPIC_IDS:
            return None
        if pace.is_due():
            yield None
    is_all = _requests_all(request, version)
    return _RequestedTopics(is_all, list(ids), [] if ids else list(names))


def _requests_all(request: MetadataRequest, version: int) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


# -- creation ----------------------------------------------------------------------------------


def _may_create(services: Services, request: MetadataRequest, requested: _RequestedTopics) -> bool:
    """Whether topics are missing, and the request and the settings allow creating them."""
    if requested.is_all or not request.allow_auto_topic_creation:
        return False
    topics = services.image.topics
    is_missing = any(name not in topics for name in requested.names)
    return is_missing and services.configs.get_bool(AUTO_CREATE)


def _to_create_steps(services: Services, names: Sequence[str]) -> StepGenerator[list[str]]:
    missing = []
    pace = YieldCounter()
    for name in names:
        if name not in services.image.topics and _may_be_created(name):
            missing.append(name)
        if pace.is_due():
            yield None
    return missing


def _may_be_created(name: str) -> bool:
    return _fault_of(name) is None and not is_internal(name) and name != CLUSTER_METADATA_TOPIC


def _fault_of(name: str) -> ErrorCode | None:
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        return code_of(error)
    return None


async def _after_creation(context: Context, request: MetadataRequest) -> MetadataResponse:
    services = context.services
    requested = await run_on_loop(_wanted_topics_steps(request, context.version))
    failures: dict[str, ErrorCode] = {}
    if requested is not None and _may_create(services, request, requested):
        missing = await run_on_loop(_to_create_steps(services, requested.names))
        failures = _codes_for_clients(context, await _create(services, missing)) if missing else {}
    return await run_on_loop(_answer_steps(context, request, requested, failures))


async def _create(services: Services, missing: Sequence[str]) -> dict[str, ErrorCode]:
    """Create the topics; the error codes of those that could not be created."""
    failures: dict[str, ErrorCode] = {}
    try:
        if len(missing) > PARTITIONS_PER_REQUEST_MAX:
            raise TooManyPartitions(requested=len(missing), limit=PARTITIONS_PER_REQUEST_MAX)
        wanted = [NewTopic(name=name) for name in missing]
        if services.membership is not None:
            return await services.membership.create_missing(wanted)
        created = await services.controller.create_topics(wanted, defaults=topic_defaults(services))
    except OperatingError as error:
        return dict.fromkeys(missing, code_of(error))
    for name, outcome in zip(missing, created, strict=True):
        # If another client was faster the topic exists, and the answer has no error.
        if isinstance(outcome, OperatingError):
            failures[name] = code_of(outcome)
    return failures


def _codes_for_clients(context: Context, failures: NoTopics) -> dict[str, ErrorCode]:
    """Errors that are not retriable become UNKNOWN_TOPIC_OR_PARTITION.

    They would end consumers and producers that Kafka keeps waiting for their topic.
    """
    refused = {code: name for name, code in failures.items() if not code.is_retriable}
    for code, name in refused.items():  # one of each: there may be thousands
        message = "automatic creation of a topic failed"
        context.services.client_log.warning(
            log, message, client=context.peer.client_host, topic=name, reason=code.text
        )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {name: unknown if code in refused else code for name, code in failures.items()}


# -- the answer --------------------------------------------------------------------------------


def _answer_steps(
    context: Context,
    request: MetadataRequest,
    requested: _RequestedTopics | None,
    failures: NoTopics,
) -> StepGenerator[MetadataResponse]:
    if requested is None:
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    services, version = context.services, context.version
    image, listener = services.image, context.peer.listener
    nodes = advertised_brokers(context)
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in nodes
        ],
        cluster_id=image.cluster_id,
        controller_id=controller_on(image, nodes),
    )
    views = PartitionViews(image, listener, version=version)
    unknown: list[MetadataResponseTopic] = []
    names = requested.names
    if requested.is_all:
        names = sorted(image.topics)
    elif requested.ids:
        ids = requested.ids
        unknown = [_unknown_id(one) for one in ids if one not in image.topics_by_id]
        names = [image.topics_by_id[one].name for one in ids if one in image.topics_by_id]
    topics = []
    pace = YieldCounter()
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            shown = _missing(name, failures)
        else:
            shown = yield from _shown_topic_steps(services, topic, views, pace)
        if request.include_topic_authorized_operations:
            shown.topic_authorized_operations = TOPIC_OPERATIONS_ALL
        topics.append(shown)
        if pace.is_due():
            yield None
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS_ALL
    response.topics = unknown + topics
    return response


def _missing(name: str, failures: NoTopics) -> MetadataResponseTopic:
    error = failures.get(name) or _fault_of(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return MetadataResponseTopic(error_code=error, name=name, is_internal=is_internal(name))


def _unknown_id(topic_id: TopicId) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id
    )


def _shown_topic_steps(
    services: Services, topic: TopicImage, views: PartitionViews, pace: YieldCounter
) -> StepGenerator[MetadataResponseTopic]:
    partitions = []
    for one in topic.partitions:
        if pace.is_due():
            yield None
        view = views.of(one, is_log_offline=is_log_offline(services, topic, one))
        partitions.append(
            MetadataResponsePartition(
                error_code=view.error,
                partition_index=one.index,
                leader_id=view.leader,
                leader_epoch=one.leader_epoch,
                replica_nodes=view.replicas,
                isr_nodes=view.isr,
                offline_replicas=view.offline,
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=partitions,
    )
