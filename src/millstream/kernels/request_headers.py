"""From which version on each API's requests have a flexible header (tagged fields), by API key.

The connection core must know where a header ends before it looks up the API. The message
catalogue in `wire/` says the same; a test compares the two.
"""

from typing import Final

NEVER: Final = 32_767
"""Above every version: the header has no tagged fields."""

# fmt: off
FLEXIBLE_FROM: Final = (
    # Produce, Fetch, ListOffsets, Metadata; 4-7 were brokers' own until Kafka 3
    9, 12, 6, 9, 4, 2, 6, 3,
    # OffsetCommit, OffsetFetch, FindCoordinator, JoinGroup, Heartbeat, LeaveGroup, SyncGroup
    8, 6, 3, 6, 4, 4, 4,
    # DescribeGroups, ListGroups, SaslHandshake, ApiVersions, CreateTopics, DeleteTopics
    5, 3, NEVER, 3, 5, 4,
    # DeleteRecords, InitProducerId, OffsetForLeaderEpoch, AddPartitionsToTxn, AddOffsetsToTxn
    2, 2, 4, 3, 3,
    # EndTxn, WriteTxnMarkers, TxnOffsetCommit, DescribeAcls, CreateAcls, DeleteAcls
    3, 1, 3, 2, 2, 2,
    # DescribeConfigs, AlterConfigs, AlterReplicaLogDirs, DescribeLogDirs, SaslAuthenticate
    4, 2, 2, 2, 2,
    # CreatePartitions, four of delegation tokens, DeleteGroups, ElectLeaders
    2, 2, 2, 2, 2, 2, 2,
    # IncrementalAlterConfigs, two of reassignments, OffsetDelete, two of client quotas
    1, 0, 0, NEVER, 1, 1,
    # Two of SCRAM credentials, Vote, BeginQuorumEpoch, EndQuorumEpoch
    0, 0, 0, 1, 1,
)
# fmt: on
"""All APIs behind the last one are flexible from version 0 on."""
