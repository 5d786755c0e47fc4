"""The one place where errors become Kafka's codes.

The choice of a code is part of correctness: it decides whether a client retries, bumps its
epoch and sends twice, or gives up. An error that is not in this table is a bug of ours, which is
logged and answered as such, never guessed.
"""

from typing import Final

from millstream.broker.produce import records as produced
from millstream.broker.requests import between_brokers
from millstream.controller import errors as controller
from millstream.controller.cluster import errors as cluster
from millstream.groups import errors as groups
from millstream.model import errors
from millstream.model.config import errors as configs
from millstream.replication import errors as leading
from millstream.runtime.background import BackgroundFullError
from millstream.runtime.fatal import end_if_fatal
from millstream.shards import errors as shards
from millstream.storage.moves.queue import LogDirectoryNotFound, PartitionNameTooLong
from millstream.storage.producers.machine import StaleCoordinatorEpoch
from millstream.wire.errors import ErrorCode
from millstream.wire.primitives import MalformedFrame

CODES: Final[dict[type[BaseException], ErrorCode]] = {
    errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.CorruptRecords: ErrorCode.CORRUPT_MESSAGE,
    errors.InvalidRecords: ErrorCode.INVALID_RECORD,
    errors.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.StaleProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    errors.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    errors.StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.UnknownPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.InconsistentTopicId: ErrorCode.INCONSISTENT_TOPIC_ID,
    errors.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    leading.UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    leading.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # As Kafka does: the follower takes it for metadata that has not arrived yet, and retries.
    leading.UnknownReplica: ErrorCode.UNKNOWN_LEADER_EPOCH,
    leading.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    leading.NotEnoughReplicasAfterAppend: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    leading.OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
    leading.ReplicationTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    produced.UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    produced.InvalidRequiredAcks: ErrorCode.INVALID_REQUIRED_ACKS,
    produced.InternalTopic: ErrorCode.INVALID_TOPIC_EXCEPTION,
    # Retriable: the client sends again, and by then there may be room.
    errors.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.TooManyOpenFiles: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.LogDirectoryClosed: ErrorCode.KAFKA_STORAGE_ERROR,
    BackgroundFullError: ErrorCode.KAFKA_STORAGE_ERROR,
    LogDirectoryNotFound: ErrorCode.LOG_DIR_NOT_FOUND,
    PartitionNameTooLong: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    controller.InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    controller.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    controller.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    controller.InvalidPartitionCount: ErrorCode.INVALID_PARTITIONS,
    controller.InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
    controller.InvalidReplicaAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    controller.InvalidRequest: ErrorCode.INVALID_REQUEST,
    controller.NullConfigValue: ErrorCode.INVALID_CONFIG,
    controller.TooManyPartitions: ErrorCode.POLICY_VIOLATION,
    controller.TopicDeletionDisabled: ErrorCode.TOPIC_DELETION_DISABLED,
    between_brokers.NotABroker: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    between_brokers.BrokerUnverifiable: ErrorCode.BROKER_NOT_AVAILABLE,
    cluster.NotController: ErrorCode.NOT_CONTROLLER,
    cluster.StaleBrokerEpoch: ErrorCode.STALE_BROKER_EPOCH,
    cluster.InvalidUpdateVersion: ErrorCode.INVALID_UPDATE_VERSION,
    cluster.IneligibleReplica: ErrorCode.INELIGIBLE_REPLICA,
    cluster.NoReplicaThere: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    cluster.ElectionNotNeeded: ErrorCode.ELECTION_NOT_NEEDED,
    cluster.PreferredLeaderNotAvailable: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    cluster.EligibleLeadersNotAvailable: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    cluster.NoReassignmentInProgress: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    cluster.BrokerIdNotRegistered: ErrorCode.BROKER_ID_NOT_REGISTERED,
    configs.InvalidConfig: ErrorCode.INVALID_CONFIG,
    configs.InvalidConfigRequest: ErrorCode.INVALID_REQUEST,
    shards.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    shards.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    shards.CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    shards.InvalidEntries: ErrorCode.INVALID_REQUEST,
    groups.InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    groups.UnknownMember: ErrorCode.UNKNOWN_MEMBER_ID,
    groups.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    groups.FencedInstance: ErrorCode.FENCED_INSTANCE_ID,
    groups.UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE_ID,
    groups.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    groups.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    groups.InconsistentProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    groups.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    groups.GroupFull: ErrorCode.GROUP_MAX_SIZE_REACHED,
    groups.GroupNotEmpty: ErrorCode.NON_EMPTY_GROUP,
    groups.GroupNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    groups.GroupSubscribed: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    groups.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    groups.StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    groups.UnsupportedCommitVersion: ErrorCode.UNSUPPORTED_VERSION,
    groups.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    groups.InvalidRegularExpression: ErrorCode.INVALID_REGULAR_EXPRESSION,
    groups.InvalidGroupRequest: ErrorCode.INVALID_REQUEST,
    groups.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    groups.UnstableOffsets: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    groups.TransactionalProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    StaleCoordinatorEpoch: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    MalformedFrame: ErrorCode.INVALID_REQUEST,
}


def code_of(error: BaseException) -> ErrorCode:
    """The code of an error, or of the nearest of its bases that has one."""
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code
    end_if_fatal(error)
    return ErrorCode.UNKNOWN_SERVER_ERROR


def text_of(error: BaseException) -> str:
    """The message for a client's user; without details of ours for an error that has no code."""
    if code_of(error) is ErrorCode.UNKNOWN_SERVER_ERROR:
        return ErrorCode.UNKNOWN_SERVER_ERROR.text
    return str(error)
