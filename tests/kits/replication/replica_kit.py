"""Brokers that lead, follow and fetch on a simulated network, with images made by hand.

No controller: `Cluster` is who decides, and every change is a line of the test. What leaders
propose is decided by `Decider`: the partition epoch and the incarnations must be the current ones.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any
from uuid import UUID

from kits.broker.data_plane import LISTENER, Settings
from kits.storage.log_stories import batch_of
from millstream.broker.fetch.sessions import FetchSessions
from millstream.broker.net.exchange import ExchangeHooks
from millstream.broker.net.listeners import ListenerAddress
from millstream.broker.net.server import Server
from millstream.broker.requests.dispatch import Dispatch
from millstream.broker.requests.services import Services
from millstream.broker.requests.tasks import TaskScope
from millstream.controller.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    ImageChange,
    MovedPartition,
    PartitionImage,
    TopicImage,
)
from millstream.kernels.slots import SlotTable
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.model.invariant import InvariantViolated
from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.client_log import ClientLog
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.errors import ProposalRefused
from millstream.replication.fetch_wire import FetchLimits
from millstream.replication.fetchers import FetcherDependencies, ReplicaFetchers
from millstream.replication.isr_port import IsrAnswer, IsrProposal, IsrState
from millstream.replication.partition import Partition
from millstream.replication.partitions import Partitions
from millstream.replication.throttle import UNLIMITED, ReplicaThrottle
from millstream.rpc.addresses import host_port
from millstream.rpc.connection import Connection, connect
from millstream.rpc.connections import Address, Connections
from millstream.rpc.settings import RpcSettings
from millstream.runtime.scheduler import run_blocking
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.storage.ports import AppendOutcome
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all
from millstream.testing.sim.world import SimNode, SimWorld
from millstream.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)

ROOT = "/data"
PORT = 9092
TOPIC = "t"
TOPIC_ID = TopicId(UUID(int=7))
LAG_S = 10.0
WAIT_MAX_MS = 200


class Limits:
    """Of connections: more than any test needs."""

    frame_bytes_max = 64 * 2**20
    in_flight_max = 64
    request_memory_bytes = 512 * 2**20
    send_buffer_bytes = None
    connections_max = 1000
    idle_s = 3600.0

    def per_address_max(self, address: str) -> int:
        del address
        return 1000


class Timers:
    """The virtual loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
        return self._loop.call_later(delay_s, callback, *arguments)


