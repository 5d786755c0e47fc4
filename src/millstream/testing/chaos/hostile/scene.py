"""A cluster under attack: brokers, load with a history, a probe, an attacker in its own node."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from millstream.testing.chaos.cluster.scene import ClusterScene, MillstreamProcesses
from millstream.testing.chaos.cluster.view import ClusterView
from millstream.testing.chaos.hostile.attack import Attack, Outcome, Target
from millstream.testing.chaos.hostile.probe import ProbeTask
from millstream.testing.chaos.hostile.processes import AttackerProcess, ProbeProcess
from millstream.testing.chaos.hostile.verdict import MEMORY_LEFT_MAX, RoundFigures
from millstream.testing.chaos.hostile.watch import (
    LogWatch,
    MemoryWatch,
    ProbeReader,
    session_losses,
    waits_of,
)
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.wait_until import wait_until

METRICS_PORT: Final = 9100
PROBE_TOPIC: Final = "probe"
PROBE_MAX_S: Final = 90.0
TAIL_S: Final = 2.0
"""What an attack leaves behind is measured too."""
WARM_UP_S: Final = 2.0


class HostileScene:
    """One cluster, which many attacks in sequence find as the one before left it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        settings = {"metrics.port": str(METRICS_PORT)}
        self.cluster: Final = ClusterScene(root, MillstreamProcesses(settings=settings))
        self._attacker = self.cluster.world.add("attacker")
        self._attacks = 0
        history = root / "probe.jsonl"
        self._probe_reader = ProbeReader(history, self.cluster.partitions)
        self._probe: ProbeProcess | None = None
        self._history = history
        self._before: dict[str, int] = {}
        self._view = ClusterView()

    def start(self) -> None:
        self.cluster.start()
        self.cluster.create_topic(PROBE_TOPIC)
        addresses = tuple(one.address for one in self.cluster.brokers.values())
        task = ProbeTask(
            bootstrap=addresses,
            topic=PROBE_TOPIC,
            partitions=self.cluster.partitions,
            history=str(self._history),
        )
        self._probe = ProbeProcess(self.cluster.client, self._root / "probe", task)
        self._probe.spawn()
        self._view = self.cluster.wait_healthy()
        began_s = time.monotonic()
        self._wait_probe(began_s + WARM_UP_S)
        watch = MemoryWatch(self._process_ids())
        self._before = watch.now()
        watch.stop()

    def begin_era(self) -> None:
        """A new topic for the load, with leaders of its own."""
        self.cluster.begin_era()
        self._view = self.cluster.wait_healthy()

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
        self.cluster.close()

    def attack(self, attack: Attack, *, seed: str, victim: int, **options: float) -> RoundFigures:
        """Run one attack and measure; raises ChaosFailed only if nothing could be measured."""
        self._attacks += 1
        brokers = {str(id_): one.address for id_, one in self.cluster.brokers.items()}
        target = Target(
            brokers=brokers,
            victim=str(victim),
            keeper=self.cluster.coordination.connect_string,
            metrics=f"{self.cluster.brokers[victim].node.address}:{METRICS_PORT}",
            topic=self.cluster.load.topic,
            seed=seed,
            **options,
        )
        directory = self._root / f"attack-{self._attacks}"
        process = AttackerProcess(self._attacker, directory, attack.name, target)
        process.start()

        def send(watch: MemoryWatch) -> Outcome:
            process.begin()
            return process.wait_outcome(lambda: watch.is_too_much)

        try:
            return self._measure(attack.name, send, TAIL_S, attack.after_max_s)
        finally:
            process.close()

    # -- measuring -------------------------------------------------------------------------

    def _measure(
        self,
        name: str,
        send: Callable[[MemoryWatch], Outcome],
        tail_s: float,
        after_max_s: float,
    ) -> RoundFigures:
        processes = [*self.cluster.brokers.values(), *self.cluster.coordination.members]
        logs, memory = LogWatch(processes), MemoryWatch(self._process_ids())
        began_s = time.monotonic()
        try:
            outcome = send(memory)
            ended_s = time.monotonic() + tail_s
            violations = list(outcome.violations)
            violations += self._try(lambda: self._wait_probe(ended_s))
            violations += self._try(self._check_same_leaders)
            left = self._wait_memory(memory, after_max_s)
        finally:
            memory.stop()
        grown = max(memory.peaks[one] - self._before[one] for one in memory.peaks)
        lines = logs.new_lines()
        return RoundFigures(
            name,
            waits_of(self._probe_reader.between(began_s, ended_s)),
            grown_bytes=grown,
            left_bytes=left,
            session_losses=session_losses(lines),
            log_lines=len(lines),
            violations=violations,
        )

    @staticmethod
    def _try(call: Callable[[], None]) -> list[str]:
        try:
            call()
        except ChaosFailed as failed:
            return [str(failed).split("\n", 1)[0]]
        return []

    def _check_same_leaders(self) -> None:
        """All alive, healthy, and no leadership has moved."""
        self.cluster.check_alive()
        after = self.cluster.wait_healthy()
        if after.differs_from(self._view) or _epochs(after) != _epochs(self._view):
            self._view = after
            raise ChaosFailed("leaders or the controller changed")

    def _wait_probe(self, until_s: float) -> None:
        reader = self._probe_reader
        what = "the probe's records are acknowledged"
        wait_until(lambda: reader.has_passed(until_s), what, timeout_s=PROBE_MAX_S, pause_s=0.05)

    def _wait_memory(self, memory: MemoryWatch, seconds: float) -> int:
        """What is left in the end, of the process that has most left."""

        def left() -> int:
            return max(size - self._before[one] for one, size in memory.now().items())

        with suppress(ChaosFailed):
            wait_until(
                lambda: left() <= MEMORY_LEFT_MAX, "memory is back", timeout_s=seconds, pause_s=0.1
            )
        return left()

    def _process_ids(self) -> dict[str, int]:
        processes = [*self.cluster.brokers.values(), *self.cluster.coordination.members]
        return {one.node.name: one.process_id for one in processes}


def _epochs(view: ClusterView) -> list[tuple[int, int]]:
    return sorted((number, one.epoch) for number, one in view.partitions.items())
