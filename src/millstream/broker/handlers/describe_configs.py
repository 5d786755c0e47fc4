"""DescribeConfigs (key 32), versions 1-4.

Behaviour: every setting of a topic or of this broker with its value, type, source, and on request
its synonyms and documentation; for the broker "" the defaults set for all brokers; for loggers the
levels of this process. Unknown keys are left out. An unknown topic is UNKNOWN_TOPIC_OR_PARTITION,
another broker's id INVALID_REQUEST; a resource type that does not exist is INVALID_REQUEST for the
whole request. Values of passwords are null.
v1 synonyms · v3 types and documentation · v4 flexible
A group has settings whether or not the group exists.
Differs from Kafka: keys without effect are described only if they are set; client metrics have no
settings.
"""

from typing import Final

from millstream.broker.configs.changes import check_broker_name
from millstream.broker.configs.entries import ConfigEntry, ConfigSource
from millstream.broker.configs.group_configs import configs_of
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.controller.errors import UnknownTopic
from millstream.controller.topics import check_topic_name
from millstream.model.config.errors import InvalidConfigRequest
from millstream.model.config.resources import ResourceType
from millstream.model.errors import OperatingError
from millstream.observe import logs
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

ENTRIES_PER_TURN: Final = 200
"""Settings described per step, between which others are served."""


def handle(
    context: Context, request: DescribeConfigsRequest
) -> StepGenerator[DescribeConfigsResponse]:
    """Describe the settings of topics, brokers, loggers and groups."""
    known = set(ResourceType)
    if any(one.resource_type not in known for one in request.resources):
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    # Each resource once: a small request must not cause an answer thousands of times its size.
    wanted = {(one.resource_type, one.resource_name): one for one in request.resources}
    response = DescribeConfigsResponse()
    pace = YieldCounter(ENTRIES_PER_TURN)
    for one in wanted.values():
        result = _result(context, one, request)
        response.results.append(result)
        if pace.is_due(1 + len(result.configs)):
            yield None
    return response


def failed(
    request: DescribeConfigsRequest, error: ErrorCode, version: int
) -> DescribeConfigsResponse:
    """The same error for every resource."""
    del version
    results = [
        DescribeConfigsResult(
            error_code=error,
            error_message=error.text,
            resource_type=one.resource_type,
            resource_name=one.resource_name,
        )
        for one in request.resources
    ]
    return DescribeConfigsResponse(results=results)


def _result(
    context: Context, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            result.configs = _loggers(context, resource)
        else:
            entries = _entries(context, resource)
            result.configs = [_described(entry, request) for entry in entries]
    except OperatingError as error:
        result.error_code = code_of(error)
        result.error_message = text_of(error)
    return result


def _entries(context: Context, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    services = context.services
    name, keys = resource.resource_name, resource.configuration_keys
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        topic = services.image.topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return services.configs.describe_topic(topic.configs, keys)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return services.configs.describe_default(keys)
        check_broker_name(name, services.broker_id)
        return services.configs.describe_broker(keys)
    if not name:
        raise InvalidConfigRequest("the resource has no name")
    if resource.resource_type == ResourceType.GROUP:
        return services.configs.describe_group(configs_of(services.image, name), keys)
    return []


def _described(
    entry: ConfigEntry, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    key = entry.key
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in entry.synonyms
        ]
    return DescribeConfigsResourceResult(
        name=key.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=key.is_sensitive,
        synonyms=synonyms,
        config_type=key.type,
        documentation=key.documentation if request.include_documentation else None,
    )


def _loggers(
    context: Context, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    check_broker_name(resource.resource_name, context.services.broker_id)
    wanted = resource.configuration_keys
    return [
        DescribeConfigsResourceResult(
            name=name, value=level, config_source=ConfigSource.DYNAMIC_BROKER_LOGGER
        )
        for name, level in logs.logger_levels().items()
        if not wanted or name in wanted
    ]
