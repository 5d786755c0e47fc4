"""BrokerHeartbeat (key 63): a broker reports to the controller that it is alive, and its state."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, int16, int32, int64, uuid
from millstream.wire.schema import Message


class BrokerHeartbeatRequest(Message, key=ApiKey.BROKER_HEARTBEAT):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: list[UUID] = array(uuid, "1+", tag=0)
    cordoned_log_dirs: list[UUID] | None = array(uuid, "2+", nullable="2+", default=None, tag=1)


class BrokerHeartbeatResponse(Message, key=ApiKey.BROKER_HEARTBEAT):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()
