"""PullMetadata (key 31000): a broker pulls metadata from the controller. Ours, not Kafka's.

The response is a snapshot, or the delta since the position in the request. It is split into chunks,
so that neither side is busy for long with one of them: the first response has their number, the
others are requested by their index.
"""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, int16, int32, int64, string, uuid
from millstream.wire.schema import Message, Struct


class PullMetadataRequest(Message, key=ApiKey.PULL_METADATA):
    broker_id: int = int32()
    controller_epoch: int = int32(default=-1)
    """With `version`: the broker's position."""
    version: int = int64(default=-1)
    max_wait_ms: int = int32()
    transfer_id: int = int64()
    """Of a response whose further chunks are requested; 0 for a new one."""
    chunk: int = int32()


class PulledEndpoint(Struct):
    listener: str = string()
    host: str = string()
    port: int = int32()
    security_protocol: str = string()


class PulledBroker(Struct):
    broker_id: int = int32()
    epoch: int = int64()
    rack: str | None = string(nullable="0+", default=None)
    is_fenced: bool = boolean()
    is_leaving: bool = boolean()
    endpoints: list[PulledEndpoint] = array(PulledEndpoint)


class PulledSetting(Struct):
    name: str = string()
    value: str = string()


class PulledBrokerSettings(Struct):
    broker: str = string()
    """Its id as text; empty for the settings of all."""
    settings: list[PulledSetting] = array(PulledSetting)


class PulledPartition(Struct):
    index: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    partition_epoch: int = int32()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)
    elr: list[int] = array(int32)
    last_known_leader: int = int32(default=-1)
    adding: list[int] = array(int32)
    removing: list[int] = array(int32)
    lost: list[int] = array(int32, tag=0)
    full: list[int] = array(int32, tag=1)


class PulledTopic(Struct):
    name: str = string()
    topic_id: UUID = uuid()
    partition_count: int = int32()
    settings: list[PulledSetting] = array(PulledSetting)
    partitions: list[PulledPartition] = array(PulledPartition)
    """New or changed ones in this chunk."""


class PullMetadataResponse(Message, key=ApiKey.PULL_METADATA):
    error_code: int = int16()
    controller_id: int = int32(default=-1)
    cluster_id: str = string()
    controller_epoch: int = int32(default=-1)
    version: int = int64(default=-1)
    is_snapshot: bool = boolean()
    transfer_id: int = int64()
    chunk: int = int32()
    chunk_count: int = int32()
    """0: nothing has changed."""
    deleted_topics: list[UUID] = array(uuid)
    brokers: list[PulledBroker] | None = array(PulledBroker, nullable="0+", default=None)
    """Null if they have not changed; otherwise all of them, in the first chunk."""
    broker_settings: list[PulledBrokerSettings] | None = array(
        PulledBrokerSettings, nullable="0+", default=None
    )
    topics: list[PulledTopic] = array(PulledTopic)
    controller_endpoints: list[PulledEndpoint] = array(PulledEndpoint, tag=0)
    """With NOT_CONTROLLER: the endpoints of `controller_id`, from a broker that knows them."""
