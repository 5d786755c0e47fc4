"""AddRaftVoter (key 80): a new voter of the metadata quorum."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, boolean, int16, int32, string, uint16, uuid
from millstream.wire.schema import Message, Struct


class Listener(Struct):
    name: str = string()
    host: str = string()
    port: int = uint16()


class AddRaftVoterRequest(Message, key=ApiKey.ADD_RAFT_VOTER):
    cluster_id: str | None = string(nullable="0+")
    timeout_ms: int = int32()
    voter_id: int = int32()
    voter_directory_id: UUID = uuid()
    listeners: list[Listener] = array(Listener)
    ack_when_committed: bool = boolean("1+", default=True)


class AddRaftVoterResponse(Message, key=ApiKey.ADD_RAFT_VOTER):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", ignorable=True)