class ImageHolder:
    """What handlers see of the controller."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image


class ReplicaBroker:
    """One broker as far as replication goes. `start` it; `crash` or `stop` it, and start again."""

    def __init__(self, cluster: "Cluster", broker_id: int) -> None:
        self._cluster = cluster
        self.broker_id = BrokerId(broker_id)
        self.name = f"broker-{broker_id}"
        self.epoch = BrokerEpoch(0)
        self.node: SimNode = cluster.world.node(self.name, directories=[ROOT])
        self.is_up = False
        self.is_suspended = False

    async def start(self) -> None:
        node, cluster = self.node, self._cluster
        self.epoch = BrokerEpoch(cluster.next_epoch())
        self.settings = Settings(cluster.config)
        self.settings.min_in_sync = str(cluster.min_in_sync)
        self.tasks = TaskScope(ClientLog(node.clock))
        self.table = SlotTable(violation=InvariantViolated)
        dependencies = StorageDependencies(node.disk, node.clock, node.randomness, node.background)
        self.logs = LogManager(dependencies, [ROOT])
        self.logs.start(lambda _partition, _topic_id: self.settings.config)
        self.holder = ImageHolder(cluster.image)
        dispatch = Dispatch(lambda: self.services, self.tasks.spawn)
        metrics = BrokerMetrics()
        self.server = Server(
            dispatch,
            self.table,
            Limits(),
            metrics,
            clock=node.clock,
            background=node.background,
            network=node.network,
            hooks=ExchangeHooks(
                after_write=self._wake_readers,
                on_read_error=self.logs.on_read_error,
            ),
        )
        self._join_cluster()
        self.services: Services = Services(
            broker_id=self.broker_id,
            clock=node.clock,
            randomness=node.randomness,
            timers=Timers(cluster.world.loop),
            responder=dispatch,
            configs=self.settings,  # type: ignore[arg-type] # the part that is used
            controller=self.holder,  # type: ignore[arg-type]
            logs=self.logs,
            partitions=self.partitions,
            fetch_sessions=FetchSessions(
                slots_max=100, clock=node.clock, randomness=node.randomness
            ),
            producer_ids=None,  # type: ignore[arg-type]
            client_log=ClientLog(node.clock),
            metrics=metrics,
        )
        await self.server.bind([ListenerAddress(LISTENER, self.name, PORT)])
        self.server.accept()
        self.is_up = True
        self.lag_timer = cluster.world.loop.call_later(LAG_S / 2, self._check_lag)
        self.partitions.attach(cluster.image)

    def _join_cluster(self) -> None:
        node, cluster, exchange = self.node, self._cluster, self.server.exchange
        self.connections = Connections(
            node.network,
            RpcSettings(request_timeout_s=5.0, connect_timeout_s=1.0),
            node.randomness,
            prepare=self._prove,
        )
        self.fetchers = ReplicaFetchers(
            FetcherDependencies(
                connections=self.connections,
                address_of=lambda one: Address(f"broker-{one}", PORT),
                replica=lambda: (self.broker_id, self.epoch),
                spawn=self.tasks.spawn,
                limits=lambda: FetchLimits(wait_max_ms=WAIT_MAX_MS),
                flush_ready=exchange.flush_ready,
                throttle=ReplicaThrottle(lambda: cluster.follower_rate),
            )
        )
        self.partitions = Partitions(
            self.logs,
            self.settings,
            self.table,
            broker_id=self.broker_id,
            cluster=ReplicationDependencies(
                monotonic_s=node.clock.monotonic_s,
                proposals=cluster.decider,
                may_propose=lambda: not self.is_suspended,
                lag_max_s=lambda: LAG_S,
                leader_throttle=ReplicaThrottle(lambda: cluster.leader_rate),
                epoch_of=cluster.epoch_of,
            ),
            fetchers=self.fetchers,
            iterations=exchange,
        )

    async def _prove(self, connection: Connection) -> None:
        """Without a coordination service there are no secrets: whoever connects is believed."""
        for broker in self._cluster.brokers.values():
            if broker.is_up and connection.address == host_port(broker.name, PORT):
                for peer in broker.server._peers.values():
                    if peer.client_host == self.name:
                        peer.prove(self.broker_id)

    def _wake_readers(self) -> None:
        self.partitions.wake_readers()

    def _check_lag(self) -> None:
        run_blocking(self.partitions.check_lag_steps())
        self.lag_timer = self._cluster.world.loop.call_later(LAG_S / 2, self._check_lag)

    def apply(self, change: ImageChange, image: ClusterImage) -> None:
        self.holder.image = image
        self.partitions.apply(change)

    # -- ends

    async def stop(self) -> None:
        """A clean stop."""
        self._let_go()
        await self.server.close()
        await self.connections.close()
        await self.tasks.close(timeout_s=0.0)
        self.partitions.stop_waiting()
        self.logs.stop_work()
        self.logs.close(broker_epoch=self.epoch)

    async def crash(self) -> None:
        """The process dies at once; what it wrote stays."""
        self._let_go()
        self.node.kill()
        await self.tasks.close(timeout_s=0.0)
        self.partitions.stop_waiting()
        self.node = self.node.restart()

    def _let_go(self) -> None:
        self.is_up = False
        self.lag_timer.cancel()
        self.fetchers.close()

    # -- reading

    def leader(self, index: int = 0) -> Partition:
        return self.partitions.get((TOPIC, index))

    def log(self, index: int = 0) -> Log:
        return self.logs.get(TopicPartition(TOPIC, index))

    def values(self, index: int = 0) -> list[bytes | None]:
        return [record.value for record in read_all(self.log(index))]

    def append(
        self, *values: bytes, acks: int = -1, index: int = 0, is_batch: bool = False
    ) -> list[AppendOutcome]:
        """One batch each; the outcomes, as they come."""
        outcomes: list[AppendOutcome] = []
        for group in [values] if is_batch else [(one,) for one in values]:
            self.leader(index).append(batch_of(*group), acks=acks, done=outcomes.append)
        self.partitions.wake_readers()
        return outcomes


class Decider:
    """The controller's part in changes of the in-sync replicas, unless a test says otherwise."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.seen: list[IsrProposal] = []
        self.is_deaf = False
        """Proposals are never answered."""
        self.failing: OperatingError | None = None
        self.tells = True
        """Whether the brokers get the metadata that was decided."""

    def propose(self, proposal: IsrProposal, done: Callable[[IsrAnswer], None]) -> None:
        self.seen.append(proposal)
        if not self.is_deaf:
            self._cluster.world.loop.call_later(0.01, lambda: done(self._decide(proposal)))

    def _decide(self, proposal: IsrProposal) -> IsrAnswer:
        if self.failing is not None:
            return self.failing
        cluster, index = self._cluster, proposal.partition.partition
        now = cluster.partition(index)
        if (now.leader_epoch, now.partition_epoch) != (
            proposal.leader_epoch,
            proposal.partition_epoch,
        ):
            return ProposalRefused("an older state")
        for one in proposal.isr:
            if one.broker_epoch not in (-1, cluster.epoch_of(one.broker_id)):
                return ProposalRefused("another incarnation")
        isr = tuple(one.broker_id for one in proposal.isr)
        changed = now._replace(isr=isr, partition_epoch=now.partition_epoch + 1)
        cluster.put(index, changed, tell=cluster.up() if self.tells else ())
        return IsrState(changed.leader, changed.leader_epoch, isr, changed.partition_epoch)


