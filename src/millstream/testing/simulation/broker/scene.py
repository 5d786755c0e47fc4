"""What a broker's simulation shares, and its broker, which dies and comes back."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from millstream.broker.broker import Broker, BrokerDependencies
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.model.errors import OperatingError
from millstream.model.ids import TopicPartition
from millstream.testing.history.checker import NEVER, History, PartitionName
from millstream.testing.sim.crash_fates import keep_all, keep_none, random_fates
from millstream.testing.sim.durability import FateChooser
from millstream.testing.sim.world import SimNode, SimWorld
from millstream.testing.simulation.broker.process import SimProcess
from millstream.testing.simulation.broker.watch import (
    AnswerWatch,
    StoredLog,
    check_limits,
    check_survivor,
    require,
    stored_logs,
)

HOST: Final = "broker"
PORT: Final = 9092
SESSION_SLOTS: Final = 2
"""Fewer than there are consumers with sessions, so that some are evicted."""
CONNECTIONS_MAX: Final = 64
IDLE_S: Final = 20.0
WRITE_BUFFERS_BYTES: Final = (1, 20_000, 256_000)
"""Of the broker's connections: with a small one answers wait in the broker, files and all."""
FLUSH_EVERY: Final = "flush.messages"


class Topic(NamedTuple):
    """A topic as its creator knows it."""

    name: str
    topic_id: UUID
    partition_count: int
    is_durable: bool
    """`flush.messages` is 1: what was acknowledged or read survives a power loss."""
    segment_bytes: int

    def partition_name(self, partition: int) -> PartitionName:
        return partition_name_of(self.name, self.topic_id, partition)


def partition_name_of(name: str, topic_id: UUID | str, partition: int) -> PartitionName:
    """The name of a partition in the history: a topic that was created again has another."""
    return (f"{name}/{topic_id}", partition)


