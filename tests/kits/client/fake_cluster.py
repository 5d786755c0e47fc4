"""Brokers for tests of the client, on a simulated network: what they know can be told to them.

Each has a view of its own, so that one can lag behind another; `script` holds errors that are
answered instead of the truth, and requests that get no answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kits.rpc.rpc_server import PORT, Asked, Server, Session, frame_of
from millstream.client.cluster import Cluster
from millstream.client.settings import ClientSettings
from millstream.model.ids import TopicPartition
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.world import SimWorld
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import request_type
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from millstream.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
SILENCE = "silence"
DISCONNECT = "disconnect"
FORGET = "forget"
"""An answer that says nothing about what was asked."""


@dataclass
class FakeTopic:
    """Of each partition the leader and its epoch."""

    topic_id: UUID
    leaders: list[tuple[int, int]]


@dataclass
class View:
    """What one broker believes."""

    topics: dict[str, FakeTopic] = field(default_factory=dict)
    controller: int = 1


class FakeBroker:
    """One broker."""

    def __init__(self, cluster: "FakeCluster", broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.host = f"broker{broker_id}"
        self.view = cluster.view
        self.server = Server(self.take)
        self.asked: list[Any] = []
        self.script: deque[ErrorCode | str] = deque()
        """For the next requests that are not about metadata."""
        self._silent: list[Session] = []
        self.offsets: dict[tuple[str, int], int] = {}
        self.listener: Any = None

    async def listen(self) -> None:
        host = self.cluster.world.network.host(self.host)
        self.listener = await self.server.listen(host, self.host)

    def stop(self) -> None:
        """The process dies; `listen` starts it again."""
        self.listener.close()
        self.cluster.world.network.kill_host(self.host)

    def take(self, session: Session, asked: Asked) -> None:
        request = request_type(asked.key).decode(asked.body, asked.version)
        self.asked.append(request)
        scripted: ErrorCode | str = ErrorCode.NONE
        if asked.key is not ApiKey.METADATA and self.script:
            scripted = self.script.popleft()
        if scripted == SILENCE:
            self._silent.append(session)
        if session in self._silent:
            return  # answers come in order: without this one there are no later ones
        response = self._answer(request, scripted)
        if scripted == DISCONNECT:
            session.transport.abort()
            return
        session.transport.write(frame_of(asked, response.encode(asked.version)))

    def _answer(self, request: Any, scripted: ErrorCode | str) -> Any:
        error = scripted if isinstance(scripted, ErrorCode) else ErrorCode.NONE
        match request:
            case MetadataRequest():
                return self._metadata(request)
            case ListOffsetsRequest():
                if scripted == FORGET:
                    return ListOffsetsResponse()
                return self._list_offsets(request, error)
            case CreateTopicsRequest():
                return self._create(request, error)
            case DeleteTopicsRequest():
                return self._delete(request, error)
            case FindCoordinatorRequest():
                return self._find_coordinator(request, error)
            case OffsetCommitRequest():
                return self._commit(request, error)
        raise AssertionError(f"nobody taught the fake broker {request}")

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = (
            list(self.view.topics)
            if request.topics is None
            else [one.name or "" for one in request.topics]
        )
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=one.broker_id, host=one.host, port=PORT)
                for one in self.cluster.brokers
            ],
            cluster_id="fake",
            controller_id=self.view.controller,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        topic = self.view.topics.get(name)
        if topic is None:
            return MetadataResponseTopic(error_code=UNKNOWN, name=name)
        return MetadataResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=epoch,
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else ErrorCode.NONE,
                )
                for index, (leader, epoch) in enumerate(topic.leaders)
            ],
        )

    def _list_offsets(self, request: ListOffsetsRequest, error: ErrorCode) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[self._offset(topic.name, one, error) for one in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _offset(self, name: str, asked: Any, error: ErrorCode) -> ListOffsetsPartitionResponse:
        index = asked.partition_index
        truth = self.cluster.view.topics.get(name)
        if error is ErrorCode.NONE and truth is None:
            error = UNKNOWN
        elif error is ErrorCode.NONE and truth is not None:
            leader, epoch = truth.leaders[index]
            if leader != self.broker_id:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif asked.current_leader_epoch < epoch:
                error = ErrorCode.FENCED_LEADER_EPOCH
        if error is not ErrorCode.NONE:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=error)
        offset = self.offsets.get((name, index), 0)
        return ListOffsetsPartitionResponse(partition_index=index, offset=offset, leader_epoch=0)

    def _create(self, request: CreateTopicsRequest, error: ErrorCode) -> CreateTopicsResponse:
        results = []
        for one in request.topics:
            code = error
            if code is ErrorCode.NONE and self.broker_id != self.cluster.view.controller:
                code = ErrorCode.NOT_CONTROLLER
            if code is ErrorCode.NONE and one.name in self.cluster.view.topics:
                code = ErrorCode.TOPIC_ALREADY_EXISTS
            if code is ErrorCode.NONE:
                self.cluster.add_topic(one.name, one.num_partitions)
            results.append(CreatableTopicResult(name=one.name, error_code=code))
        return CreateTopicsResponse(topics=results)

    def _delete(self, request: DeleteTopicsRequest, error: ErrorCode) -> DeleteTopicsResponse:
        results = []
        for one in request.topics:
            gone = self.cluster.view.topics.pop(one.name or "", None)
            code = error if error is not ErrorCode.NONE or gone else UNKNOWN
            results.append(DeletableTopicResult(name=one.name, error_code=code))
        return DeleteTopicsResponse(responses=results)

    def _find_coordinator(
        self, request: FindCoordinatorRequest, error: ErrorCode
    ) -> FindCoordinatorResponse:
        found = [
            Coordinator(key=key, node_id=2, host="broker2", port=PORT, error_code=error)
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)

    def _commit(self, request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
        """Topics are told by id, as in the newest version."""
        names = {topic.topic_id: name for name, topic in self.view.topics.items()}
        topics = []
        for topic in request.topics:
            name = names[topic.topic_id]
            partitions = []
            for one in topic.partitions:
                if error is ErrorCode.NONE:
                    key = (request.group_id, name, one.partition_index)
                    self.cluster.committed[key] = one.committed_offset
                partitions.append(
                    OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=error
                    )
                )
            topics.append(OffsetCommitResponseTopic(topic_id=topic.topic_id, partitions=partitions))
        return OffsetCommitResponse(topics=topics)


class FakeCluster:
    """Brokers 1 to n, all with the same view until a test gives one its own."""

    def __init__(self, count: int = 3, *, seed: int = 1) -> None:
        self.world = SimWorld(seed)
        self.view = View()
        self.brokers = [FakeBroker(self, number + 1) for number in range(count)]
        self._ids = 0
        self.committed: dict[tuple[str, str, int], int] = {}
        """By group, topic and partition."""
        self.cluster: Cluster

    def broker(self, broker_id: int) -> FakeBroker:
        return self.brokers[broker_id - 1]

    def add_topic(self, name: str, partitions: int = 1) -> FakeTopic:
        self._ids += 1
        leaders = [(1 + index % len(self.brokers), 0) for index in range(partitions)]
        topic = self.view.topics[name] = FakeTopic(UUID(int=self._ids), leaders)
        return topic

    def asked(self, kind: type[Any]) -> list[tuple[int, Any]]:
        """(broker, request) of every request of that kind."""
        return [
            (broker.broker_id, one)
            for broker in self.brokers
            for one in broker.asked
            if isinstance(one, kind)
        ]

    def play(
        self,
        scenario: Callable[[Cluster], Coroutine[Any, Any, None]],
        configs: Mapping[str, object] | None = None,
        *,
        listening: bool = True,
    ) -> None:
        """Run it in virtual time with a client that knows the first broker."""

        async def main() -> None:
            if listening:
                for broker in self.brokers:
                    await broker.listen()
            settings = ClientSettings.from_configs(
                {"bootstrap.servers": f"broker1:{PORT}", **(configs or {})}
            )
            cluster = Cluster(
                settings,
                network=self.world.network.host("client"),
                randomness=SeededRandomness(1),
            )
            try:
                await scenario(cluster)
            finally:
                await cluster.close()
            await asyncio.sleep(0.1)  # until the brokers have heard
            left = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
            assert not left, f"tasks were left behind: {left}"

        self.world.run(main)


def partition(index: int, topic: str = "events") -> TopicPartition:
    return TopicPartition(topic, index)
