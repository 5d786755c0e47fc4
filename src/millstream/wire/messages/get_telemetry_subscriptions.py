"""GetTelemetrySubscriptions (key 71): which metrics a client should push."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, int8, int16, int32, string, uuid
from millstream.wire.schema import Message


class GetTelemetrySubscriptionsRequest(Message, key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS):
    client_instance_id: UUID = uuid()


class GetTelemetrySubscriptionsResponse(Message, key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array(int8)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array(string)
