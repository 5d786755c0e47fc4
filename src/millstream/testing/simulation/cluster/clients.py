"""Clients of a simulated cluster: those of the single broker's simulation, which find the leader.

Each works on one partition. It fetches metadata from any broker, connects to the leader, and
refreshes the metadata when the leader has changed.
"""

from collections.abc import Sequence
from typing import Any, Final

from millstream.rpc.connection import Connection
from millstream.rpc.connections import Address
from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.simulation.broker.client import RETRIABLE, Client
from millstream.testing.simulation.broker.consumers import (
    FIRST_WITH_TOPIC_IDS,
    Consumer,
    Cursor,
    LastReader,
)
from millstream.testing.simulation.broker.producers import (
    LOST_STATE,
    Batch,
    IdempotentProducer,
    NonIdempotentProducer,
)
from millstream.testing.simulation.broker.scene import PORT, Scene, Topic
from millstream.testing.simulation.broker.watch import require
from millstream.testing.simulation.cluster.scene import ClusterScene
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchResponse, PartitionData
from millstream.wire.messages.list_offsets import ListOffsetsResponse
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from millstream.wire.messages.produce import PartitionProduceResponse, ProduceRequest
from millstream.wire.schema import Message

CLUSTER_RETRIABLE: Final = RETRIABLE | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE,
}
"""Also the errors that occur while leaders and controllers change."""

REFUSED_BY_FORMER_LEADERS: Final = "sequences refused by former leaders"


class _LeaderClient(Client):
    """Finds the leader of one partition."""

    retriable = CLUSTER_RETRIABLE
    host_prefix = ""
    """Enters the names of random streams: with another one every seed is another run."""
    topic: Topic
    partition: int
    _leader: Address | None = None
    _leader_epoch = -1

    def any_broker(self) -> Address:
        hosts = list(_scene_of(self).broker_hosts.values())
        return Address(self.randomness.choice(hosts), PORT)

    async def connection(self) -> Connection:
        """To the leader; to any broker while it is not known."""
        if self._leader is None:
            await self.find_leader()
        try:
            return await self._connections.get(self._leader or self.any_broker())
        except RpcError:
            self._leader = None
            raise

    def forget_leader(self) -> None:
        self._leader = None

    async def find_leader(self) -> MetadataResponsePartition | None:
        """Fetch metadata from any broker; None when it does not know."""
        connection = await self._connections.get(self.any_broker())
        wanted = [MetadataRequestTopic(name=self.topic.name)]
        response = await connection.send(MetadataRequest(topics=wanted))
        addresses = {one.node_id: Address(one.host, one.port) for one in response.brokers}
        found = response.topics[0]
        if found.error_code:
            require(found.error_code in self.retriable, "Metadata", code=found.error_code)
            return None
        for partition in found.partitions:
            if partition.partition_index == self.partition:
                # A broker that lags may name a former leader: the newest epoch wins.
                if partition.leader_epoch >= self._leader_epoch:
                    self._leader = addresses.get(partition.leader_id)
                    self._leader_epoch = partition.leader_epoch
                return partition  # type: ignore[no-any-return]
        return None

    async def call(self, request: Message, version: int | None = None) -> object:
        try:
            return await super().call(request, version)
        except RpcError:
            self._leader = None
            raise


def _scene_of(client: Client) -> ClusterScene:
    scene = client.scene
    if not isinstance(scene, ClusterScene):
        raise TypeError("a client of a cluster in another scene")
    return scene


