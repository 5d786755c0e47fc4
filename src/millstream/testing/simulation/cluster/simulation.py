"""A whole cluster from one seed: keeper, brokers, clients, and many kinds of faults.

Brokers are killed, lose their power, are paused and resumed; links are cut one way and both ways;
the keeper dies, and replies to writes that it carried out are lost. Meanwhile clients write and
read, and an administrator creates, grows, moves and deletes topics. Every decision is checked when
it is durable (`history/cluster_ledger.py`), every broker several times a second
(`history/cluster_invariants.py`), and in the end what clients were answered (`history/checker.py`)
and the files of all disks.

Most seeds heal everything in the end and require a healthy cluster within fixed times (I-39 to
I-42). The others end in the middle of the faults, and only the disks are checked: that is enough to
see that nothing acknowledged is lost.
"""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.history.checker import Anomaly, check_history
from millstream.testing.history.cluster_invariants import Violation, check_transition, check_view
from millstream.testing.history.cluster_liveness import (
    differing_replicas,
    not_in_sync,
    unaware_leaders,
    without_leader,
)
from millstream.testing.history.cluster_views import ClusterView
from millstream.testing.simulation.broker.client import Client
from millstream.testing.simulation.broker.simulation import errors_are_failures
from millstream.testing.simulation.broker.watch import SimulationFailed, require
from millstream.testing.simulation.cluster.admin import ADMIN_ACTIONS, ClusterAdmin
from millstream.testing.simulation.cluster.brokers import DIRECTORY, SECOND_DIRECTORY, BrokerMachine
from millstream.testing.simulation.cluster.clients import (
    ClusterConsumer,
    ClusterIdempotentProducer,
    ClusterNonIdempotentProducer,
    ClusterReader,
)
from millstream.testing.simulation.cluster.coverage import CPU_S_MAX, TOO_SLOW, count_events
from millstream.testing.simulation.cluster.disks import check_acknowledged, scan_disks
from millstream.testing.simulation.cluster.fault_budget import FaultBudget
from millstream.testing.simulation.cluster.faults import ClusterFaults
from millstream.testing.simulation.cluster.keeper import KeeperMachine
from millstream.testing.simulation.cluster.scene import ClusterScene, ClusterTopic

Finder = Callable[[], list[Violation]]

SECONDS_PER_STEP: Final = 0.1
CHECK_INTERVAL_S: Final = 0.1
"""An invariant may be violated only briefly: until a follower has fetched what it lacks."""
LEADERS_S: Final = 15.0
"""After the last fault every partition has a leader within this (I-39): brokers start, sessions of
dead ones end, a controller is elected and reads everything."""
IN_SYNC_S: Final = 30.0
"""And all replicas are in sync within this (I-40)."""
FINISH_S: Final = 60.0
"""And what clients had begun is done within this (I-41)."""
STOP_S: Final = 30.0
"""A clean stop ends within this (I-42)."""
SAFETY_EVERY: Final = 4
"""Every so many seeds ends in the middle of the faults."""


class ClusterRun(NamedTuple):
    """How one seed went."""

    counts: Counter[str]
    digest: str


def simulate_cluster(seed: int, *, steps: int) -> Counter[str]:
    """Run one seed; raises at the first invariant that the cluster violates."""
    started_s = time.process_time()
    counts = run_cluster(seed, steps=steps).counts
    counts[TOO_SLOW] += time.process_time() - started_s > CPU_S_MAX
    return counts


def run_cluster(seed: int, *, steps: int) -> ClusterRun:
    """As `simulate_cluster`, with the fingerprint of the run."""
    simulation = ClusterSimulation(seed, duration_s=steps * SECONDS_PER_STEP)
    with errors_are_failures(), count_events(simulation.scene.counts):
        try:
            simulation.scene.world.run(simulation.run)
        finally:
            gc.unfreeze()
    return ClusterRun(simulation.scene.counts, simulation.scene.world.trace.digest())


