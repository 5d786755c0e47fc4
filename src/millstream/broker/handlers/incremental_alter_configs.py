"""IncrementalAlterConfigs (key 44), versions 0-1.

Behaviour: each key of a resource is set, deleted, or, if it is a list, appended to or subtracted
from; the other keys stay. Resources succeed or fail one by one, a resource as a whole. A resource
or a key that is named twice is INVALID_REQUEST. Topics: an unknown key and an invalid value are
INVALID_CONFIG. Brokers (this one, or "" for all): a read-only key and an invalid value are
INVALID_REQUEST, unknown keys are stored. Kafka's keys without effect are accepted as in Kafka.
Loggers: levels of this process, lost with a restart; in a cluster they are set on the broker that
gets the request, and the rest of the request is forwarded to the controller (`configs/split.py`).
Groups: values outside the broker's limits are INVALID_CONFIG; the group need not exist.
`validate_only` checks everything and changes nothing.
v1 flexible
Differs from Kafka: `cordoned.log.dirs` must be empty; an unknown operation is INVALID_REQUEST, not
UNKNOWN_SERVER_ERROR; settings of client metrics are refused.
"""

from millstream.broker.configs.changes import KeyChange, Operation
from millstream.broker.configs.requests import all_failed, alter, change_steps
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change single settings of topics, brokers, loggers and groups."""
    changes = change_steps(request.resources, _keys_of, is_whole=False)
    answers = await alter(
        context, changes, AlterConfigsResourceResponse, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(responses=answers)


def _keys_of(resource: AlterConfigsResource) -> list[KeyChange]:
    return [_key_change(config) for config in resource.configs]


def _key_change(config: AlterableConfig) -> KeyChange:
    # The value of a deletion is ignored, as in Kafka.
    is_removal = config.config_operation == Operation.DELETE
    return KeyChange(config.name, config.config_operation, None if is_removal else config.value)


def failed(
    request: IncrementalAlterConfigsRequest, error: ErrorCode, version: int
) -> IncrementalAlterConfigsResponse:
    """The same error for every resource."""
    del version
    return IncrementalAlterConfigsResponse(
        responses=all_failed(request.resources, error, AlterConfigsResourceResponse)
    )
