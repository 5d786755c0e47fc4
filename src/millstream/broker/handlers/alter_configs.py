"""AlterConfigs (key 33), versions 0-2.

Behaviour: the keys given are all that a resource has afterwards; every other one goes back to its
default. Otherwise as IncrementalAlterConfigs, which replaced it, without loggers.
v2 flexible
Differs from Kafka: as IncrementalAlterConfigs.
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
from millstream.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

VERSIONS: Final = range(3)


async def handle(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all settings of topics and brokers."""
    changes = await on_the_loop(_changes(request))
    outcomes = await alter_resources(context, changes, validate_only=request.validate_only)
    return await on_the_loop(_answering(request, outcomes))


def _changes(request: AlterConfigsRequest) -> Steps[list[ResourceChange]]:
    changes = []
    pace = Pace()
    for one in request.resources:
        keys = [KeyChange(config.name, Operation.SET, config.value) for config in one.configs]
        changes.append(ResourceChange(one.resource_type, one.resource_name, keys, is_whole=True))
        if pace.is_due(1 + len(keys)):
            yield None
    return changes


def _answering(
    request: AlterConfigsRequest, outcomes: Sequence[Outcome]
) -> Steps[AlterConfigsResponse]:
    response = AlterConfigsResponse()
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


def failed(request: AlterConfigsRequest, error: ErrorCode, version: int) -> AlterConfigsResponse:
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
    return AlterConfigsResponse(responses=responses)
