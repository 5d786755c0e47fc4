"""RemoveRaftVoter (key 81): one voter of the metadata quorum less."""

from uuid import UUID

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import int16, int32, string, uuid
from millstream.wire.schema import Message


class RemoveRaftVoterRequest(Message, key=ApiKey.REMOVE_RAFT_VOTER):
    cluster_id: str | None = string(nullable="0+")
    voter_id: int = int32()
    voter_directory_id: UUID = uuid()


class RemoveRaftVoterResponse(Message, key=ApiKey.REMOVE_RAFT_VOTER):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", ignorable=True)
