"""DescribeGroups (key 15): state and members of classic groups."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, blob, boolean, int16, int32, string
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message, Struct


class DescribeGroupsRequest(Message, key=ApiKey.DESCRIBE_GROUPS):
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean("3+")


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: Bytes = blob()
    member_assignment: Bytes = blob()


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32("3+", default=-(2**31))


class DescribeGroupsResponse(Message, key=ApiKey.DESCRIBE_GROUPS):
    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)
