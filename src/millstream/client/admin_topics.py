"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from millstream.client.cluster import Cluster, RequestOrFactory
from millstream.client.errors import ClientError, TopicExists, code_of, error_for
from millstream.client.keyed_api import Item, KeyedApi, LeaderApi
from millstream.client.offsets import by_topic
from millstream.client.retries import Failure
from millstream.client.targets import CONTROLLER, Target
from millstream.model.ids import BrokerId, Offset, TopicId, TopicPartition
from millstream.rpc.connection import Connection
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

V = TypeVar("V")
R = TypeVar("R")

BROKERS_CHOICE: Final = -1
"""As many partitions or replicas as the broker's own default."""

_FIRST_WITH_STATES: Final = 6
"""Version of DeleteTopics that names topics in structs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int = BROKERS_CHOICE
    replication_factor: int = BROKERS_CHOICE
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: tuple[tuple[BrokerId, ...], ...] = ()
    """Replicas by partition, the preferred leader first; instead of the two numbers."""


class CreatedTopic(NamedTuple):
    """A topic that was created."""

    name: str
    topic_id: TopicId
    partitions: int
    """-1 where the broker is too old to return it."""
    replication_factor: int


class NewPartitions(NamedTuple):
    """More partitions for a topic."""

    total: int
    assignment: tuple[tuple[BrokerId, ...], ...] = ()
    """Replicas of each new partition; the brokers choose when empty."""


class _TopicApi(KeyedApi[str, V, R]):
    """An API that the controller serves, by topic name."""

    # A topic that the controller does not know does not exist: its metadata is authoritative.
    FINAL: ClassVar = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

    def __init__(self, cluster: Cluster, *, validates_only: bool = False) -> None:
        super().__init__(cluster)
        self.validates_only = validates_only
        self.timeout_ms = cluster.settings.request_timeout_ms

    async def route(self, keys: Collection[str]) -> dict[str, Target | Failure]:
        return dict.fromkeys(keys, CONTROLLER)

    def final_outcome(
        self, key: str, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> R | ClientError:
        del was_lost
        return error_for(code, topic=key, message=message)


class CreateTopics(_TopicApi[NewTopic, CreatedTopic]):
    """CreateTopics by name."""

    def build_request(self, items: Mapping[str, NewTopic]) -> CreateTopicsRequest:
        return CreateTopicsRequest(
            topics=[_creatable(one) for one in items.values()],
            timeout_ms=self.timeout_ms,
            validate_only=self.validates_only,
        )

    def read(self, response: Any) -> Iterable[Item[str, CreatedTopic]]:
        for one in response.topics:
            made = CreatedTopic(
                one.name, TopicId(one.topic_id), one.num_partitions, one.replication_factor
            )
            yield Item(one.name, code_of(one.error_code), made, one.error_message)

    def final_outcome(
        self, key: str, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> CreatedTopic | ClientError:
        if code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return TopicExists(key, may_be_ours=was_lost)
        return super().final_outcome(key, code, message, was_lost=was_lost)


def _creatable(one: NewTopic) -> CreatableTopic:
    # The two numbers must be -1 together with an assignment.
    is_assigned = bool(one.assignment)
    return CreatableTopic(
        name=one.name,
        num_partitions=BROKERS_CHOICE if is_assigned else one.partitions,
        replication_factor=BROKERS_CHOICE if is_assigned else one.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(one.assignment)
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in one.configs.items()
        ],
    )


class DeleteTopics(_TopicApi[None, bool]):
    """DeleteTopics by name; the result is True."""

    def build_request(self, items: Mapping[str, None]) -> RequestOrFactory:
        def made_for(connection: Connection) -> DeleteTopicsRequest:
            if connection.version_of(DeleteTopicsRequest) >= _FIRST_WITH_STATES:
                states = [DeleteTopicState(name=name) for name in items]
                return DeleteTopicsRequest(topics=states, timeout_ms=self.timeout_ms)
            return DeleteTopicsRequest(topic_names=list(items), timeout_ms=self.timeout_ms)

        return made_for

    def read(self, response: Any) -> Iterable[Item[str, bool]]:
        for one in response.responses:
            yield Item(one.name or "", code_of(one.error_code), True, one.error_message)

    def final_outcome(
        self, key: str, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> bool | ClientError:
        if was_lost and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return True  # deleted by the attempt whose answer was lost
        return super().final_outcome(key, code, message, was_lost=was_lost)


class CreatePartitions(_TopicApi[NewPartitions, bool]):
    """CreatePartitions by topic."""

    def build_request(self, items: Mapping[str, NewPartitions]) -> CreatePartitionsRequest:
        topics = [
            CreatePartitionsTopic(name=name, count=one.total, assignments=_assignments(one))
            for name, one in items.items()
        ]
        return CreatePartitionsRequest(
            topics=topics, timeout_ms=self.timeout_ms, validate_only=self.validates_only
        )

    def read(self, response: Any) -> Iterable[Item[str, bool]]:
        for one in response.results:
            yield Item(one.name, code_of(one.error_code), True, one.error_message)


def _assignments(one: NewPartitions) -> list[CreatePartitionsAssignment] | None:
    if not one.assignment:
        return None
    return [CreatePartitionsAssignment(broker_ids=list(replicas)) for replicas in one.assignment]


class DeleteRecords(LeaderApi[Offset, Offset]):
    """DeleteRecords by partition; the result is the new log start offset."""

    def build_request(self, items: Mapping[TopicPartition, Offset]) -> DeleteRecordsRequest:
        topics = [
            DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsPartition(partition_index=one.partition, offset=items[one])
                    for one in members
                ],
            )
            for name, members in by_topic(items).items()
        ]
        timeout_ms = self.cluster.settings.request_timeout_ms
        return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)

    def read(self, response: Any) -> Iterable[Item[TopicPartition, Offset]]:
        for topic in response.topics:
            for one in topic.partitions:
                key = TopicPartition(topic.name, one.partition_index)
                yield Item(key, code_of(one.error_code), Offset(one.low_watermark))

    def final_outcome(
        self, key: TopicPartition, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> ClientError:
        del was_lost
        return error_for(code, topic=key.topic, partition=key.partition, message=message)
