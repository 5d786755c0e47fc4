"""The faults of a cluster's simulation. Each seed switches a random subset on."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from millstream.coordination.errors import CoordinationError
from millstream.coordination.port import ANY_VERSION
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.history.cluster_tree import CONTROLLER
from millstream.testing.sim.background import WORK_DELAY_S
from millstream.testing.sim.clock import SimClock
from millstream.testing.sim.crash_fates import random_fates
from millstream.testing.sim.keeper_session import WireCoordination
from millstream.testing.simulation.broker.process import SimProcess
from millstream.testing.simulation.cluster.brokers import BrokerMachine
from millstream.testing.simulation.cluster.directories import LostDirectories
from millstream.testing.simulation.cluster.fault_budget import FaultBudget
from millstream.testing.simulation.cluster.keeper import (
    CREDENTIALS,
    KEEPER,
    KEEPER_PORT,
    KeeperMachine,
)
from millstream.testing.simulation.cluster.scene import SESSION_MS, ClusterScene

SLOW_LINK_S: Final = (0.0, 0.6)
SLOW_DISK_S: Final = (0.02, 0.4)
SHORT_S: Final = (0.05, SESSION_MS / 1000)
LONG_S: Final = (SESSION_MS / 1000, SESSION_MS / 1000 * 3)
"""Longer than a session may be silent: others take over meanwhile."""

OPERATOR: Final = "operator"

Fault = Callable[[], None]


class ClusterFaults:
    """Injects random faults that pass after a while, and heals everything in the end."""

    def __init__(
        self,
        scene: ClusterScene,
        keeper: KeeperMachine,
        brokers: dict[int, BrokerMachine],
        budget: FaultBudget,
        randomness: SeededRandomness,
    ) -> None:
        self._scene, self._keeper, self._brokers = scene, keeper, brokers
        self._budget = budget
        self._randomness = randomness
        self.directories = LostDirectories(scene, budget, randomness.fork("directories"))
        self.client_hosts: list[str] = []
        self._under_way: list[asyncio.Task[None]] = []
        self.all: dict[str, Fault] = {
            "kill": self._kill,
            "power loss": self._power_loss,
            "stop": self._stop,
            "pause": self._pause,
            "cut both ways": self._cut_both,
            "cut one way": self._cut_one,
            "isolate": self._isolate,
            "cut from keeper": self._cut_keeper,
            "clog": self._clog,
            "slow link": self._slow_link,
            "slow node": self._slow_node,
            "slow disk": self._slow_disk,
            "reset": self._reset,
            "lost reply": self._lost_reply,
            "controller deposed": self._depose,
            "keeper kill": self._keeper_kill,
            "keeper power loss": self._keeper_power_loss,
        }
        if any(len(one.directories) > 1 for one in brokers.values()):
            self.all["lose a directory"] = self._lose_directory
        chosen = [name for name in self.all if randomness.chance(0.45)]
        self.enabled = chosen or [randomness.choice(list(self.all))]
        self._calm_s = randomness.choice([0.6, 1.2, 2.0])

    async def run(self, *, duration_s: float) -> None:
        """Faults until the time is up."""
        scene, randomness = self._scene, self._randomness
        until_s = scene.now_s() + duration_s
        while scene.now_s() < until_s:
            await asyncio.sleep(randomness.between(0.0, self._calm_s))
            name = randomness.choice(self.enabled)
            scene.world.trace.note("fault", name)
            scene.counts[name] += 1
            self.all[name]()
            if randomness.chance(0.12):
                self._heal_links()

    async def heal(self) -> None:
        """Nothing is broken any more, and everything is started."""
        self._scene.lost_reply_chance = 0.0
        self._heal_links()
        self._scene.pauses.resume_all()
        await asyncio.gather(*self._under_way)
        for machine in self._brokers.values():
            self._restore(machine.host)
            machine.node.background.work_delay_s = WORK_DELAY_S
            machine.begin()

    def _restore(self, host: str) -> None:
        """Power, where it was lost."""
        if host not in self._scene.world.network.down_hosts:
            return
        if host == KEEPER:
            self._keeper.restore_power(random_fates(self._randomness.fork("fates")))
        else:
            self._by_host(host).restore_power()

    def _heal_links(self) -> None:
        self._scene.world.network.heal_all()

    # -- choosing --------------------------------------------------------------------------

    def _by_host(self, host: str) -> BrokerMachine:
        return next(one for one in self._brokers.values() if one.host == host)

    def _hosts(self) -> list[str]:
        return [KEEPER, *(one.host for one in self._brokers.values())]

    def _healthy(self) -> list[int]:
        """Brokers that are up and have their session."""
        registered = self._scene.committed.registered
        return [
            number
            for number, machine in self._brokers.items()
            if machine.is_up
            and number in registered
            and not self._scene.pauses.is_paused(machine.host)
        ]

    def _some_broker(self) -> BrokerMachine:
        """The leader of something, or the controller, more often than not."""
        committed, randomness = self._scene.committed, self._randomness
        leaders = [one.leader for one in committed.partitions.values() if one.leader >= 0]
        wanted = [*leaders, committed.controller]
        if randomness.chance(0.6):
            chosen = randomness.choice(wanted)
            if chosen in self._brokers:
                return self._brokers[chosen]
        return randomness.choice(list(self._brokers.values()))

    def _two_hosts(self) -> tuple[str, str]:
        """Any two, brokers and keeper more often than clients."""
        randomness, hosts = self._randomness, self._hosts()
        one = randomness.choice(hosts)
        others = hosts if randomness.chance(0.75) or not self.client_hosts else self.client_hosts
        other = randomness.choice([host for host in others if host != one])
        return (one, other) if randomness.chance(0.5) else (other, one)

    def _for_a_while_s(self) -> float:
        return self._randomness.between(*self._randomness.choice([SHORT_S, LONG_S]))

    def _later(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._under_way = [one for one in self._under_way if not one.done()]
        self._under_way.append(self._scene.spawn(work, name))

    # -- processes -------------------------------------------------------------------------

    def _kill(self) -> None:
        machine = self._some_broker()
        if machine.is_running and self._budget.may_go_down(machine.broker_id, self._healthy()):
            self._scene.counts["kills"] += 1
            machine.kill()
            self._later(self._begin_later(machine), "start after a kill")

    def _power_loss(self) -> None:
        machine, healthy = self._some_broker(), self._healthy()
        number = machine.broker_id
        if machine.absent is not None:
            return  # the content of its disks is uncertain then, and it is stopped soon anyway
        if not machine.is_running or not self._budget.may_lose_power(number, healthy):
            return
        if not self._budget.may_go_down(number, healthy):
            return
        self._scene.counts["power losses"] += 1
        self._scene.powers_lost += 1
        self._scene.excuses.wounded.add(number)
        self._scene.excuses.wounded_at[number] = self._scene.ledger.tree.zxid
        machine.lose_power()
        self._later(self._power_later(machine), "power again")

    async def _begin_later(self, machine: BrokerMachine) -> None:
        await asyncio.sleep(self._for_a_while_s())
        self._restore(machine.host)  # it may have been started, and lost its power, meanwhile
        machine.begin()

    async def _power_later(self, machine: BrokerMachine) -> None:
        await asyncio.sleep(self._for_a_while_s())
        self._restore(machine.host)
        machine.begin()

    def _stop(self) -> None:
        machine = self._some_broker()
        is_paused = self._scene.pauses.is_paused(machine.host)
        may_go_down = self._budget.may_go_down(machine.broker_id, self._healthy())
        if machine.is_up and not is_paused and may_go_down:
            self._scene.counts["clean stops"] += 1
            self._later(self._stop_and_begin(machine), "clean stop")

    async def _stop_and_begin(self, machine: BrokerMachine) -> None:
        await machine.stop()
        await asyncio.sleep(self._for_a_while_s())
        if not machine.is_running:
            self._restore(machine.host)
            machine.begin()

    def _pause(self) -> None:
        machine = self._some_broker()
        if machine.process is not None and self._budget.may_go_down(
            machine.broker_id, self._healthy()
        ):
            self._scene.pauses.pause(machine.host, machine.process)
            resume = self._scene.pauses.resume
            self._scene.world.loop.call_later(self._for_a_while_s(), resume, machine.host)

    def _lose_directory(self) -> None:
        machine = self._some_broker()
        if self.directories.lose(machine, self._healthy()):
            self._later(self._directory_later(machine), "a directory comes back")

    async def _directory_later(self, machine: BrokerMachine) -> None:
        await asyncio.sleep(self._for_a_while_s())
        await self.directories.bring_back(machine)
        self._restore(machine.host)
        machine.begin()

    # -- links -----------------------------------------------------------------------------

    def _cut_both(self) -> None:
        one, other = self._two_hosts()
        duration_s = self._for_a_while_s()
        network = self._scene.world.network
        network.clog(one, other, duration_s=duration_s)
        network.clog(other, one, duration_s=duration_s)

    def _cut_one(self) -> None:
        self._scene.world.network.clog(*self._two_hosts(), duration_s=self._for_a_while_s())

    def _isolate(self) -> None:
        """One broker from all other brokers, sometimes from the keeper as well."""
        machine, network = self._some_broker(), self._scene.world.network
        with_keeper = self._randomness.chance(0.3)
        duration_s = self._for_a_while_s()
        for host in self._hosts():
            if host != machine.host and (with_keeper or host != KEEPER):
                network.clog(machine.host, host, duration_s=duration_s)
                network.clog(host, machine.host, duration_s=duration_s)

    def _cut_keeper(self) -> None:
        machine, network = self._some_broker(), self._scene.world.network
        duration_s = self._for_a_while_s()
        ways = [(machine.host, KEEPER), (KEEPER, machine.host)]
        if self._randomness.chance(0.4):
            ways = [self._randomness.choice(ways)]
        for source, target in ways:
            network.clog(source, target, duration_s=duration_s)

    def _clog(self) -> None:
        """Short ones, several at once, that open in any order."""
        for _ in range(self._randomness.integer(2, 6)):
            duration_s = self._randomness.between(0.01, 1.0)
            self._scene.world.network.clog(*self._two_hosts(), duration_s=duration_s)

    def _slow_link(self) -> None:
        self._scene.world.network.slow_down(*self._two_hosts(), delay_range_s=SLOW_LINK_S)

    def _slow_node(self) -> None:
        """Everything that it sends and its disk are slow."""
        machine, network = self._some_broker(), self._scene.world.network
        for host in self._hosts():
            if host != machine.host:
                network.slow_down(machine.host, host, delay_range_s=SLOW_LINK_S)
        machine.node.background.work_delay_s = SLOW_DISK_S

    def _slow_disk(self) -> None:
        machine = self._some_broker()
        is_slow = machine.node.background.work_delay_s == SLOW_DISK_S
        machine.node.background.work_delay_s = WORK_DELAY_S if is_slow else SLOW_DISK_S

    def _reset(self) -> None:
        one, other = self._two_hosts()
        is_paused = self._scene.pauses.is_paused
        if not is_paused(one) and not is_paused(other):
            self._scene.world.network.reset(one, other)

    # -- the keeper ------------------------------------------------------------------------

    def _lost_reply(self) -> None:
        """For a while many answers to writes that were carried out do not arrive."""
        scene = self._scene
        scene.lost_reply_chance = self._randomness.choice([0.2, 0.5])
        scene.world.loop.call_later(self._for_a_while_s(), self._replies_arrive)

    def _replies_arrive(self) -> None:
        self._scene.lost_reply_chance = 0.0

    def _depose(self) -> None:
        """An operator deletes the node, as Kafka's did: the old controller keeps its session."""
        self._later(self._delete_controller(), "operator")

    async def _delete_controller(self) -> None:
        world = self._scene.world
        process = SimProcess(world.loop, OPERATOR, world.network.host(OPERATOR))
        coordination = WireCoordination(
            process.network, SimClock(world.loop), [(KEEPER, KEEPER_PORT)], CREDENTIALS
        )

        async def delete_steps() -> None:
            session = await coordination.connect(timeout_ms=SESSION_MS, wait_s=1.0)
            with suppress(CoordinationError):
                await session.delete(CONTROLLER, version=ANY_VERSION)
            await session.close()

        with suppress(CoordinationError):
            await process.spawn(delete_steps(), "depose")

    def _keeper_kill(self) -> None:
        if self._keeper.is_up:
            self._keeper.kill()
            self._later(self._keeper_later(), "keeper again")

    def _keeper_power_loss(self) -> None:
        if self._keeper.is_up:
            self._keeper.lose_power()
            self._later(self._keeper_later(), "keeper again")

    async def _keeper_later(self) -> None:
        await asyncio.sleep(self._for_a_while_s() / 2)
        self._restore(KEEPER)
        await self._keeper.start()
