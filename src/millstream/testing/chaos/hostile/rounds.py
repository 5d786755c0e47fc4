"""Every attack of the catalogue, then random ones, on a cluster of three under acks=all load.

Rounds on one cluster (`scene.py`). A round is one attack; `verdict.py` says what must hold in it. A
round that fails is reported with the command that repeats it, and the next one gets a new cluster:
one run tells all that is wrong. After some rounds, and after each that failed, everything that
was acknowledged is read and compared: nothing lost, nothing twice.
"""

from collections import Counter
from pathlib import Path
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.hostile.attack import Attack
from millstream.testing.chaos.hostile.catalogue import all_attacks, attack_named
from millstream.testing.chaos.hostile.random_requests import PREFIX, random_attack
from millstream.testing.chaos.hostile.scene import HostileScene
from millstream.testing.chaos.hostile.verdict import RoundFigures
from millstream.testing.chaos.log.reader import ChaosFailed

RANDOM_ROUNDS: Final = 10
ERA_ROUNDS: Final = 10
"""Rounds between two complete reads."""
BROKERS: Final = (1, 2, 3)


def chosen_attacks(only: str, seed: int, rounds: int | None = None) -> list[Attack]:
    """Those with `only` in their name, and random ones up to the number of rounds."""
    if only.startswith(PREFIX) and only.removeprefix(PREFIX).isdigit():
        return [attack_named(only)] * (rounds or 1)
    found = [one for one in all_attacks() if only in one.name]
    more = RANDOM_ROUNDS if only in PREFIX else 0
    wanted = rounds if rounds is not None else len(found) + more
    found += [random_attack(seed * 1_000 + number) for number in range(wanted - len(found)) if more]
    return found[:wanted]


class HostileChaos:
    """Rounds on one cluster after the other; `close` ends the last one."""

    def __init__(self, directory: str, seed: int, *, only: str = "") -> None:
        self._directory = Path(directory)
        self._seed = seed
        self._only = only
        self._chance = SeededRandomness(f"hostile chaos {seed}")
        self._round = 0
        self._scenes = 0
        self._scene: HostileScene | None = None
        self._has_era = False
        """The load runs, and its history has not been compared yet."""
        self._era_rounds = 0
        self._own: Counter[str] = Counter()
        self.failures: list[str] = []
        self.figures: list[RoundFigures] = []
        if not chosen_attacks(only, seed):
            raise ChaosFailed(f"no attack has {only!r} in its name")

    @property
    def counts(self) -> Counter[str]:
        figures = Counter(self._own)
        figures["ms of the worst wait of another client"] = int(
            max((one.waits.worst for one in self.figures), default=0)
        )
        return figures

    def run_round(self) -> str:
        """The next attack; what is wrong is in the line, and in the exception of `check`."""
        attack = self._next_attack()
        self._round += 1
        victim = self._chance.choice(BROKERS)
        figures = self.run(attack, victim=victim)
        wrong = figures.judge()
        self._own["attacks"] += 1
        self._own["attacks that did harm"] += bool(wrong)
        if wrong:
            self._fail(attack.name, wrong)
            self._end_era(attack.name)
            self._close_scene()
        else:
            self._era_rounds += 1
            if self._era_rounds >= ERA_ROUNDS:
                self._end_era("the rounds before")
        return figures.line(wrong)

    def run(self, attack: Attack, *, victim: int, **options: float) -> RoundFigures:
        """One attack on the current cluster, started where there is none."""
        scene = self._started()
        figures = scene.attack(attack, seed=str(self._seed), victim=victim, **options)
        self.figures.append(figures)
        return figures

    def check(self) -> None:
        """Read everything and compare; raise ChaosFailed with all that was wrong in the run."""
        self._end_era("the last rounds")
        if self.failures:
            raise ChaosFailed("\n".join([f"{len(self.failures)} failures", *self.failures]))

    def close(self) -> None:
        self._close_scene()

    def _next_attack(self) -> Attack:
        attacks = chosen_attacks(self._only, self._seed)
        if self._round < len(attacks):
            return attacks[self._round]
        more = chosen_attacks(self._only, self._seed, self._round + 1)
        return more[self._round % len(more)]

    def _started(self) -> HostileScene:
        if self._scene is None:
            self._scenes += 1
            self._scene = HostileScene(self._directory / f"cluster-{self._scenes}")
            self._scene.start()
        elif not self._has_era:
            self._scene.begin_era()
        self._has_era = True
        return self._scene

    def _fail(self, name: str, wrong: list[str]) -> None:
        replay = f'make chaos PART=hostile ROUNDS=1 SEED={self._seed} CELLS="{name}"'
        self.failures.append(f"{name}: {'; '.join(wrong)}\n    {replay}")

    def _end_era(self, what: str) -> None:
        """Everything acknowledged is there, once, and equal on all replicas."""
        if self._scene is None or not self._has_era:
            return
        cluster = self._scene.cluster
        self._has_era, self._era_rounds = False, 0
        try:
            load = cluster.load
            figures = load.finish()
            equal = cluster.wait_equal(cluster.wait_healthy(), load.topic)
            self._own["records acknowledged and found"] += figures.acknowledged
            self._own["bytes equal on all replicas"] += equal
            cluster.end_era()
        except ChaosFailed as failed:
            self._fail(what, [f"history: {failed}"])
            self._close_scene()

    def _close_scene(self) -> None:
        scene, self._scene = self._scene, None
        self._has_era, self._era_rounds = False, 0
        if scene is not None:
            scene.close()