class ClusterSimulation:
    """The run of one seed."""

    def __init__(
        self,
        seed: int,
        *,
        duration_s: float,
        broker_count: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.scene = scene = ClusterScene(seed)
        self._duration_s = duration_s
        self._ends_in_the_middle = seed % SAFETY_EVERY == 0
        self._randomness = scene.randomness.fork("play")
        count = broker_count or self._randomness.choice([3, 3, 3, 4, 5])
        self.keeper = KeeperMachine(scene)
        settings = _own_settings(scene) if settings is None else settings
        self.brokers = {one: BrokerMachine(scene, one, settings) for one in range(1, count + 1)}
        scene.broker_hosts = {one: machine.host for one, machine in self.brokers.items()}
        budget = FaultBudget(
            lambda: scene.committed,
            is_promised=lambda key: key.topic in scene.promised,
            wounded=scene.excuses.wounded,
            without_directory=scene.excuses.without_directory,
        )
        self.faults = ClusterFaults(
            scene, self.keeper, self.brokers, budget, self._randomness.fork("faults")
        )
        self._clients: list[Client] = []
        self._admin = ClusterAdmin(scene, "admin", self._randomness.fork("admin"))
        self._last: ClusterView | None = None
        self._is_checking = True

    async def run(self) -> None:
        await self.begin()
        await self._make_topics()
        self._start_clients()
        self.faults.client_hosts = [one.name for one in self._clients]
        await self.faults.run(duration_s=self._duration_s)
        if self._ends_in_the_middle:
            await self._break_off()
        else:
            await self._finish()
        self._check_history()

    async def begin(self) -> None:
        """Start the keeper and the brokers."""
        await self.keeper.start()
        for machine in self.brokers.values():
            machine.begin()
        await self.scene.until(
            lambda: all(one.is_up for one in self.brokers.values()),
            "brokers did not start",
            limit_s=LEADERS_S,
        )
        self.scene.spawn(self._check_repeatedly(), "checks")

    async def _make_topics(self) -> None:
        randomness, admin = self._randomness, self._admin
        self._admin.enabled_actions = frozenset(
            one for one in ADMIN_ACTIONS if randomness.chance(0.4)
        )
        kinds = [("main", 3, "2", "false")]
        if randomness.chance(0.5):
            kinds.append(("pair", 2, "2", "false"))
        if randomness.chance(0.4):
            kinds.append(("risky", randomness.choice([2, 3]), "1", "true"))
        for name, factor, in_sync_min, is_unclean in kinds:
            configs = {
                "min.insync.replicas": in_sync_min,
                "unclean.leader.election.enable": is_unclean,
            }
            if is_unclean == "false":
                self.scene.promised.add(name)
            making = admin.create(
                name, partitions=randomness.integer(1, 3), factor=factor, configs=configs
            )
            await admin.process.spawn(making, "topics")

    def _start_clients(self) -> None:
        randomness = self._randomness
        self._admin.start()
        for topic in list(self.scene.topics.values()):
            if not isinstance(topic, ClusterTopic):
                continue
            for partition in range(topic.partition_count):
                self._start(ClusterIdempotentProducer, topic, partition)
                self._start(ClusterConsumer, topic, partition)
                if randomness.chance(0.4):
                    self._start(ClusterNonIdempotentProducer, topic, partition)
                if randomness.chance(0.3):
                    self._start(ClusterConsumer, topic, partition)

    def _start(
        self,
        kind: type[ClusterIdempotentProducer]
        | type[ClusterNonIdempotentProducer]
        | type[ClusterConsumer],
        topic: ClusterTopic,
        partition: int,
    ) -> None:
        name = f"{kind.host_prefix}-{len(self._clients)}"
        client = kind(self.scene, name, self._randomness.fork(name))
        client.aim(topic, partition)
        self._clients.append(client)
        client.start()

    # -- checks ----------------------------------------------------------------------------

    async def _check_repeatedly(self) -> None:
        while self._is_checking:
            self.check_invariants()
            await asyncio.sleep(CHECK_INTERVAL_S)

    def check_invariants(self) -> ClusterView:
        """Check everything that can be observed."""
        scene = self.scene
        view = self.view()
        for key in view.committed.partitions:
            if key.topic not in scene.promised:
                scene.excuses.unclean.add(key)
        scene.fail_for(check_view(view, scene.excuses, self._last))
        if self._last is not None:
            scene.fail_for(check_transition(self._last, view, scene.excuses))
        for claim in view.claims():
            epoch = view.brokers[claim.broker].broker_epoch
            scene.fail_for(list(scene.ledger.leaders.note_claim(claim, broker_epoch=epoch)))
        self._last = view
        return view

    def view(self) -> ClusterView:
        seen = {number: machine.view() for number, machine in self.brokers.items()}
        brokers = {number: one for number, one in seen.items() if one is not None}
        return ClusterView(self.scene.now_s(), brokers, self.scene.committed)

    # -- the end ---------------------------------------------------------------------------

    async def _break_off(self) -> None:
        """Everything dies at once; only the disks are left."""
        self._is_checking = False
        self.scene.pauses.resume_all()
        committed = self.scene.committed
        for client in (*self._clients, self._admin):
            client.process.kill()
        for machine in self.brokers.values():
            if machine.is_running:
                machine.kill()
            self.faults.directories.restore(machine)
        self.keeper.kill()
        check_acknowledged(self.scene, self.brokers, committed)
        self.scene.counts["broken off"] += 1

    async def _finish(self) -> None:
        scene = self.scene
        await self.faults.heal()
        await self.wait_until_well()
        scene.is_ending = True
        consumers = [one for one in self._clients if isinstance(one, ClusterConsumer)]
        workers = [one for one in self._clients if not isinstance(one, ClusterConsumer)]
        await self._until_none(lambda: unfinished([*workers, self._admin]), FINISH_S)
        for consumer in consumers:
            consumer.recheck_ends()
        await scene.until(
            lambda: all(one.is_at_end for one in consumers),
            "I-33 consumers did not catch up after the faults",
            limit_s=FINISH_S,
        )
        for consumer in consumers:
            consumer.is_finished = True
        await self.wait_until_well()
        await self._read_everything()
        await self._check_at_rest()
        await self.stop_all()

    async def wait_until_well(self) -> None:
        """I-39, I-40"""
        scene, alive = self.scene, list(self.brokers)
        await scene.until(
            lambda: all(one.is_up for one in self.brokers.values()),
            "I-39 brokers did not start after the faults",
            limit_s=LEADERS_S,
        )
        await self._until_none(lambda: without_leader(scene.committed, alive), LEADERS_S)
        await self._until_none(lambda: not_in_sync(scene.committed, alive), IN_SYNC_S)
        await self._until_none(lambda: unaware_leaders(self.view()), LEADERS_S)

    async def _until_none(self, find: Finder, limit_s: float) -> None:
        deadline_s = self.scene.now_s() + limit_s
        while found := find():
            if self.scene.now_s() > deadline_s:
                self.scene.fail_for(found)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _read_everything(self) -> None:
        scene = self.scene
        for topic in list(scene.topics.values()):
            if topic.name.startswith("temp"):
                continue
            for partition in range(topic.partition_count):
                reader = ClusterReader(scene, "reader", self._randomness.fork("reader"))
                reader.aim(topic, partition)
                await reader.process.spawn(reader.read(), "last read")
        last_admin = ClusterAdmin(scene, "last admin", self._randomness.fork("last admin"))
        last_admin.inherit(self._admin)
        await last_admin.process.spawn(last_admin.finish(), "last check")

    async def _check_at_rest(self) -> None:
        """I-19"""
        await self._until_none(lambda: differing_replicas(self.view()), IN_SYNC_S)
        self.check_invariants()

    async def stop_all(self) -> None:
        """I-42, each after the other, so that leaderships are handed over."""
        self._is_checking = False
        for client in (*self._clients, self._admin):
            client.process.kill()
            self.scene.world.network.kill_host(client.name)
        order = _shuffled(self._randomness, list(self.brokers.values()))
        committed = self.scene.committed
        for machine in order:
            stopping = self.scene.spawn(machine.stop(), "last stop")
            done, _ = await asyncio.wait([stopping], timeout=STOP_S)
            require(done, "I-42 a stop took too long", broker=machine.host, limit_s=STOP_S)
        await self.keeper.stop()
        scan_disks(self.brokers)
        check_acknowledged(self.scene, self.brokers, committed)

    def _check_history(self) -> None:
        found = [one for one in check_history(self.scene.history) if not self._is_excused(one)]
        if found:
            lines = [f"{one.kind}: {one.text[:600]}" for one in found[:8]]
            raise SimulationFailed(f"{len(found)} anomalies\n" + "\n".join(lines))

    @staticmethod
    def _is_excused(one: Anomaly) -> bool:
        """Where unclean elections are allowed only invention is forbidden (I-04)."""
        return one.kind != "phantom" and "('risky', " in one.text


def unfinished(clients: Sequence[Client]) -> list[Violation]:
    """I-41: clients that have not finished what they had begun."""
    return [
        Violation("I-41", f"{one.name} of {getattr(one, 'topic', None)} has not finished")
        for one in clients
        if not one.is_finished
    ]


def _own_settings(scene: ClusterScene) -> Mapping[str, str]:
    """Every other seed has brokers with two log directories, so that one can be lost."""
    if scene.randomness.fork("directories").chance(0.5):
        return {"log.dirs": f"{DIRECTORY},{SECOND_DIRECTORY}"}
    return {}


def _shuffled(randomness: SeededRandomness, items: list[BrokerMachine]) -> list[BrokerMachine]:
    left, order = list(items), []
    while left:
        order.append(left.pop(randomness.integer(0, len(left))))
    return order
