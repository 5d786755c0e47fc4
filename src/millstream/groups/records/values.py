"""Values of the offsets topic: two bytes of version, then the fields in the notation of `wire`.

Field names are Kafka's in snake_case. `VALUES` has the class that belongs to each key, and
`write_version` the version that a Kafka 4.3 broker writes; all older ones are read.
"""

from collections.abc import Mapping
from struct import Struct as FixedStruct
from struct import error as StructError  # noqa: N812 - it is an exception
from types import MappingProxyType
from typing import Final, TypeVar
from uuid import UUID

from millstream.groups.records import keys
from millstream.groups.records.keys import Key
from millstream.wire.fields import array, blob, int8, int32, int64, nested, string, uuid
from millstream.wire.primitives import INT16, Bytes, MalformedFrame
from millstream.wire.schema import Message, Struct

M = TypeVar("M", bound=Message)


class OffsetCommitValue(Message, versions="0-4", flexible_from=4):
    """A committed offset. Version 0 is also used with the oldest key."""

    offset: int = int64()
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: UUID = uuid("4+", tag=0, ignorable=True)


class MemberMetadata(Struct):
    """A member of a classic group."""

    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: Bytes = blob()
    assignment: Bytes = blob()


class GroupMetadataValue(Message, versions="0-4", flexible_from=4):
    """A classic group."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


class ConsumerGroupMetadataValue(Message, versions="0", flexible_from=0):
    """The epoch of a group; the hash is of the metadata of its topics (KIP-1101)."""

    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class PartitionMetadata(Struct):
    """The racks of a partition; empty since 4.0."""

    partition: int = int32()
    racks: list[str] = array(string)


class TopicMetadata(Struct):
    """Topic metadata of a group."""

    topic_id: UUID = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message, versions="0", flexible_from=0):
    """Topic metadata of a group, replaced by a hash in 4.1."""

    topics: list[TopicMetadata] = array(TopicMetadata)


class ClassicProtocol(Struct):
    """An assignor of a member that uses the classic protocol."""

    name: str = string()
    metadata: Bytes = blob()


class ClassicMemberMetadata(Struct):
    """What a member that uses the classic protocol sent when it joined."""

    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible_from=0):
    """A member and its subscription.

    Beware: a member of the consumer protocol must have an explicit `classic_member_metadata=None`.
    If left out, it is an empty struct and not null: Kafka's definition says null, but its generator
    ignores that, and a Kafka broker would take the member for one of the classic protocol.
    """

    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = nested(
        ClassicMemberMetadata, nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible_from=0):
    """The epoch of the target assignment, and when it was computed (KIP-1263)."""

    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0, ignorable=True)


class TargetTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible_from=0):
    """The target assignment of a member."""

    topic_partitions: list[TargetTopicPartitions] = array(TargetTopicPartitions)


class CurrentTopicPartitions(Struct):
    """Partitions of one topic; the epochs in which each was assigned to the member.

    Kafka before 4.3 wrote no epochs (an empty list, or null).
    """

    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] | None = array(int32, nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible_from=0):
    """A member's epoch, state and current assignment."""

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)
    partitions_pending_revocation: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible_from=0):
    """The topics that a pattern matched, in which version of the cluster's metadata, and when."""

    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()


VALUES: Final[Mapping[type[Key], type[Message]]] = MappingProxyType(
    {
        keys.OffsetKey: OffsetCommitValue,
        keys.ClassicGroupKey: GroupMetadataValue,
        keys.ConsumerGroupKey: ConsumerGroupMetadataValue,
        keys.ConsumerPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
        keys.ConsumerMemberKey: ConsumerGroupMemberMetadataValue,
        keys.TargetAssignmentKey: ConsumerGroupTargetAssignmentMetadataValue,
        keys.TargetMemberKey: ConsumerGroupTargetAssignmentMemberValue,
        keys.CurrentAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
        keys.RegularExpressionKey: ConsumerGroupRegularExpressionValue,
    }
)
"""The value that belongs to each key."""

GROUP_METADATA_VERSION: Final = 3
"""The last version before the flexible one, which Kafka brokers before 3.5 can read."""
OFFSET_VERSION: Final = 4
"""The first version that has the topic id."""
EXPIRING_OFFSET_VERSION: Final = 1
"""The only version with an expiry of the offset; it has no leader epoch and no topic id."""


FIXED_OFFSET: Final = FixedStruct(">hqiBqB")
"""An offset of version 4 without metadata: the B are the empty string and the number of tags."""
TOPIC_ID_TAG: Final = b"\0\x10"
"""Tag 0 of sixteen bytes, which follows it."""


def write_version(value: Message) -> int:
    """The version in which Kafka 4.3 writes the value."""
    if isinstance(value, OffsetCommitValue):
        return OFFSET_VERSION if value.expire_timestamp == -1 else EXPIRING_OFFSET_VERSION
    return GROUP_METADATA_VERSION if isinstance(value, GroupMetadataValue) else 0


def encode_value(value: Message, *, version: int | None = None) -> bytes:
    """Encode with the version first. ValueError for fields that the version does not have."""
    if version is None:
        if isinstance(value, OffsetCommitValue) and not (
            value.metadata or value.expire_timestamp != -1 or value.unknown_tags
        ):
            return _encode_fixed(value)
        version = write_version(value)
    return INT16.pack(version) + value.encode(version)


def _encode_fixed(value: OffsetCommitValue) -> bytes:
    """Fast path for offsets without metadata and expiry, which are most of what is written."""
    has_id = value.topic_id.int != 0  # several times faster than comparing with NO_UUID
    fields = (value.offset, value.leader_epoch, 1, value.commit_timestamp, has_id)
    try:
        raw = FIXED_OFFSET.pack(OFFSET_VERSION, *fields)
    except StructError as error:
        raise ValueError(f"an offset that cannot be written: {error}") from None
    return raw + TOPIC_ID_TAG + value.topic_id.bytes if has_id else raw


def decode_value(key: Key, raw: bytes | bytearray | memoryview) -> Message:
    """Decode the value of `key`. Raises MalformedFrame, also for an unknown newer version."""
    return decode_as(VALUES[type(key)], raw)


def decode_as(made: type[M], raw: bytes | bytearray | memoryview) -> M:
    """Decode a value of that class."""
    if len(raw) < INT16.size:
        raise MalformedFrame(f"a {made.__name__} of {len(raw)} bytes")
    (version,) = INT16.unpack_from(raw)
    if version not in made.VERSIONS:
        raise MalformedFrame(f"{made.__name__} v{version} is not supported")
    return made.decode(memoryview(raw)[INT16.size :], version)
