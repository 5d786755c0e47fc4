"""The administrator of a simulated cluster: creates, grows, moves and deletes topics meanwhile.

Requests go to any broker, so an answer may be older than the one before it: what was acknowledged
is compared in the end, when nothing changes any more.
"""

from typing import Final
from uuid import UUID

from millstream.rpc.connection import Connection
from millstream.rpc.connections import Address
from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.simulation.broker.client import Client
from millstream.testing.simulation.broker.scene import PORT
from millstream.testing.simulation.broker.watch import require
from millstream.testing.simulation.cluster.clients import CLUSTER_RETRIABLE
from millstream.testing.simulation.cluster.scene import ClusterScene, ClusterTopic
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

TIMEOUT_MS: Final = 1_500
TOPICS_MAX: Final = 8
"""At once, with those that clients use."""
SEGMENT_BYTES: Final = (6_000, 30_000, 500_000)

CREATE, DELETE, GROW, MOVE, CANCEL_MOVE, ELECT = (
    "create topic",
    "delete topic",
    "create partitions",
    "move partitions",
    "cancel a move",
    "elect leaders",
)
ADMIN_ACTIONS: Final = (CREATE, DELETE, GROW, MOVE, CANCEL_MOVE, ELECT)


class ClusterAdmin(Client):
    """One action after the other; what fails is not retried."""

    retriable = CLUSTER_RETRIABLE | {
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.TOPIC_ALREADY_EXISTS,
    }

    def __init__(self, scene: ClusterScene, name: str, randomness: SeededRandomness) -> None:
        super().__init__(scene, name, randomness)
        self._cluster = scene
        self.enabled_actions: frozenset[str] = frozenset()
        self._made_count = 0
        self.acknowledged: dict[str, UUID] = {}
        """Topics that exist, unless their deletion was requested."""
        self.partition_counts: dict[str, int] = {}
        self.gone: set[str] = set()
        """Topics whose deletion was acknowledged."""

    def inherit(self, other: "ClusterAdmin") -> None:
        """Take over what another administrator knows."""
        self.acknowledged, self.partition_counts = other.acknowledged, other.partition_counts
        self.gone = other.gone

    async def connection(self) -> Connection:
        hosts = list(self._cluster.broker_hosts.values())
        return await self._connections.get(Address(self.randomness.choice(hosts), PORT))

    async def work(self) -> None:
        actions = {
            CREATE: self._create_temporary,
            DELETE: self._delete_temporary,
            GROW: self._grow,
            MOVE: self._move,
            CANCEL_MOVE: self._cancel_move,
            ELECT: self._elect,
        }
        enabled = [name for name in actions if name in self.enabled_actions]
        while enabled and not self.scene.is_ending:
            name = self.randomness.choice(enabled)
            try:
                await actions[name]()
                self.scene.counts[name] += 1
            except RpcError:
                self.scene.counts["administrator not answered"] += 1
            await self.pause(0.1, 2.0)

    # -- topics ----------------------------------------------------------------------------

    async def create(
        self, name: str, *, partitions: int, factor: int, configs: dict[str, str]
    ) -> ClusterTopic:
        """Send requests until the topic exists."""
        segment_bytes = self.randomness.choice(SEGMENT_BYTES)
        while True:
            try:
                found = await self._create(name, partitions, factor, segment_bytes, configs)
                if found is not None:
                    return found
            except RpcError:
                pass
            await self.pause(0.05, 0.5)

    async def _create(
        self, name: str, partitions: int, factor: int, segment_bytes: int, configs: dict[str, str]
    ) -> ClusterTopic | None:
        settings = {
            "internal.segment.bytes": str(segment_bytes),
            "retention.ms": "-1",
            "file.delete.delay.ms": "500",
            **configs,
        }
        wanted = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            configs=[CreatableTopicConfig(name=key, value=text) for key, text in settings.items()],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
        code = (await self.call(request)).topics[0].error_code
        require(code == 0 or code in self.retriable, "CreateTopics", code=code)
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return None
        found = {one.name: one for one in (await self.list_topics()).topics}.get(name)
        if found is None or found.error_code or len(found.partitions) != partitions:
            return None  # a broker that lags; on retry the topic exists
        self.acknowledged[name] = found.topic_id
        self.partition_counts[name] = partitions
        topic = ClusterTopic(name, found.topic_id, partitions, True, segment_bytes)
        self.scene.topics[found.topic_id] = topic
        return topic

    async def list_topics(self) -> MetadataResponse:
        response: MetadataResponse = await self.call(MetadataRequest(topics=None))
        return response

    async def _create_temporary(self) -> None:
        if len(self.acknowledged) >= TOPICS_MAX:
            return
        self._made_count += 1
        factor = self.randomness.integer(1, min(4, len(self._cluster.broker_hosts) + 1))
        name = f"temp-{self._made_count}"
        segment_bytes = SEGMENT_BYTES[0]
        await self._create(name, self.randomness.integer(1, 4), factor, segment_bytes, {})

    async def _delete_temporary(self) -> None:
        names = [one for one in self.acknowledged if one.startswith("temp-")]
        if not names:
            return
        name = self.randomness.choice(names)
        topic_id = self.acknowledged.pop(name)
        self.scene.topics.pop(topic_id, None)
        self.scene.deletion_requested.add(topic_id)
        state = DeleteTopicState(name=name)
        request = DeleteTopicsRequest(topics=[state], timeout_ms=TIMEOUT_MS)
        code = (await self.call(request)).responses[0].error_code
        require(code == 0 or code in self.retriable, "DeleteTopics", code=code)
        if code == ErrorCode.NONE:
            self.gone.add(name)

    async def _grow(self) -> None:
        if not self.partition_counts:
            return
        name = self.randomness.choice(list(self.partition_counts))
        count = self.partition_counts[name] + 1
        if count > 4 or name not in self.acknowledged:
            return
        wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
        code = (await self.call(request)).results[0].error_code
        require(code == 0 or code in self.retriable, "CreatePartitions", code=code)
        if code == ErrorCode.NONE:
            self.partition_counts[name] = count

    # -- replicas --------------------------------------------------------------------------

    def _some_partition(self) -> tuple[str, int] | None:
        if not self.acknowledged:
            return None
        name = self.randomness.choice(list(self.acknowledged))
        return name, self.randomness.integer(0, self.partition_counts[name])

    async def _move(self) -> None:
        brokers = list(self._cluster.broker_hosts)
        chosen: list[int] = []
        for _ in range(self.randomness.integer(2, 4)):
            chosen.append(self.randomness.choice([one for one in brokers if one not in chosen]))
        await self._reassign(chosen)

    async def _cancel_move(self) -> None:
        await self._reassign(None)

    async def _reassign(self, replicas: list[int] | None) -> None:
        chosen = self._some_partition()
        if chosen is None:
            return
        partition = ReassignablePartition(partition_index=chosen[1], replicas=replicas)
        topic = ReassignableTopic(name=chosen[0], partitions=[partition])
        request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        response = await self.call(request)
        codes = [response.error_code]
        codes += [part.error_code for one in response.responses for part in one.partitions]
        for code in codes:
            require(code == 0 or code in self.retriable, "AlterPartitionReassignments", code=code)

    async def _elect(self) -> None:
        chosen = self._some_partition()
        if chosen is None:
            return
        wanted = [TopicPartitions(topic=chosen[0], partitions=[chosen[1]])]
        request = ElectLeadersRequest(
            election_type=0, topic_partitions=wanted, timeout_ms=TIMEOUT_MS
        )
        response = await self.call(request)
        codes = [response.error_code]
        results = response.replica_election_results
        codes += [part.error_code for one in results for part in one.partition_result]
        for code in codes:
            require(code == 0 or code in self.retriable, "ElectLeaders", code=code)

    # -- the end ---------------------------------------------------------------------------

    async def finish(self) -> None:
        """Nothing changes any more: check everything that was acknowledged."""
        response = await self.call_with_retries(MetadataRequest(topics=None))
        listed = {one.name: one for one in response.topics}
        for name, topic_id in self.acknowledged.items():
            require(name in listed, "a topic that was acknowledged is gone", topic=name)
            found = listed[name]
            require(found.topic_id == topic_id, "a topic has another id", topic=name)
            count = self.partition_counts[name]
            require(len(found.partitions) >= count, "partitions are gone", topic=name, want=count)
        back = [name for name in listed if name in self.gone]
        require(not back, "deleted topics are back", topics=back)
        await self._connections.close()