class Cluster:
    """A topic of some partitions, all with the same replicas."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        partitions: int = 1,
        min_in_sync: int = 1,
        config: LogConfig = SMALL_SEGMENTS,
        seed: int = 1,
    ) -> None:
        self.world = SimWorld(seed, time_limit_s=10_000.0)
        self.config = config
        self.min_in_sync = min_in_sync
        self._epochs = 100
        self.leader_rate = self.follower_rate = UNLIMITED
        """Bytes in a second, of every broker, for partitions that `configure` throttles."""
        self.decider = Decider(self)
        ids = tuple(BrokerId(number) for number in range(1, brokers + 1))
        self.brokers = {one: ReplicaBroker(self, one) for one in ids}
        topic = TopicImage(
            TOPIC,
            TOPIC_ID,
            tuple(
                PartitionImage(index, ids, ids, ids[index % brokers], LeaderEpoch(1), 0)
                for index in range(partitions)
            ),
            {},
        )
        self.image = ClusterImage(
            cluster_id="test",
            controller_id=ids[0],
            brokers={
                one: BrokerImage(one, (Endpoint(LISTENER, f"broker-{one}", PORT),), f"rack-{one}")
                for one in ids
            },
            topics={TOPIC: topic},
            broker_configs={},
        )

    def __getitem__(self, broker_id: int) -> ReplicaBroker:
        return self.brokers[BrokerId(broker_id)]

    def play(self, story: Callable[["Cluster"], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            for broker in self.brokers.values():
                await broker.start()
            await story(self)
            for broker in self.up():
                await broker.stop()

        self.world.run(main)

    def next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    def epoch_of(self, broker_id: BrokerId) -> BrokerEpoch | None:
        broker = self.brokers[broker_id]
        return broker.epoch if broker.is_up else None

    def up(self) -> list[ReplicaBroker]:
        return [one for one in self.brokers.values() if one.is_up]

    # -- the metadata

    def partition(self, index: int = 0) -> PartitionImage:
        return self.image.topics[TOPIC].partitions[index]

    def put(
        self, index: int, partition: PartitionImage, *, tell: Iterable[ReplicaBroker] | None = None
    ) -> None:
        """Change a partition's state, and tell brokers of it: all that are up."""
        topic = self.image.topics[TOPIC]
        ones = list(topic.partitions)
        ones[index] = partition
        topic = topic._replace(partitions=tuple(ones))
        self.image = self.image.changed(put=[topic])
        self.tell(self.up() if tell is None else tell, index)

    def configure(self, configs: Mapping[str, str]) -> None:
        """Change the topic's settings."""
        topic = self.image.topics[TOPIC]._replace(configs=dict(configs))
        self.image = self.image.changed(put=[topic])
        for broker in self.up():
            broker.apply(ImageChange(reconfigured=[topic]), self.image)

    def tell(self, brokers: Iterable[ReplicaBroker], index: int = 0) -> None:
        """Send the current state of a partition to brokers."""
        topic = self.image.topics[TOPIC]
        change = ImageChange(moved=[MovedPartition(topic, topic.partitions[index])])
        for broker in brokers:
            broker.apply(change, self.image)

    def elect(
        self,
        leader: int,
        *,
        isr: Iterable[int],
        index: int = 0,
        tell: Iterable[ReplicaBroker] | None = None,
    ) -> None:
        now = self.partition(index)
        changed = now._replace(
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(now.leader_epoch + 1),
            partition_epoch=now.partition_epoch + 1,
            isr=tuple(BrokerId(one) for one in isr),
        )
        self.put(index, changed, tell=tell)

    async def consume(
        self, broker: int, offset: Offset, *, rack: str, wait_ms: int = 0
    ) -> PartitionData:
        """One fetch by a consumer, on a connection of its own."""
        host = self.world.network.host("consumer")
        connection = await connect(host, RpcSettings(), host=f"broker-{broker}", port=PORT)
        one = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10_000)
        topic = FetchTopic(topic_id=TOPIC_ID, partitions=[one])
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=10_000, topics=[topic], rack_id=rack
        )
        answer = await connection.send(request)
        connection.close()
        found = answer.responses[0].partitions[0]
        assert isinstance(found, PartitionData)
        return found

    # -- waiting

    async def until(
        self, condition: Callable[[], object], what: str = "", *, within_s: float = 60.0
    ) -> None:
        """Virtual time passes until it is so."""
        end_s = self.world.loop.time() + within_s
        while not condition():
            assert self.world.loop.time() < end_s, f"not in {within_s} s: {what or condition}"
            await asyncio.sleep(0.0005)

    async def until_equal(self, *brokers: int, index: int = 0, high: bool = True) -> None:
        """All of them have the same records, and know that they count."""
        ones = [self[one] for one in brokers or self.brokers]

        def is_equal() -> bool:
            ends = {one.log(index).log_end for one in ones}
            marks = {one.log(index).high_watermark for one in ones}
            return len(ends) == 1 and (not high or marks == ends)

        await self.until(is_equal, "equal replicas")
        assert len({tuple(one.values(index)) for one in ones}) == 1

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def offsets(outcomes: Iterable[AppendOutcome]) -> list[Offset]:
    assert not [one.error for one in outcomes if one.error is not None]
    return [one.base_offset for one in outcomes]
