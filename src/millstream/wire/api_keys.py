"""Kafka's APIs: their numbers, and the versions our catalogue holds of each.

The table is here and not in the message modules, so that headers can be read and versions
compared without importing any of them.
"""

from enum import IntEnum
from typing import Final, NamedTuple


class ApiKey(IntEnum):
    """Every API of Kafka 4.3, also those that no broker serves any more, and our own."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    PULL_METADATA = 31_000
    """Ours; see `OWN_KEYS`."""
    AUTHENTICATE_BROKER = 31_001
    """Ours, too."""


OWN_KEYS: Final = frozenset({ApiKey.PULL_METADATA, ApiKey.AUTHENTICATE_BROKER})
"""APIs between our own brokers that Kafka does not have, with numbers that it will not use for
long. ApiVersions advertises them with the others. Clients ignore keys they do not know: Java keeps
them separately, librdkafka never looks them up, franz-go drops those beyond its own."""


class Api(NamedTuple):
    """One row of the catalogue."""

    versions: range
    """All versions in Kafka's definitions, including an unstable newest one."""
    flexible_from: int | None
    """First version with compact lengths and tagged fields; None: no version has them."""


# APIs between brokers and clients, and from brokers to the controller. The controller quorum and
# the share coordinator have APIs of their own, which we do not need.
APIS: Final[dict[ApiKey, Api]] = {
    ApiKey.PRODUCE: Api(range(3, 14), 9),
    ApiKey.FETCH: Api(range(4, 19), 12),
    ApiKey.LIST_OFFSETS: Api(range(1, 12), 6),
    ApiKey.METADATA: Api(range(14), 9),
    ApiKey.OFFSET_COMMIT: Api(range(2, 11), 8),
    ApiKey.OFFSET_FETCH: Api(range(1, 11), 6),
    ApiKey.FIND_COORDINATOR: Api(range(7), 3),
    ApiKey.JOIN_GROUP: Api(range(10), 6),
    ApiKey.HEARTBEAT: Api(range(5), 4),
    ApiKey.LEAVE_GROUP: Api(range(6), 4),
    ApiKey.SYNC_GROUP: Api(range(6), 4),
    ApiKey.DESCRIBE_GROUPS: Api(range(7), 5),
    ApiKey.LIST_GROUPS: Api(range(6), 3),
    ApiKey.SASL_HANDSHAKE: Api(range(2), None),
    ApiKey.API_VERSIONS: Api(range(5), 3),
    ApiKey.CREATE_TOPICS: Api(range(2, 8), 5),
    ApiKey.DELETE_TOPICS: Api(range(1, 7), 4),
    ApiKey.DELETE_RECORDS: Api(range(3), 2),
    ApiKey.INIT_PRODUCER_ID: Api(range(7), 2),  # 6 is unstable: 4.3 does not advertise it
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(range(2, 5), 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(range(6), 3),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(range(5), 3),
    ApiKey.END_TXN: Api(range(6), 3),
    ApiKey.WRITE_TXN_MARKERS: Api(range(1, 3), 1),
    ApiKey.TXN_OFFSET_COMMIT: Api(range(6), 3),
    ApiKey.DESCRIBE_ACLS: Api(range(1, 4), 2),
    ApiKey.CREATE_ACLS: Api(range(1, 4), 2),
    ApiKey.DELETE_ACLS: Api(range(1, 4), 2),
    ApiKey.DESCRIBE_CONFIGS: Api(range(1, 5), 4),
    ApiKey.ALTER_CONFIGS: Api(range(3), 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(range(1, 3), 2),
    ApiKey.DESCRIBE_LOG_DIRS: Api(range(1, 6), 2),
    ApiKey.SASL_AUTHENTICATE: Api(range(3), 2),
    ApiKey.CREATE_PARTITIONS: Api(range(4), 2),
    ApiKey.CREATE_DELEGATION_TOKEN: Api(range(1, 4), 2),
    ApiKey.RENEW_DELEGATION_TOKEN: Api(range(1, 3), 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Api(range(1, 3), 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Api(range(1, 4), 2),
    ApiKey.DELETE_GROUPS: Api(range(3), 2),
    ApiKey.ELECT_LEADERS: Api(range(3), 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(range(2), 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(range(2), 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(range(1), 0),
    ApiKey.OFFSET_DELETE: Api(range(1), None),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(range(2), 1),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(range(2), 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(range(1), 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(range(1), 0),
    ApiKey.DESCRIBE_QUORUM: Api(range(3), 0),
    ApiKey.ALTER_PARTITION: Api(range(2, 4), 0),
    ApiKey.UPDATE_FEATURES: Api(range(3), 0),
    ApiKey.ENVELOPE: Api(range(1), 0),
    ApiKey.DESCRIBE_CLUSTER: Api(range(3), 0),
    ApiKey.DESCRIBE_PRODUCERS: Api(range(1), 0),
    ApiKey.BROKER_REGISTRATION: Api(range(5), 0),
    ApiKey.BROKER_HEARTBEAT: Api(range(3), 0),
    ApiKey.UNREGISTER_BROKER: Api(range(1), 0),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(range(1), 0),
    ApiKey.LIST_TRANSACTIONS: Api(range(3), 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: Api(range(1), 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(range(2), 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(range(2), 0),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Api(range(1), 0),
    ApiKey.PUSH_TELEMETRY: Api(range(1), 0),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Api(range(1), 0),
    ApiKey.LIST_CONFIG_RESOURCES: Api(range(2), 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(range(1), 0),
    ApiKey.SHARE_GROUP_HEARTBEAT: Api(range(1, 2), 0),
    ApiKey.SHARE_GROUP_DESCRIBE: Api(range(1, 2), 0),
    ApiKey.SHARE_FETCH: Api(range(1, 3), 0),
    ApiKey.SHARE_ACKNOWLEDGE: Api(range(1, 3), 0),
    ApiKey.ADD_RAFT_VOTER: Api(range(2), 0),
    ApiKey.REMOVE_RAFT_VOTER: Api(range(1), 0),
    ApiKey.STREAMS_GROUP_HEARTBEAT: Api(range(1), 0),
    ApiKey.STREAMS_GROUP_DESCRIBE: Api(range(1), 0),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Api(range(2), 0),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Api(range(1), 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Api(range(1), 0),
    ApiKey.PULL_METADATA: Api(range(1), 0),
    ApiKey.AUTHENTICATE_BROKER: Api(range(1), 0),
}
