"""A simulated cluster without random faults: a test scripts one event after the other.

All invariants are checked meanwhile, as in the simulation with faults.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from millstream.rpc.connections import Address
from millstream.rpc.errors import RpcError
from millstream.testing.history.cluster_views import CommittedPartition, LeaderClaim, ReplicaView
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.sim.crash_fates import keep_none
from millstream.testing.simulation.broker.client import Client
from millstream.testing.simulation.broker.consumers import Records, records_in
from millstream.testing.simulation.broker.scene import PORT
from millstream.testing.simulation.broker.simulation import errors_are_failures
from millstream.testing.simulation.cluster.brokers import BrokerMachine
from millstream.testing.simulation.cluster.coverage import count_events
from millstream.testing.simulation.cluster.keeper import KEEPER
from millstream.testing.simulation.cluster.scene import host_of
from millstream.testing.simulation.cluster.simulation import ClusterSimulation
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from millstream.wire.schema import Message

TOPIC: Final = "story"
WAIT_S: Final = 30.0
_FETCH_VERSION: Final = 12
_PRODUCE_VERSION: Final = 11


class ScriptedCluster:
    """Three brokers, one topic of one partition, and one client that can call each broker."""

    def __init__(
        self, seed: int = 1, *, brokers: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        self.simulation = ClusterSimulation(
            seed, duration_s=0.0, broker_count=brokers, settings=settings or {}
        )
        self.scene = self.simulation.scene
        self.client = Client(self.scene, "client", self.scene.randomness.fork("client"))

    def run(self, story: Callable[["ScriptedCluster"], Awaitable[None]]) -> None:
        """Run it to its end, which is a clean stop of everything."""

        async def main() -> None:
            await self.simulation.begin()
            await story(self)
            self.client.process.kill()
            await self.simulation.stop_all()

        with errors_are_failures(), count_events(self.scene.counts):
            self.scene.world.run(main)

    # -- machines --------------------------------------------------------------------------

    def machine(self, broker: int) -> BrokerMachine:
        return self.simulation.brokers[broker]

    def kill(self, *brokers: int) -> None:
        for broker in brokers:
            self.machine(broker).kill()

    def lose_power(self, *brokers: int) -> None:
        """Everything that was not synced is gone."""
        for broker in brokers:
            self.scene.excuses.wounded.add(broker)
            machine = self.machine(broker)
            machine.lose_power()
            machine.node = machine.node.restore_power(keep_none)

    async def start(self, *brokers: int) -> None:
        for broker in brokers:
            self.machine(broker).begin()
        await self.until(lambda: all(self.machine(one).is_up for one in brokers), "started")

    def cut(self, one: int, other: int) -> None:
        self.scene.world.network.partition(host_of(one), host_of(other))

    def cut_from_keeper(self, broker: int) -> None:
        self.scene.world.network.partition(host_of(broker), KEEPER)

    def heal(self) -> None:
        self.scene.world.network.heal_all()

    # -- waiting ---------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Any], message: str) -> None:
        await self.scene.until(condition, f"never: {message}", limit_s=WAIT_S)

    async def until_led(self, *, by: int | None = None, isr: set[int] | None = None) -> None:
        """The partition has that leader, which knows it, and those in sync."""

        def is_so() -> bool:
            state = self.state()
            claim = self.claim(state.leader) if state is not None else None
            return (
                state is not None
                and claim is not None
                and claim.leader_epoch == state.leader_epoch
                and (by is None or state.leader == by)
                and (isr is None or set(state.isr) == set(claim.isr) == isr)
            )

        await self.until(is_so, f"led by {by} with {isr} in sync, it is {self.state()}")

    async def successor(self, former: int, *, dies: int | None = None) -> int:
        """The leader after `former`, with all others in sync but one that dies just now."""
        if dies is not None:
            self.kill(dies)
        await self.until_led(
            isr={one for one in self.simulation.brokers if one not in (former, dies)}
        )
        state = self.state()
        if state is None:
            raise AssertionError("the partition is gone")
        return state.leader

    def state(self) -> CommittedPartition | None:
        partitions = self.scene.committed.partitions.values()
        return next((one for one in partitions if one.key.topic == TOPIC), None)

    def lost(self) -> tuple[int, ...]:
        """The brokers that have lost the partition's log, by the coordination service."""
        state = self.state()
        return state.lost if state is not None else ()

    def replica(self, broker: int) -> ReplicaView | None:
        view = self.machine(broker).view()
        found = view.replicas.values() if view is not None else ()
        return next((one for one in found if one.key.topic == TOPIC), None)

    def claim(self, broker: int) -> LeaderClaim | None:
        machine = self.simulation.brokers.get(broker)
        view = machine.view() if machine is not None else None
        found = view.claims.values() if view is not None else ()
        return next((one for one in found if one.key.topic == TOPIC), None)

    # -- the client ------------------------------------------------------------------------

    async def call(
        self,
        broker: int,
        request: Message,
        version: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Send one request to that broker."""
        client = self.client

        async def send() -> Any:
            connections = client._connections  # noqa: SLF001
            connection = await connections.get(Address(host_of(broker), PORT))
            versions = None if version is None else range(version, version + 1)
            return await connection.send(request, versions=versions, timeout_s=timeout_s)

        return await client.process.spawn(send(), "call")

    async def create(
        self, replicas: Sequence[int], *, in_sync_min: int = 2, is_unclean: bool = False
    ) -> None:
        configs = {
            "min.insync.replicas": str(in_sync_min),
            "unclean.leader.election.enable": "true" if is_unclean else "false",
        }
        wanted = CreatableTopic(
            name=TOPIC,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[*replicas])],
            configs=[CreatableTopicConfig(name=name, value=text) for name, text in configs.items()],
        )
        if not is_unclean:
            self.scene.promised.add(TOPIC)
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=5000)
        response = await self.call(replicas[0], request)
        code = response.topics[0].error_code
        if code:
            raise AssertionError(f"not created: {ErrorCode(code).name}")
        await self.until_led(by=replicas[0], isr={*replicas})

    async def produce(
        self,
        broker: int,
        *values: bytes,
        acks: int = -1,
        timeout_ms: int = 1500,
        producer_id: int = -1,
        sequence: int = -1,
    ) -> int | ErrorCode | None:
        """The base offset, an error, or None without an answer; with an id, as idempotent ones."""
        spec = BatchSpec(
            timestamp_ms=self.client.clock.wall_ms(),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
        )
        records = bytes(build_batch([(None, value) for value in values], spec))
        data = PartitionProduceData(index=0, records=records)
        topic = TopicProduceData(name=TOPIC, partition_data=[data])
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])
        try:
            response = await self.call(broker, request, _PRODUCE_VERSION)
        except RpcError:
            return None
        answer = response.responses[0].partition_responses[0]
        return ErrorCode(answer.error_code) if answer.error_code else int(answer.base_offset)

    async def fetch(
        self,
        broker: int,
        offset: int = 0,
        *,
        leader_epoch: int = -1,
        last_epoch: int = -1,
        replica: int = -1,
    ) -> PartitionData:
        """One fetch without waiting; as a consumer, or in a follower's name."""
        part = FetchPartition(
            partition=0,
            fetch_offset=offset,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=last_epoch,
            partition_max_bytes=1 << 20,
        )
        request = FetchRequest(
            replica_id=replica,
            max_wait_ms=0,
            min_bytes=1,
            topics=[FetchTopic(topic=TOPIC, partitions=[part])],
        )
        response = await self.call(broker, request, _FETCH_VERSION)
        data: PartitionData = response.responses[0].partitions[0]
        return data

    async def read(self, broker: int) -> Records:
        """Everything that a consumer may see on that leader."""
        records: Records = []
        while True:
            data = await self.fetch(broker, records[-1][0] + 1 if records else 0)
            if data.error_code:
                raise AssertionError(f"fetch: {ErrorCode(data.error_code).name}")
            found = records_in(data.records)
            if not found:
                return records
            records += found

    async def read_values(self, broker: int) -> list[bytes]:
        return [value for _, value in await self.read(broker)]