class Scene:
    """The state that all parts of one run share."""

    def __init__(self, seed: int) -> None:
        self.world = SimWorld(seed, time_limit_s=3600.0)
        self.randomness = self.world.randomness.fork("scene")
        self.history = History()
        self.counts: Counter[str] = Counter()
        self.topics: dict[UUID, Topic] = {}
        """Those that can be written to."""
        self.deletion_requested: set[UUID] = set()
        """Topics whose deletion was requested; may be gone or not. Never iterated."""
        self.is_ending = False
        """The faults are over: finish what was begun."""
        self.is_quiet = False
        """Everything was finished: from here on every request is answered in time (I-41)."""
        self.producer_ids: set[int] = set()
        self.powers_lost = 0

    def now_s(self) -> float:
        return self.world.loop.time()

    def may_have_lost(self, partition_name: PartitionName) -> bool:
        """Whether an event may have lost what was acknowledged or read there."""
        del partition_name
        return self.powers_lost > 0

    def watch_task(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """A failure of a client ends the run."""
        task.add_done_callback(self._finished)
        return task

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.watch_task(self.world.loop.create_task(work, name=name))

    def _finished(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.loop.fail(error)

    async def until(self, condition: Any, message: str, *, limit_s: float) -> None:
        """Wait for it in virtual time; not in time is a failure."""
        deadline_s = self.now_s() + limit_s
        while not condition():
            require(self.now_s() < deadline_s, message, limit_s=limit_s)
            await asyncio.sleep(0.05)


class SimBroker:
    """One broker on one simulated machine, through all its lives."""

    def __init__(self, scene: Scene, directories: list[str], settings: Mapping[str, str]) -> None:
        self._scene = scene
        self._settings = {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://{HOST}:{PORT}",
            "log.dirs": ",".join(directories),
            "metrics.port": "-1",
            "auto.create.topics.enable": "false",
            "max.incremental.fetch.session.cache.slots": str(SESSION_SLOTS),
            "max.connections": str(CONNECTIONS_MAX),
            "connections.max.idle.ms": str(int(IDLE_S * 1000)),
            **settings,
        }
        self._randomness = scene.randomness.fork("broker")
        self.node: SimNode = scene.world.node(HOST, directories=directories)
        self.answers = AnswerWatch(scene.now_s)
        self.broker: Broker | None = None
        self._process: SimProcess | None = None
        self._left: tuple[dict[TopicPartition, StoredLog], bool] | None = None
        """The logs before the process ended without warning, and whether by a power loss."""

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    # -- lives -----------------------------------------------------------------------------

    async def start(self) -> bool:
        """Start a process; False when the disk is too full for that, or for some partitions.

        An operator makes room then and starts it again.
        """
        node, world = self.node, self._scene.world
        self.answers = AnswerWatch(self._scene.now_s)
        process = SimProcess(
            world.loop,
            HOST,
            node.network,
            self.answers.tap,
            write_buffer_bytes=self._randomness.choice(WRITE_BUFFERS_BYTES),
        )
        try:
            broker, unusable = await process.spawn(self._start(process), "start")
        except OperatingError as error:
            broker, unusable = None, str(error)
        if broker is None or unusable:
            require(self._is_full(), "a broker with room on its disk did not start", why=unusable)
            process.kill()
            self.node.kill()
            self.node = self.node.restart()
            return False
        self._process, self.broker = process, broker
        self._check_survivors(broker)
        self._scene.counts["starts"] += 1
        return True

    async def _start(self, process: SimProcess) -> tuple[Broker, str]:
        """The broker, and which partitions it could not open."""
        node = self.node
        dependencies = BrokerDependencies(
            disk=node.disk,
            clock=node.clock,
            randomness=node.randomness,
            background=node.background,
            network=process.network,
        )
        broker = Broker(BrokerConfigs(self._settings), dependencies)
        report = await broker.start()
        return broker, ", ".join(report.unusable_partitions.values())

    def kill(self) -> None:
        """SIGKILL: the page cache stays."""
        self._note_end(is_power_loss=False)
        self.node.kill()
        self.node = self.node.restart()

    def lose_power(self) -> None:
        """The machine stops; what was not synced may be lost."""
        self._scene.powers_lost += 1
        self._note_end(is_power_loss=True)
        self.node.lose_power()

    def restore_power(self) -> None:
        self.node = self.node.restore_power(self._fates())

    def _fates(self) -> FateChooser:
        randomness = self._randomness
        return randomness.choice([keep_all, keep_none, random_fates(randomness.fork("fates"))])

    def _note_end(self, *, is_power_loss: bool) -> None:
        broker, process = self.broker, self._process
        if broker is None or process is None:
            return
        self._left = (stored_logs(broker, self.node.disk), is_power_loss)
        process.kill()
        self.broker = self._process = None

    async def stop(self) -> None:
        """A clean stop, which leaves nothing behind (I-42)."""
        broker, process = self.broker, self._process
        if broker is None or process is None:
            return
        before = stored_logs(broker, self.node.disk)
        self.broker = self._process = None
        await process.spawn(broker.stop(), "stop")
        # Where a connection ended, its transport reports it in the next iteration of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        left = process.leftovers()
        require(not left, "I-42 a stopped broker left work behind", left=left)
        disk = self.node.disk
        files = sorted(file.path for file in disk._handles)  # noqa: SLF001
        require(not files, "I-42 a stopped broker left files open", files=files)
        require(not disk.storage.lock_holders, "I-42 a stopped broker left a lock")
        open_count = len(self.answers.open)
        require(not open_count, "I-42 a stopped broker left connections", open=open_count)
        self._left = (before, False)
        process.kill()
        self.node.kill()
        self.node = self.node.restart()

    # -- checks ----------------------------------------------------------------------------

    def check_running(self) -> None:
        if self.broker is not None:
            check_limits(self.broker, session_slots=SESSION_SLOTS, connections_max=CONNECTIONS_MAX)

    def _check_survivors(self, broker: Broker) -> None:
        if self._left is None:
            return
        (before, is_power_loss), self._left = self._left, None
        after = stored_logs(broker, self.node.disk)
        for partition, was in before.items():
            now = after.get(partition)
            if now is None or now.topic_id != was.topic_id:
                is_requested = UUID(was.topic_id) in self._scene.deletion_requested
                require(is_requested, "I-01 a partition is gone", partition=partition)
                continue
            check_survivor(partition, was, now, is_power_loss=is_power_loss)
            if is_power_loss:
                self._note_loss(partition, was, now)

    def _note_loss(self, partition: TopicPartition, was: StoredLog, now: StoredLog) -> None:
        scene = self._scene
        topic = scene.topics.get(UUID(was.topic_id))
        floor = NEVER if topic is not None and topic.is_durable else was.flushed_end
        partition_name = partition_name_of(partition.topic, was.topic_id, partition.partition)
        if now.log_end < was.log_end:
            scene.counts["tails lost"] += 1
            scene.history.lost_power(partition_name, end=now.log_end, floor=floor)

    def _is_full(self) -> bool:
        storage = self.node.disk.storage
        return storage.capacity_bytes is not None
