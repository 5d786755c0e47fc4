"""DeleteGroups (key 42): remove groups without members."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, string
from millstream.wire.schema import Message, Struct


class DeleteGroupsRequest(Message, key=ApiKey.DELETE_GROUPS):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, key=ApiKey.DELETE_GROUPS):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
