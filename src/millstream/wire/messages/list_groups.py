"""ListGroups (key 16): the groups of one coordinator."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int16, int32, string
from millstream.wire.schema import Message, Struct


class ListGroupsRequest(Message, key=ApiKey.LIST_GROUPS):
    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Message, key=ApiKey.LIST_GROUPS):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
