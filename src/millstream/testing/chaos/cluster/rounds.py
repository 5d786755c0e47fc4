"""Three brokers, three replicas, a real client: kills, pauses, stops, cuts, and nothing is lost.

Rounds on one cluster of real processes in networks of their own (`chaos/cluster/scene.py`). Every
round a fault hits a leader, the controller or a follower while records are written and
read; then the cluster must heal by itself. An *era* of rounds ends with a complete read:
nothing acknowledged is lost, doubled or out of order, consumers saw no gap, replicas are equal.

Only actions after which the cluster named another leader or controller count as changes.
"""

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.cluster.actions import ACTIONS, WEIGHTS, Actions
from millstream.testing.chaos.cluster.scene import ClusterScene, MillstreamProcesses, ProcessFactory
from millstream.testing.chaos.cluster.view import ClusterView
from millstream.testing.chaos.log.reader import ChaosFailed

ERA_ROUNDS: Final = 10
"""Rounds between two complete reads."""
CODECS: Final = ("none", "lz4", "zstd")
ROLES: Final = ("leader", "controller", "follower")
CHANGED: Final = "actions that changed a leader or the controller"
KILLS_CHANGED: Final = "kills -9 that changed a leader or the controller"


class ClusterChaos:
    """Rounds on one cluster; `close` ends it."""

    def __init__(
        self,
        directory: str,
        seed: int,
        *,
        is_ensemble: bool = False,
        only: str = "",
        factory: ProcessFactory | None = None,
    ) -> None:
        self._names = [one for one in ACTIONS if only in one for _ in range(WEIGHTS[one])]
        if not self._names:
            raise ChaosFailed(f"no action has {only!r} in its name: {', '.join(ACTIONS)}")
        self._chance = SeededRandomness(f"cluster chaos {seed}")
        self._scene = ClusterScene(
            Path(directory), factory or MillstreamProcesses(is_ensemble=is_ensemble)
        )
        self._actions = Actions(self._scene, self._chance.fork("actions"))
        self._round = 0
        self._is_started = False
        self._era_rounds = 0
        self._own: Counter[str] = Counter()
        self._longest_gap_s = 0.0

    @property
    def counts(self) -> Counter[str]:
        """Counters, and times in milliseconds."""
        figures = Counter(self._own) + self._actions.counts
        times = self._actions.leaderless_s
        if times:
            figures["ms without a leader, median"] = int(median(times) * 1000)
            figures["ms without a leader, longest"] = int(max(times) * 1000)
        if self._longest_gap_s:
            figures["ms between acknowledgements of a partition, longest"] = int(
                self._longest_gap_s * 1000
            )
        return figures

    def run_round(self) -> str:
        """Let the clients work, inject a fault, wait until it is healed. Raises ChaosFailed."""
        return self.act(self._chance.choice(self._names))

    def act(self, name: str) -> str:
        """One round with the action of that name."""
        self._round += 1
        self._begin()
        self._scene.load.wait_for(self._chance.integer(2, 40), "before the fault")
        before = self._scene.wait_healthy()
        role = self._chance.choice(ROLES)
        victim = self._victim(before, role)
        seen = self._actions.run(name, victim, before)
        after = self._scene.wait_healthy()
        self._scene.load.wait_for(1, "after healing (I-41)")
        is_changed = seen.differs_from(before) or after.differs_from(before)
        self._count(name, is_changed=is_changed)
        summary = f"round {self._round}: {name}, broker {victim} ({role})"
        summary += f", {'changed' if is_changed else 'same'} leaders"
        self._era_rounds += 1
        if self._era_rounds >= ERA_ROUNDS:
            summary += f"; {self._end_era()}"
        return f"{summary}, {self._own[CHANGED]} changes so far"

    def check(self) -> None:
        """Read everything and compare, unless that has just been done."""
        if self._era_rounds:
            self._end_era()

    def close(self) -> None:
        self._scene.close()

    def _begin(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._scene.start()
        elif not self._era_rounds:
            self._scene.begin_era(self._chance.choice(CODECS))

    def _victim(self, view: ClusterView, role: str) -> int:
        if role == "controller":
            if view.controller not in self._scene.brokers:
                raise ChaosFailed(f"the controller is {view.controller}, which is no broker")
            return view.controller
        partition = view.partitions[self._chance.choice(sorted(view.partitions))]
        followers = sorted(set(partition.replicas) - {partition.leader})
        return partition.leader if role == "leader" else self._chance.choice(followers)

    def _count(self, name: str, *, is_changed: bool) -> None:
        self._own[name] += 1
        self._own[CHANGED] += is_changed
        is_kill = name.startswith("kill") and "coordination" not in name
        self._own[KILLS_CHANGED] += is_changed and is_kill

    def _end_era(self) -> str:
        """Check that everything acknowledged is there; return a summary."""
        self._era_rounds = 0
        load = self._scene.load
        figures = load.finish()
        equal = self._scene.wait_equal(self._scene.wait_healthy(), load.topic)
        self._longest_gap_s = max(self._longest_gap_s, figures.gap_s)
        self._own["records acknowledged"] += figures.acknowledged
        self._own["records read"] += figures.read
        self._own["bytes equal on all replicas"] += equal
        self._own["complete reads"] += 1
        self._scene.end_era()
        return f"{figures.acknowledged:,} acknowledged and found"
