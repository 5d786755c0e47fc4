"""BrokerRegistration (key 62): a starting broker makes itself known to the controller."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, int16, int32, int64, string, uint16, uuid
from millstream.wire.schema import Message, Struct


class Listener(Struct):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class Feature(Struct):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class BrokerRegistrationRequest(Message, key=ApiKey.BROKER_REGISTRATION):
    broker_id: int = int32()
    cluster_id: str = string()
    incarnation_id: UUID = uuid()
    listeners: list[Listener] = array(Listener)
    features: list[Feature] = array(Feature)
    rack: str | None = string(nullable="0+")
    is_migrating_zk_broker: bool = boolean("1+")
    log_dirs: list[UUID] = array(uuid, "2+", ignorable=True)
    previous_broker_epoch: int = int64("3+", default=-1, ignorable=True)


class BrokerRegistrationResponse(Message, key=ApiKey.BROKER_REGISTRATION):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    broker_epoch: int = int64(default=-1)
