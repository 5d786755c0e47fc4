"""DescribeClientQuotas (key 48): the quotas of users, clients and addresses."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, float64, int8, int16, int32, string
from millstream.wire.schema import Message, Struct


class ComponentData(Struct):
    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable="0+")


class DescribeClientQuotasRequest(Message, key=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class ValueData(Struct):
    key: str = string()
    value: float = float64()


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


class DescribeClientQuotasResponse(Message, key=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entries: list[EntryData] | None = array(EntryData, nullable="0+")
