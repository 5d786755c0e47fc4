"""PushTelemetry (key 72): metrics of a client."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import blob, boolean, int8, int16, int32, uuid
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message


class PushTelemetryRequest(Message, key=ApiKey.PUSH_TELEMETRY):
    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: Bytes = blob()


class PushTelemetryResponse(Message, key=ApiKey.PUSH_TELEMETRY):
    throttle_time_ms: int = int32()
    error_code: int = int16()
