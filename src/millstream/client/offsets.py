"""Earliest and latest offsets, offsets by time, and ends of leader epochs (KIP-320)."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from millstream.client.cluster import Cluster, or_raise
from millstream.client.errors import ClientError, code_of, error_for
from millstream.client.keyed_api import Item, LeaderApi, call_each
from millstream.client.retries import Deadline
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_CLIENT: Final = -1
"""The replica id of a client."""
_READ_COMMITTED: Final = 1


class OffsetSpec(NamedTuple):
    """Which offset of a log to look up."""

    wire_timestamp: int

    @classmethod
    def at_time(cls, timestamp_ms: int) -> "OffsetSpec":
        """The first record at or after that time."""
        if timestamp_ms < 0:
            raise ValueError(
                f"timestamp {timestamp_ms} is negative; use milliseconds since the epoch"
            )
        return cls(timestamp_ms)


EARLIEST: Final = OffsetSpec(-2)
LATEST: Final = OffsetSpec(-1)
"""After the last readable record: the high watermark, or with read_committed the last stable
offset."""
MAX_TIMESTAMP: Final = OffsetSpec(-3)
"""The record with the largest timestamp."""


class ListedOffset(NamedTuple):
    """What was found."""

    offset: Offset | None
    """None: no record is at or after the time, or the log is empty (MAX_TIMESTAMP)."""
    timestamp_ms: TimestampMs
    """Of the record, for lookups by time; else -1."""
    leader_epoch: LeaderEpoch
    """-1 when not known."""


class EpochEnd(NamedTuple):
    """Where a leader epoch ended in the leader's log."""

    leader_epoch: LeaderEpoch
    """The requested one, or the next smaller one in the log; -1: none."""
    end_offset: Offset
    """Exclusive; -1: the epoch is not known."""


Grouped = Mapping[str, list[TopicPartition]]


def by_topic(partitions: Collection[TopicPartition]) -> Grouped:
    """Grouped by topic, as in requests; partitions keep their order."""
    groups: dict[str, list[TopicPartition]] = {}
    for one in partitions:
        groups.setdefault(one.topic, []).append(one)
    return groups


class _ListOffsets(LeaderApi[OffsetSpec, ListedOffset]):
    def __init__(self, cluster: Cluster, *, is_committed: bool, timeout_ms: int) -> None:
        super().__init__(cluster)
        self._isolation_level = _READ_COMMITTED if is_committed else 0
        self._timeout_ms = timeout_ms

    def build_request(self, items: Mapping[TopicPartition, OffsetSpec]) -> ListOffsetsRequest:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=one.partition,
                        current_leader_epoch=self.leader_epoch(one),
                        timestamp=items[one].wire_timestamp,
                    )
                    for one in members
                ],
            )
            for name, members in by_topic(items).items()
        ]
        return ListOffsetsRequest(
            replica_id=_CLIENT,
            isolation_level=self._isolation_level,
            topics=topics,
            timeout_ms=self._timeout_ms,
        )

    def read(self, response: ListOffsetsResponse) -> Iterable[Item[TopicPartition, ListedOffset]]:
        for topic in response.topics:
            for one in topic.partitions:
                found = ListedOffset(
                    Offset(one.offset) if one.offset >= 0 else None,
                    TimestampMs(one.timestamp),
                    LeaderEpoch(one.leader_epoch),
                )
                key = TopicPartition(topic.name, one.partition_index)
                yield Item(key, code_of(one.error_code), found)

    def final_outcome(
        self, key: TopicPartition, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> ClientError:
        del was_lost
        return error_for(code, topic=key.topic, partition=key.partition, message=message)


async def list_offsets_each(
    cluster: Cluster,
    specs: Mapping[TopicPartition, OffsetSpec],
    *,
    is_committed: bool | None = None,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, ListedOffset | ClientError]:
    """Each partition's offset or error; `is_committed` defaults to `isolation.level`."""
    if deadline is None:
        deadline = cluster.deadline("offsets of partitions")
    if is_committed is None:
        is_committed = cluster.settings.is_read_committed
    api = _ListOffsets(
        cluster, is_committed=is_committed, timeout_ms=cluster.settings.request_timeout_ms
    )
    return await call_each(api, specs, deadline)


async def list_offsets(
    cluster: Cluster,
    specs: Mapping[TopicPartition, OffsetSpec],
    *,
    is_committed: bool | None = None,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """All offsets; raises the first error."""
    found = await list_offsets_each(cluster, specs, is_committed=is_committed, deadline=deadline)
    return {partition: or_raise(one) for partition, one in found.items()}


class _EpochEnds(LeaderApi[LeaderEpoch, EpochEnd]):
    def build_request(
        self, items: Mapping[TopicPartition, LeaderEpoch]
    ) -> OffsetForLeaderEpochRequest:
        topics = [
            OffsetForLeaderTopic(
                topic=name,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=one.partition,
                        current_leader_epoch=self.leader_epoch(one),
                        leader_epoch=items[one],
                    )
                    for one in members
                ],
            )
            for name, members in by_topic(items).items()
        ]
        return OffsetForLeaderEpochRequest(replica_id=_CLIENT, topics=topics)

    def read(self, response: Any) -> Iterable[Item[TopicPartition, EpochEnd]]:
        answer: OffsetForLeaderEpochResponse = response
        for topic in answer.topics:
            for one in topic.partitions:
                found = EpochEnd(LeaderEpoch(one.leader_epoch), Offset(one.end_offset))
                key = TopicPartition(topic.topic, one.partition)
                yield Item(key, code_of(one.error_code), found)

    def final_outcome(
        self, key: TopicPartition, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> ClientError:
        del was_lost
        return error_for(code, topic=key.topic, partition=key.partition, message=message)


async def offsets_for_leader_epoch(
    cluster: Cluster,
    epochs: Mapping[TopicPartition, LeaderEpoch],
    *,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, EpochEnd]:
    """Where each epoch ended, to detect whether a log was truncated below the read position."""
    if deadline is None:
        deadline = cluster.deadline("ends of leader epochs")
    found = await call_each(_EpochEnds(cluster), epochs, deadline)
    return {partition: or_raise(one) for partition, one in found.items()}
