"""AlterConfigs (key 33), versions 0-2.

Behaviour: the keys given are all that a resource has afterwards; every other one goes back to its
default. Otherwise as IncrementalAlterConfigs, which replaced it, without loggers.
v2 flexible
Differs from Kafka: as IncrementalAlterConfigs.
"""

from typing import Final

from millstream.broker.config_changes import KeyChange, Operation, ResourceChange, alter_resources
from millstream.broker.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

VERSIONS: Final = range(3)


async def handle(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all settings of topics and brokers."""
    changes = [
        ResourceChange(
            one.resource_type,
            one.resource_name,
            [KeyChange(config.name, Operation.SET, config.value) for config in one.configs],
            is_whole=True,
        )
        for one in request.resources
    ]
    outcomes = await alter_resources(context, changes, validate_only=request.validate_only)
    responses = [
        AlterConfigsResourceResponse(
            error_code=outcome.code,
            error_message=outcome.text,
            resource_type=one.resource_type,
            resource_name=one.resource_name,
        )
        for one, outcome in zip(request.resources, outcomes, strict=True)
    ]
    return AlterConfigsResponse(responses=responses)


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
