"""The broker: wires its components together, starts, runs and stops them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from millstream.broker import gauges
from millstream.broker.configs import standalone_defaults
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.fetch.sessions import FetchSessions
from millstream.broker.garbage import CHECK_INTERVAL_S as GARBAGE_CHECK_INTERVAL_S
from millstream.broker.garbage import Garbage
from millstream.broker.groups.service import OFFSETS_TOPIC, GroupService, GroupServiceDependencies
from millstream.broker.net.exchange import ExchangeHooks
from millstream.broker.net.limits import ConfiguredLimits
from millstream.broker.net.listeners import (
    LISTENER_FOR_BROKERS,
    PLAINTEXT,
    ListenerAddress,
    advertised_listeners,
    check_listener_for_brokers,
    check_protocols,
    parse_listeners,
)
from millstream.broker.net.server import Server
from millstream.broker.produce.producer_ids import BlockSource, ProducerIds
from millstream.broker.requests import registry
from millstream.broker.requests.context import Peer, RequestFacts
from millstream.broker.requests.dispatch import Dispatch, Forward
from millstream.broker.requests.services import Services
from millstream.broker.requests.tasks import TaskScope
from millstream.broker.upkeep import (
    ROOM_CHECK_S,
    Duty,
    Upkeep,
    log_changes_steps,
    log_end_of_move,
    log_loaded,
)
from millstream.controller.cluster.tally import Tally
from millstream.controller.identity import META_PROPERTIES
from millstream.controller.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    ImageChange,
    TopicImage,
)
from millstream.controller.standalone.controller import StandaloneController
from millstream.coordination.port import Coordination
from millstream.kernels.slots import SlotTable
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId, TopicId, TopicPartition
from millstream.model.invariant import InvariantViolated, invariant
from millstream.model.limits import OPEN_FILES_MAX, WORKER_REQUESTS_MAX
from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.observe.process import ProcessFacts
from millstream.replication.partitions import Partitions
from millstream.runtime.background import Background, ThreadBackground
from millstream.runtime.clock import Clock, SystemClock
from millstream.runtime.descriptors import UNLIMITED
from millstream.runtime.disk import Disk
from millstream.runtime.network import LoopNetwork, Network
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import Randomness, system_randomness
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator
from millstream.runtime.serving_clock import ServingClock
from millstream.runtime.timers import LoopTimers
from millstream.storage.config import LogConfig
from millstream.storage.manager.log_manager import LogManager, StartReport, StorageDependencies

if TYPE_CHECKING:
    from millstream.broker.cluster.runtime import ClusterRuntime
    from millstream.observe.server import ObserveServer

log = get_logger("millstream.broker")

STOP_TIMEOUT_S: Final = 10.0
"""Time for requests and background work to finish before a stop proceeds without them (I-42)."""

WARM_UP_STEP_S: Final = 0.02


@dataclass(slots=True)
class BrokerDependencies:
    """What a broker takes from its process; the defaults are for production."""

    disk: Disk = field(default_factory=OsDisk)
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=system_randomness)
    background: Background | None = None
    """None: threads of the running loop."""
    network: Network | None = None
    """None: the machine's sockets, without asyncio transports."""
    coordination: Coordination | None = None
    """None: the servers of `zookeeper.connect`; without any the broker is standalone."""
    process: ProcessFacts | None = None
    host_name: str = ""
    """The address a broker of a cluster advertises when its settings have none."""
    open_files_max: int = OPEN_FILES_MAX
    """Segment files held open at once."""
    connections_max: int = UNLIMITED
    """Of clients, whatever the settings allow."""
    metrics_port: int | None = None
    """Where metrics are served if the settings have no port; a free port if this one is taken."""
    return_memory: Callable[[], None] = lambda: None
    """Gives memory that is free back to the system."""


