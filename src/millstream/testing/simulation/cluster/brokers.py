"""The brokers of a simulated cluster: each a process on a machine of its own, through all lives."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from millstream.broker.broker import Broker, BrokerDependencies
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.controller.cluster.registration import CoordinationIsOlder
from millstream.model.errors import OperatingError
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.manager.log_manager import StartReport
from millstream.testing.history.cluster_views import BrokerView
from millstream.testing.sim.crash_fates import keep_none, random_fates
from millstream.testing.sim.durability import FateChooser
from millstream.testing.sim.world import SimNode
from millstream.testing.simulation.broker.process import SimProcess
from millstream.testing.simulation.broker.scene import PORT
from millstream.testing.simulation.broker.watch import AnswerWatch, require
from millstream.testing.simulation.cluster.broker_views import view_of
from millstream.testing.simulation.cluster.keeper import KEEPER, KEEPER_PORT, LossyCoordination
from millstream.testing.simulation.cluster.recovery import RecoveryWatch
from millstream.testing.simulation.cluster.scene import SESSION_MS, ClusterScene, host_of

DIRECTORY: Final = "/data"
SECOND_DIRECTORY: Final = "/more"
SETTINGS: Final = {
    "zookeeper.connect": f"{KEEPER}:{KEEPER_PORT}",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "zookeeper.connection.timeout.ms": "4000",
    "metrics.port": "-1",
    "auto.create.topics.enable": "false",
    "log.dirs": DIRECTORY,
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "400",
    "replica.fetch.backoff.ms": "150",
    "replica.socket.timeout.ms": "2000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "request.timeout.ms": "2000",
    "socket.connection.setup.timeout.ms": "1000",
    "leader.imbalance.check.interval.seconds": "5",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "log.retention.check.interval.ms": "10000",
    "connections.max.idle.ms": "30000",
}


OWN_HOST: Final = "$HOST"
"""In a setting that all brokers have: the host of each."""


class BrokerMachine:
    """One broker's machine."""

    def __init__(self, scene: ClusterScene, broker: int, settings: Mapping[str, str]) -> None:
        self._scene = scene
        self.broker_id = broker
        self.host = host_of(broker)
        self._settings = {
            **SETTINGS,
            "broker.id": str(broker),
            "listeners": f"PLAINTEXT://{self.host}:{PORT}",
            **{key: value.replace(OWN_HOST, self.host) for key, value in settings.items()},
        }
        self.node: SimNode = scene.world.node(self.host, directories=self.directories)
        self.absent: str | None = None
        """A log directory that is lost, until it is brought back."""
        self._randomness: SeededRandomness = scene.randomness.fork(self.host)
        self.broker: Broker | None = None
        self.process: SimProcess | None = None
        self.coordination: LossyCoordination | None = None
        self.answers = AnswerWatch(scene.now_s)
        self.incarnation = 0
        self.should_run = True
        """The broker should be up; a failed start is retried."""
        self._starting: asyncio.Task[Broker] | None = None
        self._recovery = RecoveryWatch()
        self._loaded: Broker | None = None
        """The broker whose logs are loaded, even if it is still starting."""

    @property
    def directories(self) -> list[str]:
        return self._settings["log.dirs"].split(",")

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    @property
    def is_running(self) -> bool:
        """There is a process, which may still be starting."""
        return self.process is not None

    # -- lives -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a process without waiting for it."""
        self.should_run = True
        if self.process is not None:
            return
        self.incarnation += 1
        scene, node = self._scene, self.node
        self.answers = AnswerWatch(scene.now_s)
        process = SimProcess(scene.world.loop, self.host, node.network, self.answers.tap)
        coordination = LossyCoordination(scene, self.host, process, node)
        self.process, self.coordination = process, coordination
        self._starting = process.spawn(self._start(process, node, coordination), "start")
        self._starting.add_done_callback(self._started)

    async def _start(
        self, process: SimProcess, node: SimNode, coordination: LossyCoordination
    ) -> Broker:
        dependencies: dict[str, Any] = {
            "disk": node.disk,
            "clock": node.clock,
            "randomness": node.randomness,
            "background": node.background,
            "network": process.network,
            "coordination": coordination,
        }
        broker = Broker(BrokerConfigs(self._settings), BrokerDependencies(**dependencies))
        self._watch_loading(broker, process, node)
        report = await broker.start()
        unusable = report.unusable_partitions
        require(not unusable, "a broker could not open partitions", unusable=unusable)
        return broker

    def _watch_loading(self, broker: Broker, process: SimProcess, node: SimNode) -> None:
        """I-11: compare the logs with what the last process left, before they are used."""
        load = broker.logs.start

        def watched(config_of: Any) -> StartReport:
            report = load(config_of)
            if self.process is process:
                self._loaded = broker
                self._scene.fail_for(self._recovery.compare(broker, node.disk, absent=self.absent))
                self._scene.counts["recoveries"] += self._recovery.compared > 0
                self._recovery.compared = 0
            return report

        broker.logs.start = watched  # type: ignore[method-assign]

    def _started(self, task: asyncio.Task[Broker]) -> None:
        if task is not self._starting:
            if not task.cancelled():
                task.exception()
            return
        self._starting = None
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and error is None:
            self.broker = task.result()
            self._scene.counts["starts"] += 1
            return
        # The simulated service forgets nothing.
        is_refusal = isinstance(error, OperatingError | OSError)
        if error is not None and (not is_refusal or isinstance(error, CoordinationIsOlder)):
            self._scene.world.loop.fail(error)
            return
        self._scene.counts["starts that failed"] += 1
        self._scene.world.trace.note("start failed", self.host, type(error).__name__)
        logging.getLogger("millstream.simulation").info("start of %s: %s", self.host, error)
        self._give_up()
        self._scene.world.loop.call_later(0.3, self._begin_again)

    def _begin_again(self) -> None:
        if self.should_run and not self.is_running:
            self.begin()

    def _give_up(self) -> None:
        self._note_logs(loses_power=False)
        self._end()
        self.node.kill()
        self.node = self.node.restart()

    def kill(self) -> None:
        """SIGKILL: the page cache stays."""
        self.should_run = False
        self._give_up()

    def lose_power(self) -> None:
        """The machine stops; what was not synced may be lost."""
        self.should_run = False
        self._note_logs(loses_power=True)
        self._end()
        self.node.lose_power()

    def restore_power(self) -> None:
        self.node = self.node.restore_power(self._fates())

    def _fates(self) -> FateChooser:
        randomness = self._randomness
        return randomness.choice([keep_none, random_fates(randomness.fork("fates"))])

    def _note_logs(self, *, loses_power: bool) -> None:
        if self._loaded is not None:
            self._recovery.note(self._loaded, self.node.disk, loses_power=loses_power)
        self._loaded = None

    def forget_logs_in(self, directory: str) -> None:
        """Do not check its logs any more: they are gone for good."""
        self._recovery.forget(directory)

    def _end(self) -> None:
        self._starting = None
        self._scene.pauses.resume(self.host)
        if self.process is not None:
            self.process.kill()
        self.broker = self.process = self.coordination = None

    async def stop(self) -> None:
        """A clean stop, which leaves nothing behind (I-42)."""
        broker, process = self.broker, self.process
        self.should_run = False
        if broker is None or process is None:
            if process is not None:
                self._give_up()
            return
        self.broker = None
        task = process.spawn(broker.stop(), "stop")
        await asyncio.wait([task])
        if self.process is not process:
            return  # killed while it stopped
        task.result()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._check_nothing_is_left(process)
        self._give_up()

    def _check_nothing_is_left(self, process: SimProcess) -> None:
        left = process.leftovers()
        require(not left, "I-42 a stopped broker left work behind", broker=self.host, left=left)
        disk = self.node.disk
        files = sorted(file.path for file in disk._handles)  # noqa: SLF001
        require(not files, "I-42 a stopped broker left files open", files=files)
        require(not disk.storage.lock_holders, "I-42 a stopped broker left a lock")

    # -- views -----------------------------------------------------------------------------

    def view(self) -> BrokerView | None:
        """None while it is down or still starting."""
        broker, coordination = self.broker, self.coordination
        if broker is None or coordination is None:
            return None
        return view_of(
            broker,
            self.node.disk,
            incarnation=self.incarnation,
            has_lost_session=coordination.has_lost_session,
        )
