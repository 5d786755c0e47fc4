"""The cluster components of a broker: constructed, started and stopped with it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millstream.broker.cluster.failed_replicas import FailedReplicas
from millstream.broker.cluster.forwarding import Forwarding
from millstream.broker.cluster.full_replicas import FullReplicas
from millstream.broker.cluster.identity import ClusterIdentity
from millstream.broker.cluster.lost_replicas import CHECK_INTERVAL_S, LostReplicas
from millstream.broker.cluster.member import ClusterMember, MemberDependencies
from millstream.broker.cluster.metadata import ClusterMetadata
from millstream.broker.cluster.metadata_barrier import MetadataBarrier
from millstream.broker.cluster.settings import (
    ClusterSettings,
    cluster_settings,
    inter_broker_listener,
    replica_settings,
)
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.net.listeners import ListenerAddress
from millstream.broker.requests.dispatch import Dispatch, Spawn
from millstream.broker.requests.services import Services
from millstream.broker.upkeep import Duty
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.registration import ClusterIds
from millstream.controller.errors import DirectoryNotOfThisCluster, InconsistentClusterId
from millstream.controller.identity import META_PROPERTIES
from millstream.controller.image import Endpoint, ImageChange
from millstream.coordination.port import Coordination
from millstream.model.config.cluster_keys import RACK_AWARE
from millstream.model.config.errors import InvalidConfig
from millstream.model.errors import AllDirectoriesFailed, OperatingError, StorageFailed
from millstream.model.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    Offset,
    TopicPartition,
)
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.fetch_wire import FetchLimits
from millstream.replication.fetchers import FetcherDependencies, ReplicaFetchers
from millstream.replication.partitions import Partitions
from millstream.replication.throttle import ReplicaThrottle
from millstream.rpc.connection import Connection
from millstream.rpc.connections import Connections
from millstream.rpc.settings import RpcSettings
from millstream.runtime.background import Background
from millstream.runtime.clock import Clock
from millstream.runtime.disk import Disk
from millstream.runtime.network import Network
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator
from millstream.runtime.task_race import until
from millstream.storage.manager.log_manager import LogManager, StartReport

if TYPE_CHECKING:
    from millstream.broker.cluster.standalone_import import StandaloneImport
    from millstream.controller.cluster.standalone_bootstrap import StandaloneState

log = get_logger("millstream.broker.cluster")

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"


@dataclass(slots=True, kw_only=True)
class ClusterDependencies:
    """What it takes from its broker."""

    broker_id: BrokerId
    configs: BrokerConfigs
    coordination: Coordination | None
    """None: that of `zookeeper.connect`."""
    disk: Disk
    background: Background
    network: Network
    clock: Clock
    client_log: ClientLog
    randomness: Randomness
    scheduler: CooperativeScheduler
    requests: CooperativeScheduler
    spawn: Spawn
    dispatch: Dispatch
    logs: LogManager
    partitions: Callable[[], Partitions]
    """Called late: they are made with `replication` and `fetchers`."""
    services: Callable[[], Services]
    flush_ready: Callable[[], None]
    """Sends answers that became ready."""


class ClusterRuntime:
    """`load`, `join`; later `hand_over`, `stop_serving` and `close`."""

    def __init__(self, dependencies: ClusterDependencies) -> None:
        """Raises InvalidConfig."""
        self._dependencies = dependencies
        configs = dependencies.configs
        self._settings = settings = cluster_settings(configs)
        replica_settings(configs)  # checks them
        self._identity = ClusterIdentity(
            dependencies.disk,
            configs.get_list("log.dirs"),
            broker_id=dependencies.broker_id,
            randomness=dependencies.randomness,
        )
        self.connections = Connections(
            dependencies.network,
            RpcSettings(
                client_id=f"broker-{dependencies.broker_id}",
                connect_timeout_s=settings.connect_timeout_s,
                request_timeout_s=settings.request_timeout_s,
            ),
            dependencies.randomness,
            prepare=self._prove,
        )
        self.member = ClusterMember(
            MemberDependencies(
                broker_id=dependencies.broker_id,
                configs=configs,
                settings=settings,
                coordination=dependencies.coordination or _kazoo(settings, dependencies),
                connections=self.connections,
                clock=dependencies.clock,
                client_log=dependencies.client_log,
                randomness=dependencies.randomness,
                scheduler=dependencies.scheduler,
                spawn=dependencies.spawn,
                partitions=dependencies.partitions,
            )
        )
        self.metadata = ClusterMetadata(self.member, configs.topic_defaults)
        self._standalone: StandaloneImport | None = None
        """Set for a broker that was standalone until now."""
        self.forwarding = self._make_forwarding()
        self.replication = self._make_replication()
        self.fetchers = self._make_fetchers()
        self._lost = LostReplicas(
            self.member.calls,
            dependencies.partitions,
            lambda: self.member.image,
            broker_id=dependencies.broker_id,
            broker_epoch=lambda: self.member.broker_epoch,
        )
        self._full = FullReplicas(
            self.member.calls,
            dependencies.partitions,
            lambda: self.member.image,
            broker_id=dependencies.broker_id,
            broker_epoch=lambda: self.member.broker_epoch,
        )
        self._failed = FailedReplicas(
            self.member,
            dependencies.partitions,
            self._full,
            broker_id=dependencies.broker_id,
            clock=dependencies.clock,
            scheduler=dependencies.scheduler,
        )
        self.unclean_truncations = 0

    async def _prove(self, connection: Connection) -> None:
        await self.member.prover.prove(connection)

    def _make_forwarding(self) -> Forwarding:
        dependencies = self._dependencies
        return Forwarding(
            dependencies.dispatch,
            dependencies.services,
            self.member.route,
            self.connections,
            spawn=dependencies.spawn,
            scheduler=dependencies.requests,
            timeout_s=self._settings.request_timeout_s,
            metadata_barrier=MetadataBarrier(self.member.metadata_follower.wait_for),
        )

    def _make_replication(self) -> ReplicationDependencies:
        configs, member = self._dependencies.configs, self.member
        return ReplicationDependencies(
            monotonic_s=self._dependencies.clock.monotonic_s,
            proposals=member.isr,
            may_propose=member.may_propose,
            may_lead=member.may_lead,
            epoch_of=member.epoch_of,
            lag_max_s=lambda: configs.get_int("replica.lag.time.max.ms") / 1000,
            is_rack_aware=lambda: configs.get_text("replica.selector.class") == RACK_AWARE,
            on_unclean=self._note_unclean,
            leader_throttle=ReplicaThrottle(lambda: configs.throttle_bytes_per_s(LEADER_RATE)),
        )

    def _make_fetchers(self) -> ReplicaFetchers:
        dependencies, member = self._dependencies, self.member
        configs = dependencies.configs
        return ReplicaFetchers(
            FetcherDependencies(
                connections=self.connections,
                address_of=member.address_of,
                replica=lambda: (dependencies.broker_id, member.broker_epoch),
                spawn=dependencies.spawn,
                limits=self._fetch_limits,
                back_off_max_s=lambda: configs.get_int("replica.fetch.backoff.ms") / 1000,
                flush_ready=dependencies.flush_ready,
                throttle=ReplicaThrottle(lambda: configs.throttle_bytes_per_s(FOLLOWER_RATE)),
            )
        )

    def _fetch_limits(self) -> FetchLimits:
        # For every request: these four only, since reading and checking all settings costs more.
        get_int = self._dependencies.configs.get_int
        return FetchLimits(
            wait_max_ms=get_int("replica.fetch.wait.max.ms"),
            bytes_min=get_int("replica.fetch.min.bytes"),
            bytes_max=get_int("replica.fetch.response.max.bytes"),
            partition_bytes_max=get_int("replica.fetch.max.bytes"),
        )

    def _note_unclean(self, partition: TopicPartition, mark: Offset, end: Offset) -> None:
        self.unclean_truncations += 1
        log.warning(
            "truncated committed records after an unclean leader election",
            partition=str(partition),
            high_watermark=mark,
            end=end,
        )

    # -- start -----------------------------------------------------------------------------

    def load(self) -> StartReport:
        """Check which cluster the directories belong to, lock them and open their logs."""
        dependencies = self._dependencies
        self._identity.read()
        if self._identity.was_standalone:
            return self._load_standalone()
        dependencies.logs.prepare(self._identity.withheld)
        # The topics' settings are not known yet; no records are removed by the defaults.
        report = dependencies.logs.start(lambda *_: dependencies.configs.log_config({}))
        self._identity.leave_out(report.failed_directories)
        self._identity.check_logs(len(report.loaded))
        self.member.loaded(last_epoch=report.last_broker_epoch, found_logs=len(report.loaded))
        return report

    def _load_standalone(self) -> StartReport:
        """Load the directories of a standalone broker; its metadata is imported whole or not."""
        # Imported here: it happens once in a broker's life.
        from millstream.broker.cluster.standalone_import import StandaloneImport
        from millstream.controller.cluster.standalone_bootstrap import STANDALONE_EPOCH

        dependencies = self._dependencies
        standalone = StandaloneImport(
            dependencies.disk,
            dependencies.configs.get_list("log.dirs"),
            broker_id=dependencies.broker_id,
            background=dependencies.background,
            randomness=dependencies.randomness,
        )
        standalone.read()
        dependencies.logs.prepare([], standalone.deleted)
        report = dependencies.logs.start(
            lambda partition, _: dependencies.configs.log_config(
                standalone.topic_configs(partition.topic)
            )
        )
        standalone.check(dependencies.logs, report)
        self._identity.leave_out(())
        last_epoch = STANDALONE_EPOCH if standalone.was_clean else NO_BROKER_EPOCH
        self.member.loaded(last_epoch=last_epoch, found_logs=len(report.loaded))
        self._standalone = standalone
        return report

    async def _bootstrap_cluster(self, state: "StandaloneState") -> None:
        """Write the standalone metadata to the coordination service, then mark the directories."""
        from millstream.controller.cluster.standalone_bootstrap import (
            ClusterExists,
            bootstrap_from_standalone,
        )

        settings = self._settings
        session = await self.member.coordination.connect(
            timeout_ms=settings.session_timeout_ms, wait_s=settings.connection_timeout_s
        )
        try:
            await bootstrap_from_standalone(session, state)
        except (ClusterExists, InconsistentClusterId) as error:
            first = self._dependencies.configs.get_list("log.dirs")[0]
            reason = f"it has the metadata of a standalone broker, and {error}"
            raise DirectoryNotOfThisCluster(first, reason) from error
        finally:
            await session.close()
        self._mark_directories(state.cluster_id)
        log.info(
            "standalone broker bootstrapped a cluster",
            topics=len(state.topics),
            cluster=state.cluster_id,
        )

    def _mark_directories(self, cluster_id: str) -> None:
        """Those that are still usable: the wait for the coordination service may have been long."""
        logs = self._dependencies.logs
        self._identity.leave_out(logs.unusable_directories())
        if logs.has_failed:
            raise AllDirectoriesFailed({one.path: str(one.failure) for one in logs.directories})
        with as_storage_error():
            self._identity.complete(cluster_id)
        logs.expect(META_PROPERTIES)

    def listener_among(self, bound: list[ListenerAddress], protocols: dict[str, str]) -> str:
        """The inter-broker listener; raises InvalidConfig without one."""
        return inter_broker_listener(self._dependencies.configs, bound, protocols)

    async def join(
        self,
        endpoints: tuple[Endpoint, ...],
        *,
        listener: str,
        on_change: Callable[[ImageChange], StepGenerator[None]],
    ) -> None:
        """Become a member; returns when the metadata has this broker and it leads its partitions.

        Raises what prevents it.
        """
        for one in endpoints:
            if not one.host:
                raise InvalidConfig(
                    f"advertised.listeners: {one.listener} needs an address at which other brokers"
                    " and clients reach this broker; it listens on all addresses"
                )
        member = self.member
        if self._standalone is not None:
            await self._bootstrap_cluster(self._standalone.state)
            self._standalone = None
        member.metadata_follower.subscribe(on_change)
        rack = self._dependencies.configs.get_text("broker.rack") or None
        registration = Registration(
            self._dependencies.broker_id,
            endpoints,
            rack,
            previous_epoch=member.last_epoch,
            directory_id=self._identity.directory_id,
        )
        identity = self._identity
        ids = ClusterIds(
            identity.cluster_id,
            identity.new_cluster_id,
            identity.seen_epoch,
            identity.complete_since,
        )
        member.begin(registration, ids, listener=listener)
        await member.wait_until_registered()
        self._mark_directories(member.cluster_id)
        await member.ready()
        with as_storage_error():
            identity.keep_epoch(member.seen_epoch)

    # -- periodic tasks --------------------------------------------------------------------

    def duties(self) -> dict[str, Duty]:
        """Periodic tasks of a broker of a cluster."""
        configs, dependencies = self._dependencies.configs, self._dependencies
        return {
            # A follower that was caught up at one check is in sync until the next.
            "lag of followers": Duty(
                lambda: configs.get_int("replica.lag.time.max.ms") / 2000,
                lambda: dependencies.partitions().check_lag_steps(),
            ),
            "high watermarks": Duty(
                lambda: configs.get_int("replica.high.watermark.checkpoint.interval.ms") / 1000,
                lambda: dependencies.partitions().store_high_watermarks_steps(),
            ),
            "lost replicas": Duty(lambda: CHECK_INTERVAL_S, self._check_lost),
            "full replicas": Duty(lambda: CHECK_INTERVAL_S, self._full.check),
            "failed replicas": Duty(lambda: CHECK_INTERVAL_S, self._failed.check),
        }

    def _check_lost(self) -> Coroutine[Any, Any, None] | None:
        """Report failed logs; a broker without any usable directory stops, as Kafka's does."""
        logs = self._dependencies.logs
        if not logs.has_failed:
            return self._lost.check()
        if self.member.failure is None:
            causes = {one.path: str(one.failure) for one in logs.directories}
            self.member.give_up(AllDirectoriesFailed(causes))
        return None

    def make_missing_logs(self) -> Coroutine[Any, Any, None] | None:
        """Create logs that could not be created because the disk was full."""
        partitions = self._dependencies.partitions()
        if not partitions.has_missing or self.member.is_changing:
            return None
        steps = self.member.between_changes_steps(partitions.retry_missing_steps())
        return self._dependencies.scheduler.run(steps, name="make missing logs")

    # -- stop ------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Controlled shutdown, while requests are still served."""
        await self.member.hand_over()

    async def stop_serving(self) -> None:
        """Stop leading and fetching."""
        await self.member.stop_following()
        self._dependencies.partitions().close_all_leaderships()
        self.fetchers.close()

    @property
    def last_epoch(self) -> BrokerEpoch:
        """Stored with a clean stop, as its proof."""
        return self.member.last_epoch

    async def close(self) -> None:
        """End the session and every connection, when the logs are closed."""
        await self.member.close()
        await self.connections.close()

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`, or until this broker cannot remain a member."""
        await until(stop, self.member.failed.wait())

    @property
    def failure(self) -> OperatingError | None:
        return self.member.failure


@contextmanager
def as_storage_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(str(error.filename), error.strerror or str(error)) from error


def _kazoo(settings: ClusterSettings, dependencies: "ClusterDependencies") -> Coordination:
    # Imported here: the simulator has its own, and a standalone broker needs none.
    from millstream.broker.cluster.coordination_access import open_coordination

    return open_coordination(settings, dependencies.clock, dependencies.broker_id)
