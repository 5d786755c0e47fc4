"""AlterClientQuotas (key 49): set or remove quotas."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, float64, int16, int32, string
from millstream.wire.schema import Message, Struct


class RequestEntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class OpData(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class RequestEntryData(Struct):
    entity: list[RequestEntityData] = array(RequestEntityData)
    ops: list[OpData] = array(OpData)


class AlterClientQuotasRequest(Message, key=ApiKey.ALTER_CLIENT_QUOTAS):
    entries: list[RequestEntryData] = array(RequestEntryData)
    validate_only: bool = boolean()


class ResponseEntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class ResponseEntryData(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: list[ResponseEntityData] = array(ResponseEntityData)


class AlterClientQuotasResponse(Message, key=ApiKey.ALTER_CLIENT_QUOTAS):
    throttle_time_ms: int = int32()
    entries: list[ResponseEntryData] = array(ResponseEntryData)