class ClusterIdempotentProducer(_LeaderClient, IdempotentProducer):
    """acks=all; whatever happens it sends again until it knows."""

    acks: Sequence[int] = (-1,)
    host_prefix = "idempotentproducer"

    def aim(self, topic: Topic, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.targets = [(topic, partition)]

    async def produce(
        self, connection: Connection, request: ProduceRequest, version: int
    ) -> PartitionProduceResponse | RpcError:
        before = self._current_leader()
        outcome = await super().produce(connection, request, version)
        if isinstance(outcome, RpcError) or outcome.error_code:
            self.forget_leader()
            self._ignore_former_leaders(outcome, connection.address, before)
        return outcome

    def _current_leader(self) -> tuple[str, int]:
        """The committed leader's host and epoch."""
        scene = _scene_of(self)
        state = scene.ledger.tree.partition(self.topic.name, self.partition)
        if state is None:
            return "", -1
        return scene.broker_hosts.get(state.leader, ""), state.leader_epoch

    def _ignore_former_leaders(
        self, outcome: PartitionProduceResponse | RpcError, address: str, before: tuple[str, int]
    ) -> None:
        """A deposed leader that does not know it yet lacks what its successor stored, and can only
        find that a sequence is wrong. That is no loss: the successor gets the batch next.
        """
        if isinstance(outcome, RpcError) or outcome.error_code not in LOST_STATE:
            return
        host = address.rpartition(":")[0]
        if host != before[0] or before != self._current_leader():
            self.scene.counts[REFUSED_BY_FORMER_LEADERS] += 1
            outcome.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class ClusterNonIdempotentProducer(_LeaderClient, NonIdempotentProducer):
    """Sends everything once, with any acks; only acks=all is a promise."""

    host_prefix = "plainproducer"

    def aim(self, topic: Topic, partition: int) -> None:
        self.topic, self.partition = topic, partition

    def has_to_move(self) -> bool:
        return self._leader is None

    def choose_topic(self) -> Topic:
        return self.topic

    def choose_partition(self, topic: Topic) -> int:
        del topic
        return self.partition

    async def produce(
        self, connection: Connection, request: ProduceRequest, version: int
    ) -> PartitionProduceResponse | RpcError:
        outcome = await super().produce(connection, request, version)
        if isinstance(outcome, RpcError) or outcome.error_code:
            self.forget_leader()
        return outcome

    async def _finish(self, connection: Connection, request: ProduceRequest, batch: Batch) -> None:
        if request.acks == -1:
            await super()._finish(connection, request, batch)
            return
        outcome = await self.produce(connection, request, FIRST_WITH_TOPIC_IDS)
        if not isinstance(outcome, RpcError) and outcome.error_code == ErrorCode.NONE:
            self.scene.counts["acknowledged by leaders only"] += 1


class ClusterConsumer(_LeaderClient, Consumer):
    """Reads one partition from its leader, with or without sessions and epochs."""

    host_prefix = "consumer"

    def __init__(self, scene: Scene, name: str, randomness: SeededRandomness) -> None:
        super().__init__(scene, name, randomness)
        self._session_with: Address | None = None

    def aim(self, topic: Topic, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.assign([(topic, partition)])

    async def _refresh_metadata(self, cursor: Cursor) -> None:
        found = await self.find_leader()
        if found is None or self._leader is None:
            await self.pause(0.05, 0.3)
            return
        if self._session_with != self._leader:
            self._forget_session()
            self._session_id, self._session_with = 0, self._leader
        cursor.leader_epoch = max(cursor.leader_epoch, self._leader_epoch)
        if self.is_fenced and not self._diverges and cursor.last_epoch >= 0:
            cursor.is_stale = not await self._validate(cursor)
        else:
            cursor.is_stale = False

    async def _poll(self) -> None:
        if any(cursor.is_stale for cursor in self.cursors):
            return
        try:
            await super()._poll()
        except RpcError:
            self._make_stale()
            raise

    async def _take(self, cursor: Cursor, data: PartitionData) -> bool:
        is_trouble = await super()._take(cursor, data)
        if data.error_code and data.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
            self._make_stale()
        return is_trouble

    def _make_stale(self) -> None:
        self.forget_leader()
        for cursor in self.cursors:
            cursor.is_stale = True

    async def _reset(self, cursor: Cursor) -> None:
        is_lost = self.scene.may_have_lost(cursor.partition_name)
        require(
            is_lost,
            "I-01 a position is out of range",
            at=cursor.partition_name,
            was=cursor.position,
        )
        await super()._reset(cursor)


class ClusterReader(_LeaderClient, LastReader):
    """Reads one partition once after the faults are over."""

    def aim(self, topic: Topic, partition: int) -> None:
        self.topic, self.partition = topic, partition

    async def read(self) -> None:
        await self._read(self.topic, self.partition)
        await self._connections.close()

    async def call_with_retries(self, request: Message, version: int | None = None) -> Any:
        """Leaders are balanced while it reads: retried until the leader answers."""
        while True:
            answer = await super().call_with_retries(request, version)
            if isinstance(answer, FetchResponse):
                code = answer.responses[0].partitions[0].error_code
            elif isinstance(answer, ListOffsetsResponse):
                code = answer.topics[0].partitions[0].error_code
            else:
                return answer
            if code not in self.retriable:
                return answer
            self.forget_leader()
            await self.pause(0.05, 0.3)
