"""Ids and counters as types of their own, so that two of them are never mixed up."""

from typing import Final, NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
TimestampMs = NewType("TimestampMs", int)
"""Wall-clock milliseconds since 1970, as records carry them."""
BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
TopicId = NewType("TopicId", UUID)
SessionId = NewType("SessionId", int)
"""Of a session with the coordination service; 0 is none."""
Zxid = NewType("Zxid", int)
"""The number of a change in the coordination service: later changes have larger ones."""
GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
InstanceId = NewType("InstanceId", str)
"""Of a static member of a group: it stays the same over restarts."""
GenerationId = NewType("GenerationId", int)
"""Counts the rebalances of a classic group."""
MemberEpoch = NewType("MemberEpoch", int)
"""How far a member of a next-generation group has come in taking over assignments."""

NO_OFFSET: Final = Offset(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = Sequence(-1)
NO_TIMESTAMP: Final = TimestampMs(-1)
NO_BROKER_EPOCH: Final = BrokerEpoch(-1)
NO_SESSION: Final = SessionId(0)
NO_GENERATION: Final = GenerationId(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
