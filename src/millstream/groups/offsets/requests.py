"""Decisions of OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete, once they are allowed.

Whether the request is accepted at all is decided by the group. The structs here have both names and
ids of topics; the version that is written has one of them.
"""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import Packed, unpack
from millstream.groups.offsets.store import Topics
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import OffsetKey
from millstream.groups.records.values import OffsetCommitValue
from millstream.model.ids import GroupId
from millstream.wire.errors import ErrorCode
from millstream.wire.fields import NO_UUID
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

CheckPartition = Callable[[str, UUID, int], None]
"""Raises a refusal if the member may not commit that partition; the whole request fails then."""

NO_EXPIRY_MS = -1
"""Sent by a client that leaves the retention of its offsets to the broker."""
TIMESTAMP_MAX_MS = 2**63 - 1
"""The largest int64."""


class CommitDecision(NamedTuple):
    """Entries to write, and the response when they are committed; without entries, at once."""

    entries: tuple[Entry, ...]
    response: OffsetCommitResponse


class TxnCommitDecision(NamedTuple):
    """As CommitDecision; the entries are part of the producer's transaction."""

    entries: tuple[Entry, ...]
    response: TxnOffsetCommitResponse


class DeleteDecision(NamedTuple):
    """Tombstones to write, and the response when they are committed."""

    entries: tuple[Entry, ...]
    response: OffsetDeleteResponse


def is_metadata_too_large(metadata: str | None, chars_max: int) -> bool:
    """Kafka counts UTF-16 units, although the name of its setting says bytes."""
    if metadata is None or 2 * len(metadata) <= chars_max:
        return False
    return len(metadata) + sum(one > "\uffff" for one in metadata) > chars_max


def commit(
    request: OffsetCommitRequest,
    *,
    wall_ms: int,
    metadata_chars_max: int,
    check: CheckPartition | None = None,
) -> CommitDecision:
    """Too long metadata fails only its partition, before it is checked."""
    group_id = GroupId(request.group_id)
    retention_ms = request.retention_time_ms
    expire_ms = NO_EXPIRY_MS
    if retention_ms != NO_EXPIRY_MS:  # some clients send the largest number for forever
        expire_ms = min(wall_ms + retention_ms, TIMESTAMP_MAX_MS)
    entries: list[Entry] = []
    response = OffsetCommitResponse()
    for topic in request.topics:
        answers = []
        for one in topic.partitions:
            index, metadata = one.partition_index, one.committed_metadata or ""
            if metadata and is_metadata_too_large(metadata, metadata_chars_max):
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                answers.append(
                    OffsetCommitResponsePartition(partition_index=index, error_code=code)
                )
                continue
            answers.append(OffsetCommitResponsePartition(partition_index=index))
            if check is not None:
                check(topic.name, topic.topic_id, index)
            value = OffsetCommitValue(
                offset=one.committed_offset,
                leader_epoch=one.committed_leader_epoch,
                metadata=metadata,
                commit_timestamp=wall_ms,
                expire_timestamp=expire_ms,
                topic_id=topic.topic_id,
            )
            entries.append(Entry(OffsetKey(group_id, topic.name, index), value))
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
    return CommitDecision(tuple(entries), response)


def commit_in_transaction(
    request: TxnOffsetCommitRequest,
    *,
    wall_ms: int,
    metadata_chars_max: int,
    check: CheckPartition | None = None,
) -> TxnCommitDecision:
    """As `commit`; topics have no ids here, and the check gets none."""
    group_id = GroupId(request.group_id)
    entries: list[Entry] = []
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        answers = []
        for one in topic.partitions:
            index = one.partition_index
            is_too_large = is_metadata_too_large(one.committed_metadata, metadata_chars_max)
            code = ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_large else ErrorCode.NONE
            answers.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
            if code:
                continue
            if check is not None:
                check(topic.name, NO_UUID, index)
            value = OffsetCommitValue(
                offset=one.committed_offset,
                leader_epoch=one.committed_leader_epoch,
                metadata=one.committed_metadata or "",
                commit_timestamp=wall_ms,
            )
            entries.append(Entry(OffsetKey(group_id, topic.name, index), value))
        response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
    return TxnCommitDecision(tuple(entries), response)


# -- OffsetFetch -------------------------------------------------------------------------------


def fetch(
    offsets: Offsets, group: OffsetFetchRequestGroup, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    """Committed offsets of the requested topics, or (null) of all that have offsets.

    With `require_stable` what is written: the response is sent when all of it is committed.
    """
    group_id = GroupId(group.group_id)
    of_group = offsets.topics_written(group_id) if require_stable else offsets.topics_of(group_id)
    if group.topics is None:
        return _fetch_all(offsets, group_id, of_group, require_stable=require_stable)
    response = OffsetFetchResponseGroup(group_id=group_id)
    for topic in group.topics:
        of_topic = of_group.get(topic.name, {})
        answers = []
        for index in topic.partition_indexes:
            if require_stable and offsets.is_unstable(OffsetKey(group_id, topic.name, index)):
                answers.append(_nothing(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                answers.append(_answer(index, of_topic.get(index), topic))
        response.topics.append(
            OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
    return response


def _fetch_all(
    offsets: Offsets, group_id: GroupId, of_group: Topics, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    response = OffsetFetchResponseGroup(group_id=group_id)
    for name, of_topic in of_group.items():
        answers = []
        for index, packed in of_topic.items():
            if require_stable and offsets.is_unstable(OffsetKey(group_id, name, index)):
                answers.append(_nothing(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                answers.append(_answer(index, packed))
        response.topics.append(OffsetFetchResponseTopics(name=name, partitions=answers))
    return response


def _answer(
    index: int, packed: Packed | None, requested: OffsetFetchRequestTopics | None = None
) -> OffsetFetchResponsePartitions:
    """An offset committed for a deleted topic is not one of a new topic of that name (KIP-848)."""
    if packed is None:
        return _nothing(index)
    found = unpack(packed)
    if (
        requested is not None
        and NO_UUID not in (found.topic_id, requested.topic_id)
        and found.topic_id != requested.topic_id
    ):
        return _nothing(index)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _nothing(index: int, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, metadata="", error_code=code
    )


# -- deletion ----------------------------------------------------------------------------------


def delete(
    offsets: Offsets, request: OffsetDeleteRequest, is_subscribed: Callable[[str], bool]
) -> DeleteDecision:
    """A topic that the group subscribes to keeps its offsets. A missing offset is no error."""
    group_id = GroupId(request.group_id)
    wanted: list[OffsetKey] = []
    response = OffsetDeleteResponse()
    for topic in request.topics:
        code = ErrorCode.NONE
        partitions = [one.partition_index for one in topic.partitions]
        if is_subscribed(topic.name):
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            wanted.extend(OffsetKey(group_id, topic.name, one) for one in partitions)
        answers = [
            OffsetDeleteResponsePartition(partition_index=one, error_code=code)
            for one in partitions
        ]
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
    known = offsets.known(wanted)
    # Each key once, in the order of the request.
    entries = tuple(Entry(key, None) for key in dict.fromkeys(wanted) if key in known)
    return DeleteDecision(entries, response)


def delete_all(offsets: Offsets, group_id: GroupId) -> tuple[Entry, ...]:
    """Tombstones for all offsets of a deleted group, in a fixed order."""
    return tuple(Entry(key, None) for key in sorted(offsets.keys_of(group_id)))
