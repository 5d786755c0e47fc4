"""Commits offsets of a consumer group on behalf of a reader that is not a member."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from millstream.client.cluster import ATTEMPT_ERRORS, Cluster
from millstream.client.errors import ClientError, code_of, error_for
from millstream.client.keyed_api import Item, KeyedApi, call_each
from millstream.client.offsets import by_topic
from millstream.client.retries import Deadline, Failure
from millstream.client.targets import CoordinatorOf, Target
from millstream.model.ids import NO_GENERATION, Offset, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

_NO_MEMBER: Final = ""


class _CommitOffsets(KeyedApi[TopicPartition, Offset, Offset]):
    """All partitions of a group have the same coordinator."""

    def __init__(self, cluster: Cluster, group_id: str, metadata: str) -> None:
        super().__init__(cluster)
        self._group_id = group_id
        self._metadata = metadata
        self._names: dict[TopicId, str] = {}
        """From version 10 on, topics are identified by their ids alone."""

    async def route(
        self, keys: Collection[TopicPartition]
    ) -> dict[TopicPartition, Target | Failure]:
        cached, now_s = self.cluster.metadata, self.cluster.now_s()
        topics = dict.fromkeys(one.topic for one in keys)
        try:
            if stale := [name for name in topics if not cached.is_fresh(name, now_s)]:
                await self.cluster.refresh(stale)
        except ATTEMPT_ERRORS as error:
            return dict.fromkeys(keys, error)
        return {one: self._target(one.topic) for one in keys}

    def _target(self, name: str) -> Target | Failure:
        topic = self.cluster.metadata.topic(name)
        if topic is None:
            return error_for(self.cluster.metadata.error_of(name), topic=name)
        if topic.topic_id is not None:
            self._names[topic.topic_id] = name
        return CoordinatorOf(self._group_id)

    def build_request(self, items: Mapping[TopicPartition, Offset]) -> OffsetCommitRequest:
        ids = {name: topic_id for topic_id, name in self._names.items()}
        topics = []
        for name, members in by_topic(items).items():
            topic = OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=one.partition,
                        committed_offset=items[one],
                        committed_metadata=self._metadata,
                    )
                    for one in members
                ],
            )
            if name in ids:
                topic.topic_id = ids[name]
            topics.append(topic)
        return OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=NO_GENERATION,
            member_id=_NO_MEMBER,
            topics=topics,
        )

    def read(self, response: OffsetCommitResponse) -> Iterable[Item[TopicPartition, Offset]]:
        for topic in response.topics:
            name = topic.name or self._names.get(TopicId(topic.topic_id), "")
            for one in topic.partitions:
                key = TopicPartition(name, one.partition_index)
                yield Item(key, code_of(one.error_code), Offset(0))

    def final_outcome(
        self, key: TopicPartition, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> ClientError:
        del was_lost
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            return GroupInUse(self._group_id)
        return error_for(code, topic=key.topic, partition=key.partition, message=message)


class GroupInUse(ClientError):
    """The group has active members: only they may commit."""

    code = ErrorCode.UNKNOWN_MEMBER_ID

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        super().__init__(
            f"group {group_id!r} has active members, and only they may commit its offsets; use a"
            " group that no consumer subscribes with"
        )


async def commit_group_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, Offset],
    *,
    metadata: str = "",
    deadline: Deadline | None = None,
) -> dict[TopicPartition, ClientError | None]:
    """Commit for a group without members; the error of each partition, or None."""
    if deadline is None:
        deadline = cluster.deadline(f"committing offsets of group {group_id!r}")
    api = _CommitOffsets(cluster, group_id, metadata)
    outcomes = await call_each(api, offsets, deadline)
    return {
        partition: one if isinstance(one, ClientError) else None
        for partition, one in outcomes.items()
    }
