"""Log directories that are lost under a broker, or while it is down, and come back in the end.

The broker has another one and goes on. Some time later an operator stops it, puts the disk back, or
an empty one in its place as the handbook says (docs/cluster.md), and starts it.
"""

import asyncio
from enum import Enum
from typing import Final

from millstream.controller.identity import DIRECTORIES_FILE, META_PROPERTIES
from millstream.runtime.disk import remove_tree
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.testing.sim.disk import SimDisk
from millstream.testing.simulation.broker.watch import require
from millstream.testing.simulation.cluster.brokers import BrokerMachine
from millstream.testing.simulation.cluster.fault_budget import FaultBudget
from millstream.testing.simulation.cluster.scene import ClusterScene

LOST: Final = "directories lost"
BACK_S: Final = 30.0
"""Until its broker may be ended, at the latest: others have to be well first."""
POLL_INTERVAL_S: Final = 0.3


class Loss(Enum):
    """How a directory is lost."""

    FAILS = "every call fails"
    AWAY = "its name is gone"
    MOUNT_POINT = "an empty directory has its name"
    REMOVED = "it is removed with all it had"


class LostDirectories:
    """Takes directories away and brings them back; one at a time of each broker."""

    def __init__(
        self, scene: ClusterScene, budget: FaultBudget, randomness: SeededRandomness
    ) -> None:
        self._scene = scene
        self._budget = budget
        self._randomness = randomness
        self._losses: dict[int, Loss] = {}
        self._had_logs: set[int] = set()
        """Brokers whose lost directory had some."""

    def lose(self, machine: BrokerMachine, healthy: list[int]) -> bool:
        """One of them is gone from now on; False where that may not be."""
        randomness, number = self._randomness, machine.broker_id
        loss = randomness.choice(list(Loss))
        path = randomness.choice(machine.directories)
        disk = machine.node.disk
        if machine.absent is not None or not disk.storage.powered or not _is_in_use(machine, path):
            return False
        if not self._budget.may_go_down(number, healthy):
            return False
        if loss is Loss.REMOVED and not self._budget.may_lose_power(number, healthy):
            return False
        machine.absent = path
        self._losses[number] = loss
        self._scene.excuses.without_directory.add(number)
        if _logs_in(disk, path):
            self._had_logs.add(number)
        if loss is Loss.REMOVED:
            self._scene.excuses.wounded.add(number)
            if number in self._had_logs:
                self._scene.excuses.emptied.add(number)
            machine.forget_logs_in(path)
        self._scene.counts[LOST] += 1
        self._scene.counts[f"{LOST}: {loss.value}"] += 1
        self._scene.world.trace.note("lost", machine.host, path, loss.name)
        _take_away(disk, path, loss)
        return True

    async def bring_back(self, machine: BrokerMachine) -> None:
        """End its broker, as soon as that does no other harm, and put the disk in."""
        scene = self._scene
        deadline_s = scene.now_s() + BACK_S
        while not self._may_end(machine):
            require(scene.now_s() < deadline_s, "no broker can take over", broker=machine.host)
            await asyncio.sleep(POLL_INTERVAL_S)
        is_paused = scene.pauses.is_paused(machine.host)
        if machine.is_up and not is_paused and self._randomness.chance(0.5):
            await machine.stop()
        if machine.is_running:
            machine.kill()
        self.restore(machine)

    def _may_end(self, machine: BrokerMachine) -> bool:
        if not machine.is_running:
            return True
        committed = self._scene.committed
        healthy = [one for one in committed.registered if committed.is_registration_processed(one)]
        return self._budget.may_go_down(machine.broker_id, healthy)

    def restore(self, machine: BrokerMachine) -> None:
        """While its broker is down."""
        path, number = machine.absent, machine.broker_id
        if path is None:
            return
        machine.absent = None
        excuses = self._scene.excuses
        excuses.without_directory.discard(number)
        excuses.wounded_at[number] = self._scene.ledger.tree.zxid
        others = [one for one in machine.directories if one != path]
        disk, loss = machine.node.disk, self._losses.pop(number)
        had_logs = number in self._had_logs
        self._had_logs.discard(number)
        if loss is Loss.FAILS:
            disk.faults.heal()
        elif had_logs or not disk.exists(path) or not _logs_in(disk, path):
            _put_back(disk, path, loss, others)
        else:
            # Nothing was missing, and a start adopted what it found there as a new directory.
            require(disk.exists(f"{path}/{META_PROPERTIES}"), "logs in a directory without an id")
            if disk.exists(_aside(path)):
                remove_tree(disk, _aside(path))
                disk.sync_directory("/")


def _is_in_use(machine: BrokerMachine, path: str) -> bool:
    """The broker has given it an id, and its other directories have recorded that id.

    Before that the next start takes any directory of that name for the new disk, and misses that
    one for good once the first is back: they cannot be distinguished.
    """
    disk = machine.node.disk
    others = [one for one in machine.directories if one != path]
    names_of_all = [f"{path}/{META_PROPERTIES}", *(f"{one}/{DIRECTORIES_FILE}" for one in others)]
    return all(map(disk.exists, names_of_all))


def _take_away(disk: SimDisk, path: str, loss: Loss) -> None:
    if loss is Loss.FAILS:
        disk.faults.fail_directory(path)
        return
    if loss is Loss.REMOVED:
        remove_tree(disk, path)
    else:
        disk.rename(path, _aside(path))
    if loss is Loss.MOUNT_POINT:
        disk.make_directories(path)
    disk.sync_directory("/")


def _put_back(disk: SimDisk, path: str, loss: Loss, others: list[str]) -> None:
    if disk.exists(path):
        written = _logs_in(disk, path)
        require(not written, "I-01 logs where a directory is missing", path=path, logs=written)
        remove_tree(disk, path)
    if loss is Loss.REMOVED:
        disk.make_directories(path)
        for one in others:
            if disk.exists(f"{one}/{DIRECTORIES_FILE}"):
                disk.remove(f"{one}/{DIRECTORIES_FILE}")
                disk.sync_directory(one)
    else:
        disk.rename(_aside(path), path)
    disk.sync_directory("/")


def _aside(path: str) -> str:
    return f"{path}.away"


def _logs_in(disk: SimDisk, path: str) -> list[str]:
    found = disk.list_directory(path)
    return [one for one in found if names.parse_partition_directory(one) is not None]
