"""IncrementalAlterConfigs (key 44), versions 0-1.

Behaviour: each key of a resource is set, removed, or, where it is a list, added to or cut; the
other keys stay. Resources succeed or fail one by one, a resource as a whole. A resource or a key
that is there twice is INVALID_REQUEST. Topics: an unknown key and a value that cannot be are
INVALID_CONFIG. Brokers (this one, or "" for all): a key that cannot change while the broker runs
and a value that cannot be are INVALID_REQUEST, unknown keys are kept. Keys of Kafka's that have no
effect here are taken as Kafka takes them. Loggers: levels of this process, not kept over a restart;
in a cluster they are set by the broker that was asked, and the rest of the request is the
controller's (`configs/split.py`). Groups: values outside the broker's limits are INVALID_CONFIG;
there need not be such a group. `validate_only` checks everything and changes nothing. v1 flexible
Differs from Kafka: `cordoned.log.dirs` takes no directory; an unknown operation is INVALID_REQUEST,
not UNKNOWN_SERVER_ERROR; settings of client metrics are refused.
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
    # What comes along with a removal says nothing; Kafka passes over it too.
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
