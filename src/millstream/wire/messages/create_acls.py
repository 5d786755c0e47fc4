"""CreateAcls (key 30): new access rules."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int8, int16, int32, string
from millstream.wire.schema import Message, Struct


class AclCreation(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8("1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(Message, key=ApiKey.CREATE_ACLS):
    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class CreateAclsResponse(Message, key=ApiKey.CREATE_ACLS):
    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)
