"""IncrementalAlterConfigs (key 44), versions 0-1.

Behaviour: each key of a resource is set, removed, or, where it is a list, added to or cut; the
other keys stay. Resources succeed or fail one by one, a resource as a whole. A resource or a key
that is there twice is INVALID_REQUEST, an unknown key INVALID_CONFIG. Topics: a value that cannot
be is INVALID_CONFIG. Brokers (this one, or "" for all): a key that cannot change while the broker
runs and a value that cannot be are INVALID_REQUEST. Loggers: levels of this process, not kept over
a restart. `validate_only` checks everything and changes nothing.
v1 flexible
Differs from Kafka: a key that would have no effect here is refused, which for brokers includes
keys that nobody knows; an unknown operation is INVALID_REQUEST, not UNKNOWN_SERVER_ERROR; settings
of groups and client metrics are refused.
"""

from collections.abc import Sequence
from typing import Final

from millstream.broker.config_changes import (
    KeyChange,
    Operation,
    Outcome,
    ResourceChange,
    alter_resources,
)
from millstream.broker.context import Context
from millstream.runtime.turns import Pace, Steps, on_the_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

VERSIONS: Final = range(2)


async def handle(
    context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change single settings of topics, brokers and loggers."""
    changes = await on_the_loop(_changes(request))
    outcomes = await alter_resources(context, changes, validate_only=request.validate_only)
    return await on_the_loop(_answering(request, outcomes))


def _changes(request: IncrementalAlterConfigsRequest) -> Steps[list[ResourceChange]]:
    changes = []
    pace = Pace()
    for one in request.resources:
        keys = [_key_change(config) for config in one.configs]
        changes.append(ResourceChange(one.resource_type, one.resource_name, keys, is_whole=False))
        if pace.is_due(1 + len(keys)):
            yield None
    return changes


def _answering(
    request: IncrementalAlterConfigsRequest, outcomes: Sequence[Outcome]
) -> Steps[IncrementalAlterConfigsResponse]:
    response = IncrementalAlterConfigsResponse()
    pace = Pace()
    for one, outcome in zip(request.resources, outcomes, strict=True):
        response.responses.append(
            AlterConfigsResourceResponse(
                error_code=outcome.code,
                error_message=outcome.text,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
        )
        if pace.is_due():
            yield None
    return response


def _key_change(config: AlterableConfig) -> KeyChange:
    # What comes along with a removal says nothing; Kafka passes over it too.
    is_removal = config.config_operation == Operation.DELETE
    return KeyChange(config.name, config.config_operation, None if is_removal else config.value)


def failed(
    request: IncrementalAlterConfigsRequest, error: ErrorCode, version: int
) -> IncrementalAlterConfigsResponse:
    """The same error for every resource."""
    del version
    responses = [
        AlterConfigsResourceResponse(
            error_code=error,
            error_message=error.text,
            resource_type=one.resource_type,
            resource_name=one.resource_name,
        )
        for one in request.resources
    ]
    return IncrementalAlterConfigsResponse(responses=responses)
