"""ListConfigResources (key 74): names of the resources that can be configured."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int8, int16, int32, string
from millstream.wire.schema import Message, Struct


class ListConfigResourcesRequest(Message, key=ApiKey.LIST_CONFIG_RESOURCES):
    resource_types: list[int] = array(int8, "1+")


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Message, key=ApiKey.LIST_CONFIG_RESOURCES):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
