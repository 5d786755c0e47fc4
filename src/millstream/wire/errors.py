"""Kafka's error codes: number, text, and whether they are retriable.

Clients act only on the number, so the choice of a code is part of correctness. Retriable is what
Kafka's own clients retry; the texts are ours.
"""

from enum import IntEnum
from typing import Final, Self

RETRIABLE: Final = True


class ErrorCode(IntEnum):
    """Every code of Kafka 4.3."""

    text: str
    """One line for people."""
    is_retriable: bool
    """Whether the same request may succeed later, or after a metadata refresh."""

    def __new__(cls, code: int, text: str = "", is_retriable: bool = False) -> Self:  # noqa: FBT001
        """The number is the value, by which members are looked up; the rest are attributes."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.text, member.is_retriable = text, is_retriable
        return member

    UNKNOWN_SERVER_ERROR = -1, "unexpected error in the broker"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the log does not have that offset"
    CORRUPT_MESSAGE = 2, "a record batch does not verify", RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "this broker has no such topic or partition", RETRIABLE
    INVALID_FETCH_SIZE = 4, "the requested fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment", RETRIABLE
    NOT_LEADER_OR_FOLLOWER = (
        6,
        "another broker leads the partition, or has its replicas",
        RETRIABLE,
    )
    REQUEST_TIMED_OUT = 7, "timed out", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "the broker has no usable replica of the partition", RETRIABLE
    MESSAGE_TOO_LARGE = 10, "a record batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, "there is a newer controller"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata of an offset is too long"
    NETWORK_EXCEPTION = 13, "the connection was lost before the response", RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading its state", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator at the moment", RETRIABLE
    NOT_COORDINATOR = 16, "another broker is the coordinator", RETRIABLE
    INVALID_TOPIC_EXCEPTION = (
        17,
        "the topic's name is not valid, or the topic may not be used like this",
    )
    RECORD_LIST_TOO_LARGE = 18, "the batches are larger than a segment"
    NOT_ENOUGH_REPLICAS = (
        19,
        "not appended: fewer replicas are in sync than the topic requires",
        RETRIABLE,
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "appended, but to fewer replicas than the topic requires",
        RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, "the group is in another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member shares no protocol with the group"
    INVALID_GROUP_ID = 24, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, "the group has no such member"
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is outside the broker's limits"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing; rejoin"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the offsets to store are too large"
    TOPIC_AUTHORIZATION_FAILED = 29, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "not allowed on this cluster"
    INVALID_TIMESTAMP = 32, "a record's timestamp is outside the topic's limits"
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker does not offer that SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "not expected at this point of the authentication"
    UNSUPPORTED_VERSION = 35, "the broker does not serve that version of the API"
    TOPIC_ALREADY_EXISTS = 36, "a topic of that name already exists"
    INVALID_PARTITIONS = 37, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = (
        38,
        "the replication factor is below one or above the number of brokers",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, "the assignment of replicas to brokers is not valid"
    INVALID_CONFIG = 40, "a setting is not valid"
    NOT_CONTROLLER = 41, "another node is the controller", RETRIABLE
    INVALID_REQUEST = 42, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the stored record format cannot do that"
    POLICY_VIOLATION = 44, "a policy of the cluster forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "records of this producer are missing before these"
    DUPLICATE_SEQUENCE_NUMBER = 46, "these records were appended before, too long ago to know where"
    INVALID_PRODUCER_EPOCH = 47, "the producer's epoch is outdated"
    INVALID_TXN_STATE = 48, "the transaction's state does not allow that"
    INVALID_PRODUCER_ID_MAPPING = 49, "the transactional id has another producer id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is above the broker's limit"
    CONCURRENT_TRANSACTIONS = 51, "an earlier step of the transaction is still under way", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "this producer has a newer coordinator"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "not allowed on this transactional id"
    SECURITY_DISABLED = 54, "the cluster runs without security"
    OPERATION_NOT_ATTEMPTED = 55, "not attempted, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "the log directory of the partition failed or is full", RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "the authentication failed"
    UNKNOWN_PRODUCER_ID = 59, "the partition has no state of this producer"
    REASSIGNMENT_IN_PROGRESS = 60, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, "no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the token has another owner"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "this connection may not request delegation tokens"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "not allowed on this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "that type of principal is not supported"
    NON_EMPTY_GROUP = 68, "the group has members"
    GROUP_ID_NOT_FOUND = 69, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the broker no longer has that fetch session", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session is at another request", RETRIABLE
    LISTENER_NOT_FOUND = 72, "the leader has no listener of that name", RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "the cluster does not allow deleting topics"
    FENCED_LEADER_EPOCH = 74, "the leader epoch is outdated", RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch is newer than the broker's", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "that version cannot carry the compression used"
    STALE_BROKER_EPOCH = 77, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, "the new leader does not know its high watermark yet", RETRIABLE
    MEMBER_ID_REQUIRED = 79, "rejoin with the member id of this response"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not available", RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "the group is full"
    FENCED_INSTANCE_ID = 82, "a newer member has taken over that instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no replica may become the leader", RETRIABLE
    ELECTION_NOT_NEEDED = 84, "the partition has the desired leader already", RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "the partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group is subscribed to that topic"
    INVALID_RECORD = 87, "a record violates a rule of the topic"
    UNSTABLE_OFFSET_COMMIT = 88, "an open transaction will still change these offsets", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "the quota is used up; wait", RETRIABLE
    PRODUCER_FENCED = 90, "a newer producer uses the same transactional id"
    RESOURCE_NOT_FOUND = 91, "no such resource"
    DUPLICATE_RESOURCE = 92, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential is too weak or malformed"
    INCONSISTENT_VOTER_SET = 94, "the two sides have different sets of voters"
    INVALID_UPDATE_VERSION = 95, "the feature level cannot be set"
    FEATURE_UPDATE_FAILED = 96, "the feature levels could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "the forwarded principal cannot be read"
    SNAPSHOT_NOT_FOUND = 98, "no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, "this broker has no topic of that id", RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "another broker uses that id"
    BROKER_ID_NOT_REGISTERED = 102, "no broker of that id is registered"
    INCONSISTENT_TOPIC_ID = (
        103,
        "the partition belongs to another incarnation of the topic",
        RETRIABLE,
    )
    INCONSISTENT_CLUSTER_ID = 104, "the request is for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        "the fetch session mixes topic names and topic ids",
        RETRIABLE,
    )
    INELIGIBLE_REPLICA = 107, "a replica is not eligible to join the ISR"
    NEW_LEADER_ELECTED = 108, "the change was made, and another broker leads now"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "that offset is in tiered storage only"
    FENCED_MEMBER_EPOCH = 110, "the member must abandon its partitions and rejoin"
    UNRELEASED_INSTANCE_ID = 111, "another member still has that instance id"
    UNSUPPORTED_ASSIGNOR = 112, "the group cannot use that assignor"
    STALE_MEMBER_EPOCH = 113, "the member's epoch has moved on; retry with the new one"
    MISMATCHED_ENDPOINT_TYPE = (
        114,
        "sent to a broker instead of a controller, or the other way round",
    )
    UNSUPPORTED_ENDPOINT_TYPE = 115, "that type of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, "no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the subscription of metrics is unknown or outdated"
    TELEMETRY_TOO_LARGE = 118, "the pushed metrics are too large"
    INVALID_REGISTRATION = 119, "the controller refuses the registration"
    TRANSACTION_ABORTABLE = 120, "the transaction failed; abort it and continue"
    INVALID_RECORD_STATE = 121, "the record is not in a state that can be acknowledged"
    SHARE_SESSION_NOT_FOUND = 122, "the broker no longer has that share session", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session is at another request", RETRIABLE
    FENCED_STATE_EPOCH = 124, "the state epoch of the share group is outdated"
    INVALID_VOTER_KEY = 125, "the voter's key is not that of the receiver"
    DUPLICATE_VOTER = 126, "the node is a voter already"
    VOTER_NOT_FOUND = 127, "no such voter"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, "the client's metadata is too old; start from its bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the epoch of the topology is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, "the epoch of the topology is outdated"
    SHARE_SESSION_LIMIT_REACHED = 133, "the broker has no room for another share session", RETRIABLE