class Broker:
    """Construct it on a running loop, `await start()`, later `await stop()`."""

    def __init__(
        self, configs: BrokerConfigs, dependencies: BrokerDependencies | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        dependencies = dependencies or BrokerDependencies()
        self._configs = configs
        self._dependencies = dependencies
        self._background = dependencies.background or ThreadBackground(loop)
        self.broker_id = BrokerId(configs.get_int("broker.id"))
        self.metrics = BrokerMetrics(dependencies.process)
        self._client_log = ClientLog(dependencies.clock)
        self._tasks = TaskScope(self._client_log, lambda: self.server.exchange.charge_task())  # noqa: PLW0108
        self._scheduler = CooperativeScheduler(self._background, self._tasks.spawn)
        self._computing = dependencies.background or ThreadBackground(
            loop, workers=WORKER_REQUESTS_MAX
        )
        self._requests = requests = CooperativeScheduler(
            self._background,
            self._tasks.spawn,
            worker_jobs_max=WORKER_REQUESTS_MAX,
            computing=self._computing,
        )
        self._garbage = Garbage(lambda: self._scheduler.is_busy or requests.is_busy)
        self._table = SlotTable(violation=InvariantViolated)
        self.logs = self._make_logs()
        dispatch = Dispatch(
            lambda: self.services, self._tasks.spawn, requests, forwarders=self._forwarded()
        )
        self.server = Server(
            dispatch,
            self._table,
            ConfiguredLimits(configs, dependencies.connections_max),
            self.metrics,
            clock=dependencies.clock,
            background=self._background,
            network=dependencies.network,
            hooks=ExchangeHooks(
                after_write=self._wake_readers,
                on_read_error=self.logs.on_read_error,
                client_log=self._client_log,
                return_memory=dependencies.return_memory,
            ),
        )
        self.cluster = self._make_cluster(dispatch) if self._is_in_cluster else None
        """None for a standalone broker."""
        self._own_controller = None if self.cluster is not None else self._make_controller()
        timers = LoopTimers(loop, dependencies.clock)
        self._serving = ServingClock(dependencies.clock)
        self.groups = self._make_groups(timers)
        self.partitions = self._make_partitions()
        self.services = self._make_services(dispatch, timers)
        self.server.exchange.held.memory.include(
            lasting=lambda: self.groups.members_bytes + self.services.fetch_sessions.size_bytes,
            decompressed=lambda: dispatch.decompressed_bytes,
        )
        gauges.register(self.services)
        tally = self.cluster.member.tally if self.cluster is not None else Tally()
        gauges.register_cluster(self.services, tally)
        self._upkeep = self._make_upkeep()
        self.endpoints: list[ListenerAddress] = []
        """Where clients can connect, once started."""
        self._observe: ObserveServer | None = None
        self._not_ready: str | None = "the broker is starting"
        self._warming: asyncio.TimerHandle | None = None
        self.metrics_port: int | None = None

    @property
    def _is_in_cluster(self) -> bool:
        servers = self._configs.get_list("zookeeper.connect")
        return self._dependencies.coordination is not None or bool(servers)

    def _make_logs(self) -> LogManager:
        dependencies, configs = self._dependencies, self._configs
        return LogManager(
            StorageDependencies(
                dependencies.disk, dependencies.clock, dependencies.randomness, self._background
            ),
            configs.get_list("log.dirs"),
            open_files_max=dependencies.open_files_max,
            cleaner_limits=configs.cleaner_limits(),
            on_move_ended=partial(log_end_of_move, self._client_log),
        )

    def _make_controller(self) -> StandaloneController:
        """Of a standalone broker."""
        dependencies, configs = self._dependencies, self._configs
        return StandaloneController(
            disk=dependencies.disk,
            background=self._background,
            randomness=dependencies.randomness,
            directories=configs.get_list("log.dirs"),
            broker_id=self.broker_id,
            check_configs=configs.check_topic_configs,
            scheduler=self._scheduler,
            on_full=self.logs.note_full,
        )

    def _make_cluster(self, dispatch: Dispatch) -> "ClusterRuntime":
        # Imported here: a start is measured in tenths of a second, and a standalone broker needs
        # none of it.
        from millstream.broker.cluster.runtime import ClusterDependencies, ClusterRuntime

        dependencies = self._dependencies
        return ClusterRuntime(
            ClusterDependencies(
                broker_id=self.broker_id,
                configs=self._configs,
                coordination=dependencies.coordination,
                disk=dependencies.disk,
                background=self._background,
                network=dependencies.network or LoopNetwork(),
                clock=dependencies.clock,
                client_log=self._client_log,
                randomness=dependencies.randomness,
                scheduler=self._scheduler,
                requests=self._requests,
                spawn=self._tasks.spawn,
                dispatch=dispatch,
                logs=self.logs,
                partitions=lambda: self.partitions,
                services=lambda: self.services,
                flush_ready=self.server.exchange.flush_ready,
            )
        )

    def _forwarded(self) -> dict[int, Forward]:
        """Entry points for requests that only the controller of a cluster can serve."""
        if not self._is_in_cluster:
            return {}
        from millstream.broker.cluster.forwarding import FORWARDED

        return dict.fromkeys(FORWARDED, self._forward)

    def _forward(self, peer: Peer, facts: RequestFacts, body: memoryview) -> None:
        if self.cluster is not None:
            self.cluster.forwarding.take(peer, facts, body)

    def _make_groups(self, timers: LoopTimers) -> GroupService:
        return GroupService(
            GroupServiceDependencies(
                services=lambda: self.services,
                clock=self._serving,
                timers=timers,
                scheduler=self._scheduler,
                spawn=self._tasks.spawn,
                at_iteration_end=self.server.exchange.run_at_end,
            )
        )

    def _make_partitions(self) -> Partitions:
        cluster = self.cluster
        return Partitions(
            self.logs,
            self._configs,
            self._table,
            broker_id=self.broker_id,
            cluster=cluster.replication if cluster is not None else None,
            fetchers=cluster.fetchers if cluster is not None else None,
            listeners={OFFSETS_TOPIC: self.groups},
            iterations=self.server.exchange,
        )

    def _wake_readers(self) -> None:
        self.partitions.wake_readers()

    def _make_upkeep(self) -> Upkeep:
        duties = {
            "missing logs": Duty(lambda: ROOM_CHECK_S, self._make_missing_logs),
            "suppressed log lines": Duty(lambda: 1.0, self._client_log.sweep),
            "garbage": Duty(lambda: GARBAGE_CHECK_INTERVAL_S, self._garbage.collect_if_due),
        }
        return Upkeep(
            self.logs,
            self._configs,
            self.metrics,
            clock=self._dependencies.clock,
            serving=self._serving,
            scheduler=self._scheduler,
            flush_ready=self.server.exchange.flush_ready,
            duties=duties | (self.cluster.duties() if self.cluster is not None else {}),
        )

    @property
    def controller(self) -> StandaloneController:
        """Of a standalone broker."""
        controller = self._own_controller
        invariant(controller is not None, "a broker of a cluster has no controller of its own")
        return cast("StandaloneController", controller)

    @property
    def image(self) -> ClusterImage:
        """This broker's view of the cluster metadata."""
        return self.services.image

    def _make_services(self, dispatch: Dispatch, timers: LoopTimers) -> Services:
        dependencies, configs = self._dependencies, self._configs
        cluster = self.cluster
        blocks: BlockSource = cluster.member.producer_id_blocks if cluster else self.controller
        return Services(
            broker_id=self.broker_id,
            clock=dependencies.clock,
            randomness=dependencies.randomness,
            timers=timers,
            responder=dispatch,
            configs=configs,
            controller=cluster.metadata if cluster else self.controller,
            logs=self.logs,
            partitions=self.partitions,
            fetch_sessions=FetchSessions(
                slots_max=configs.get_int("max.incremental.fetch.session.cache.slots"),
                clock=dependencies.clock,
                randomness=dependencies.randomness,
            ),
            producer_ids=ProducerIds(blocks, self._tasks.spawn),
            metrics=self.metrics,
            client_log=self._client_log,
            membership=cluster.metadata if cluster else None,
            groups=self.groups,
        )

    # -- start -----------------------------------------------------------------------------

    async def start(self) -> StartReport:
        """Load the logs, open the ports, accept clients.

        Raises OperatingError (locked or unusable directories, bad settings) or OSError (a port
        that is taken); everything is closed again then.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop(is_clean=False)
            raise

    async def _start(self) -> StartReport:
        configs, cluster = self._configs, self.cluster
        wanted = parse_listeners("listeners", configs.get_written("listeners"))
        protocols = _protocol_map(configs)
        check_protocols(wanted, protocols)
        check_listener_for_brokers(wanted, configs.get_text(LISTENER_FOR_BROKERS))
        report = self._load_standalone() if cluster is None else cluster.load()
        bound = await self.server.bind(wanted)
        given = parse_listeners("advertised.listeners", configs.get_written("advertised.listeners"))
        chosen = advertised_listeners(bound, given)
        self.services.unnamed_listeners = frozenset(one.name for one in chosen if not one.host)
        advertised_endpoints = self._advertised_endpoints(chosen)
        self.endpoints = bound
        if cluster is None:
            self.controller.register(BrokerImage(self.broker_id, advertised_endpoints, self._rack))
            self.controller.subscribe(self._on_change_steps, prepare=self.partitions.prepare_steps)
            await self._serve_metrics()  # before clients connect: its port may be taken
        else:
            await self._serve_metrics()
            listener = cluster.listener_among(bound, protocols)
            await cluster.join(
                advertised_endpoints, listener=listener, on_change=self._on_change_steps
            )
        self._upkeep.start()
        self._warm_up(registry.load_all())
        self.server.accept()
        self._not_ready = None
        _log_start(report, bound)
        if cluster is None:
            for problem in standalone_defaults.problems(configs):
                log.warning("setting does not fit a standalone broker", problem=problem)
        return report

    def _load_standalone(self) -> StartReport:
        """Load metadata and logs of a standalone broker."""
        self.controller.load()
        self._use_dynamic_configs()
        deleted = {topic.topic_id for topic in self.controller.deleted_topics}
        self.logs.prepare(self.controller.directory_plan.withheld, deleted)
        report = self.logs.start(self._config_of)
        self.controller.leave_out(self.logs.unusable_directories())
        self.controller.open()
        self.logs.expect(META_PROPERTIES)
        if self.controller.is_first_start:
            # The one line that distinguishes a disk that is not mounted from a new broker.
            log.info(
                "first start: no earlier data found",
                directories=",".join(self._configs.get_list("log.dirs")),
                cluster=self.controller.image.cluster_id,
            )
        for gone in self.controller.directory_plan.forgotten:
            log.info("forgot a missing log directory that had no partitions", directory=gone.path)
        self._adopt(report)
        self.partitions.attach(self.controller.image)
        return report

    def _adopt(self, report: StartReport) -> None:
        """Adopt topics in the log directories that the metadata does not have: Apache Kafka's."""
        found = {one.partition: one.context.topic_id for one in self.logs}
        outcome = self.controller.adopt(
            found,
            leader_epochs={one.partition: one.latest_epoch for one in self.logs},
            is_complete=not report.failed_directories and not report.unusable_partitions,
        )
        for partition in outcome.to_delete:
            self.logs.delete(partition)
        for topic in outcome.adopted:
            log.info("topic adopted", topic=topic.name, partitions=len(topic.partitions))
        for refused, reason in outcome.refused.items():
            log.warning("partition not adopted", partition=str(refused), reason=reason)

    def _config_of(self, partition: TopicPartition, _: TopicId | None) -> LogConfig:
        topic = self.controller.image.topics.get(partition.topic)
        return self._configs.log_config(topic.configs if topic is not None else {})

    def _advertised_endpoints(self, endpoints: list[ListenerAddress]) -> tuple[Endpoint, ...]:
        host = self._dependencies.host_name if self.cluster is not None else ""
        return tuple(Endpoint(one.name, one.host or host, one.port, PLAINTEXT) for one in endpoints)

    @property
    def _rack(self) -> str | None:
        return self._configs.get_text("broker.rack") or None

    async def _serve_metrics(self) -> None:
        port, preferred = self._configs.get_int("metrics.port"), self._dependencies.metrics_port
        if port < 0 and preferred is None:
            return
        from millstream.observe.server import ObserveServer

        self._observe = ObserveServer(
            self._dependencies.network or LoopNetwork(),
            self.metrics,
            why_not_ready=lambda: self._not_ready,
            prepare=self._register_gauges,
        )
        host = self.endpoints[0].host
        if port < 0 and preferred is not None:
            self.metrics_port = await self._observe.start_on_any_port(host=host, port=preferred)
            return
        try:
            self.metrics_port = await self._observe.start(host=host, port=port)
        except OSError as error:
            reason = f"metrics.port {port} on {host or 'all addresses'}: {error.strerror or error}"
            raise OSError(error.errno, reason) from error

    def _register_gauges(self) -> None:
        """Register the gauges whose modules are only loaded for a scrape."""
        from millstream.broker.groups import gauges as group_gauges

        group_gauges.register(self.services)

    def _on_change_steps(self, change: ImageChange) -> StepGenerator[None]:
        """Apply a metadata change; called when it is durable, before its author is answered.

        Created partitions exist already: they were prepared before the change became visible.
        """
        is_started = self._not_ready is None  # a start applies metadata that is not new
        if change.brokers_reconfigured:
            self._use_dynamic_configs()
        cluster = self.cluster
        if cluster is not None:
            yield from cluster.member.apply_change_steps(change)
        else:
            yield from self.partitions.follow_up_steps(change)
        yield from self.groups.metadata_changed_steps(change)
        if is_started:
            yield from log_changes_steps(self._client_log, change)
        if change.created or change.grown:
            self._garbage.freeze()
        if change.deleted and cluster is None:
            self._tasks.spawn(self._forget_gone(change.deleted), "forget deleted topics")
        if change.brokers_reconfigured:  # by now it is applied to the logs
            self.server.apply_connection_limit()
            self._upkeep.run_now()

    async def _forget_gone(self, topics: Sequence[TopicImage]) -> None:
        """Forget deleted topics of which no directory has files any more."""
        is_gone = self.logs.is_gone
        gone = [one.topic_id for one in topics if all(map(is_gone, one.names_of_partitions()))]
        if gone:
            with suppress(OperatingError):  # the next start forgets them
                await self.controller.forget_deleted(gone)

    def _make_missing_logs(self) -> Coroutine[Any, Any, None] | None:
        if self.cluster is not None:
            return self.cluster.make_missing_logs()
        if not self.partitions.has_missing:
            return None
        return self.controller.run_between(
            self.partitions.retry_missing_steps, name="make missing logs"
        )

    def _use_dynamic_configs(self) -> None:
        found = self.image.broker_configs
        self._configs.set_dynamic(
            broker=found.get(str(self.broker_id), {}), default=found.get("", {})
        )

    def _warm_up(self, steps: Iterator[object]) -> None:
        """Load the handlers that no request has needed yet, between requests, one at a time.

        What is loaded then stays forever, so the garbage collector need not scan it again.
        """
        if next(steps, None) is None:
            # Only in a broker process: inside a test process the collector is not ours to set.
            if self._dependencies.process is not None:
                self._garbage.begin()
            return
        loop = asyncio.get_running_loop()
        self._warming = loop.call_later(WARM_UP_STEP_S, self._warm_up, steps)

    @property
    def failure(self) -> OperatingError | None:
        """Why a started broker cannot continue; it must be stopped then."""
        return self.cluster.failure if self.cluster is not None else None

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`, or until the broker cannot continue."""
        if self.cluster is None:
            await stop.wait()
        else:
            await self.cluster.serve_until(stop)

    # -- stop ------------------------------------------------------------------------------

    async def stop(self, *, is_clean: bool = True, hands_over: bool = True) -> None:
        """Close connections, end background work, flush, and write the clean-shutdown marker.

        Without `hands_over` there is no controlled shutdown: no other broker is left.
        """
        self._not_ready = "the broker is stopping"
        if self.cluster is not None and is_clean and hands_over:
            await self.cluster.hand_over()
        self._upkeep.stop()
        self.groups.stop()
        if self._warming is not None:
            self._warming.cancel()
        if self._observe is not None:
            await self._observe.close()
        if self.cluster is not None:
            await self.cluster.stop_serving()
        await self.server.close()
        self._requests.stop()  # no client is connected any more
        await self._tasks.close(timeout_s=1.0)
        if self._computing is not self._background:
            await self._computing.close(timeout_s=0.0)
        self.partitions.stop_waiting()
        self.logs.stop_work()
        unfinished = await self._background.close(timeout_s=STOP_TIMEOUT_S)
        if unfinished:
            log.warning("background work did not finish in time", work=unfinished[:5])
        if self.cluster is not None:
            self.logs.close(broker_epoch=self.cluster.last_epoch)
            await self.cluster.close()
        else:
            self.logs.close()
            self.controller.close()
        self._client_log.close()
        if is_clean:
            log.info("broker stopped", broker=self.broker_id)


def _protocol_map(configs: BrokerConfigs) -> dict[str, str]:
    entries = configs.get_list("listener.security.protocol.map")
    return {name: protocol for name, _, protocol in (one.partition(":") for one in entries)}


def _log_start(report: StartReport, bound: list[ListenerAddress]) -> None:
    for directory, cause in report.failed_directories.items():
        log.error("log directory offline", directory=directory, cause=cause)
    for partition, cause in report.unusable_partitions.items():
        log.error(
            "partition offline: its log could not be loaded", partition=str(partition), cause=cause
        )
    for partition, loaded in report.loaded.items():
        log_loaded(partition, loaded)
    log.info(
        "broker started",
        partitions=len(report.loaded),
        recovered=bool(report.unclean_directories and report.loaded),
        listeners=",".join(one.url for one in bound),
    )
