"""Requests to a shard in few words, and what consumers of the classic protocol send each other."""

from collections.abc import Iterable, Mapping
from struct import pack, unpack_from
from uuid import UUID

from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

Partitions = Iterable[tuple[str, int]]

# -- the consumers' embedded protocol ----------------------------------------------------------


def subscription(topics: Iterable[str]) -> bytes:
    """Version 0: topics, no user data."""
    names = list(topics)
    out = bytearray(pack(">hi", 0, len(names)))
    for name in names:
        raw = name.encode()
        out += pack(">h", len(raw)) + raw
    return bytes(out + pack(">i", -1))


def owning_subscription(topics: Iterable[str], owned: Partitions) -> bytes:
    """Version 1: topics, no user data, and what the member reads now."""
    return pack(">h", 1) + subscription(topics)[2:] + assignment(owned)[2:-4]


def assignment(partitions: Partitions) -> bytes:
    """Version 0: partitions by topic, no user data."""
    by_topic = _by_topic(partitions)
    out = bytearray(pack(">hi", 0, len(by_topic)))
    for name, numbers in by_topic.items():
        raw = name.encode()
        out += pack(">h", len(raw)) + raw + pack(">i", len(numbers))
        out += b"".join(pack(">i", number) for number in numbers)
    return bytes(out + pack(">i", -1))


def assigned(raw: bytes) -> set[tuple[str, int]]:
    """The partitions of an assignment; nothing in it: none."""
    found: set[tuple[str, int]] = set()
    if not raw:
        return found
    raw = bytes(raw)
    _, count = unpack_from(">hi", raw)
    at = 6
    for _ in range(count):
        (size,) = unpack_from(">h", raw, at)
        name = raw[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (partitions,) = unpack_from(">i", raw, at)
        found |= {(name, unpack_from(">i", raw, at + 4 + 4 * n)[0]) for n in range(partitions)}
        at += 4 + 4 * partitions
    return found


def _by_topic(partitions: Partitions) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return by_topic


# -- membership --------------------------------------------------------------------------------


def join(
    group: str,
    member: str = "",
    *,
    topics: Iterable[str] = ("t",),
    instance: str | None = None,
    session_ms: int = 10_000,
    rebalance_ms: int = 20_000,
    protocol_type: str = "consumer",
) -> JoinGroupRequest:
    protocol = JoinGroupRequestProtocol(name="range", metadata=subscription(topics))
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[protocol],
    )


def sync(
    group: str, member: str, generation: int, given: Mapping[str, Partitions] | None = None
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequestAssignment(member_id=one, assignment=assignment(partitions))
            for one, partitions in (given or {}).items()
        ],
    )


def heartbeat(group: str, member: str, generation: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)


def leave(group: str, *members: str) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=group, members=[MemberIdentity(member_id=one) for one in members]
    )


def consumer_heartbeat(
    group: str,
    member: str,
    epoch: int,
    *,
    topics: Iterable[str] | None = None,
    owned: Iterable[tuple[UUID, int]] | None = None,
    instance: str | None = None,
    rebalance_ms: int = -1,
) -> ConsumerGroupHeartbeatRequest:
    by_id: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(owned or ()):
        by_id.setdefault(topic_id, []).append(number)
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        instance_id=instance,
        rebalance_timeout_ms=rebalance_ms,
        subscribed_topic_names=None if topics is None else list(topics),
        topic_partitions=None
        if owned is None
        else [
            RequestTopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in by_id.items()
        ],
    )


# -- offsets -----------------------------------------------------------------------------------


def commit(
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str = "",
    retention_ms: int = -1,
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[topic, number],
                        committed_metadata=metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(offsets).items()
        ],
    )


def txn_commit(
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    producer_id: int = 7,
    member: str = "",
    generation: int = -1,
) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id=group,
        producer_id=producer_id,
        producer_epoch=0,
        generation_id=generation,
        member_id=member,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[topic, number],
                        committed_metadata="",
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(offsets).items()
        ],
    )


def fetch(
    group: str,
    partitions: Partitions | None = None,
    *,
    member: str | None = None,
    epoch: int = -1,
) -> OffsetFetchRequestGroup:
    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
            for topic, numbers in _by_topic(partitions).items()
        ]
    return OffsetFetchRequestGroup(
        group_id=group, member_id=member, member_epoch=epoch, topics=topics
    )


def fetched(response: OffsetFetchResponseGroup) -> dict[tuple[str, int], int]:
    """Offsets by partition; those that there are none of are left out."""
    assert response.error_code == 0, response
    found = {}
    for topic in response.topics:
        for one in topic.partitions:
            assert one.error_code == 0, response
            if one.committed_offset >= 0:
                found[topic.name, one.partition_index] = one.committed_offset
    return found


def offset_delete(group: str, partitions: Partitions) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[OffsetDeleteRequestPartition(partition_index=one) for one in numbers],
            )
            for topic, numbers in _by_topic(partitions).items()
        ],
    )
