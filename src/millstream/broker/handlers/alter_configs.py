"""AlterConfigs (key 33), versions 0-2.

Behaviour: the keys given replace all settings of a resource; every other key returns to its
default. Otherwise as IncrementalAlterConfigs, which replaced it, without loggers.
v2 flexible
Differs from Kafka: as IncrementalAlterConfigs.
"""

from millstream.broker.configs.changes import KeyChange, Operation
from millstream.broker.configs.requests import all_failed, alter, change_steps
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all settings of topics and brokers."""
    changes = change_steps(request.resources, _keys_of, is_whole=True)
    answers = await alter(
        context, changes, AlterConfigsResourceResponse, validate_only=request.validate_only
    )
    return AlterConfigsResponse(responses=answers)


def _keys_of(resource: AlterConfigsResource) -> list[KeyChange]:
    return [KeyChange(config.name, Operation.SET, config.value) for config in resource.configs]


def failed(request: AlterConfigsRequest, error: ErrorCode, version: int) -> AlterConfigsResponse:
    """The same error for every resource."""
    del version
    return AlterConfigsResponse(
        responses=all_failed(request.resources, error, AlterConfigsResourceResponse)
    )
