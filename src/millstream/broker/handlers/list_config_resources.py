"""ListConfigResources (key 74), versions 0-1.

Behaviour: version 0 lists client metrics, of which there are none. Version 1 lists the requested
types, all if none is given: topics, brokers, their loggers, client metrics and the groups that have
settings; a type that does not exist is UNSUPPORTED_VERSION.
v0 only client metrics (ListClientMetricsResources then) · v1 all types · flexible from 0
Differs from Kafka: client metrics have no settings and are not listed.
"""

from collections.abc import Iterator

from millstream.broker.configs.group_configs import groups_in
from millstream.broker.requests.context import Context
from millstream.model.config.resources import ResourceType
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(
    context: Context, request: ListConfigResourcesRequest
) -> StepGenerator[ListConfigResourcesResponse]:
    """List the resources that can have settings."""
    known = {ResourceType.CLIENT_METRICS} if context.version == 0 else set(ResourceType)
    wanted = set(request.resource_types) or known
    if not wanted <= known:
        return failed(request, ErrorCode.UNSUPPORTED_VERSION, context.version)
    response = ListConfigResourcesResponse()
    pace = YieldCounter()
    for one in _resources(context, wanted):
        response.config_resources.append(one)
        if pace.is_due():
            yield None
    return response


def failed(
    request: ListConfigResourcesRequest, error: ErrorCode, version: int
) -> ListConfigResourcesResponse:
    """The error of the whole request."""
    del request, version
    return ListConfigResourcesResponse(error_code=error)


def _resources(context: Context, wanted: set[int] | set[ResourceType]) -> Iterator[ConfigResource]:
    image = context.services.image
    if ResourceType.TOPIC in wanted:
        for name in sorted(image.topics):
            yield ConfigResource(resource_name=name, resource_type=ResourceType.TOPIC)
    for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        if kind in wanted:
            for broker_id in sorted(image.brokers):
                yield ConfigResource(resource_name=str(broker_id), resource_type=kind)
    if ResourceType.GROUP in wanted:
        for name in groups_in(image):
            yield ConfigResource(resource_name=name, resource_type=ResourceType.GROUP)
