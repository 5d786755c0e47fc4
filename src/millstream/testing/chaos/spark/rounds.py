"""Spark queries killed at every step of a micro-batch: driver, workers, executors and broker.

Rounds on one broker. Each is one cell of the matrix (`chaos/spark/steps.py`): a query is run to
a step and held there, something is killed with SIGKILL, everything continues, and the output is
compared with the input. A step that is not reached is a failure, so no kill can silently miss.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.spark.kill import Kill
from millstream.testing.chaos.spark.pipeline import Pipeline
from millstream.testing.chaos.spark.steps import Cell, Sink, Victim, matrix
from millstream.testing.chaos.spark.world import SparkWorld

KILLS_PER_PIPELINE_MAX: Final = 12
"""Checks read everything that a query has ever written."""


class SparkChaos:
    """One broker, one Spark program at a time, two queries; `close` ends them."""

    def __init__(self, directory: str, seed: int, *, only: str = "") -> None:
        self._chance = SeededRandomness(f"spark chaos {seed}")
        self._cells = cells_in_order(self._chance, only)
        self._world = SparkWorld(Path(directory), self._chance.fork("world"))
        self._pipelines: dict[Sink, Pipeline] = {}
        self._kills: Counter[str] = Counter()
        self._round = 0
        self.counts: Counter[str] = Counter()

    def run_round(self) -> str:
        """The next cell, from the first again after the last; raises ChaosFailed."""
        cell = self._cells[self._round % len(self._cells)]
        self._round += 1
        started_s = time.monotonic()
        pipeline = self._pipeline(cell)
        kill = Kill(self._world, pipeline, cell, self._chance.fork(f"kill {self._round}"))
        before = pipeline.compared
        try:
            pipeline = kill.run()
            self._pipelines[cell.sink] = pipeline
            found = pipeline.check()
        except ChaosFailed as failure:
            replay = f'make chaos PART=spark CELLS="{cell}"'
            raise ChaosFailed(f"{cell}: {failure} (only this: {replay})") from failure
        self._kills[pipeline.name] += 1
        self.counts[f"kills: {cell}"] += 1
        self.counts += kill.counts
        added = found - before
        self.counts += added
        summary = ", ".join(f"{count} {name}" for name, count in sorted(added.items()) if count)
        return f"round {self._round}: {cell}, {time.monotonic() - started_s:.0f} s; {summary}"

    def check(self) -> None:
        """Check all running pipelines once more. Raises ChaosFailed."""
        for pipeline in self._pipelines.values():
            pipeline.check()

    def close(self) -> None:
        self._world.close()

    def _pipeline(self, cell: Cell) -> Pipeline:
        """The current pipeline, or a new one for a first batch or when the old one is too large."""
        known = self._pipelines.get(cell.sink)
        if known is not None:
            is_old = self._kills[known.name] >= KILLS_PER_PIPELINE_MAX
            if not cell.is_first_batch and not is_old:
                return known
            self._world.retire(known)
        return self._world.new_pipeline(cell.sink)


def cells_in_order(chance: SeededRandomness, only: str) -> list[Cell]:
    """In random order, with those that need a cluster at the end: it has its own driver."""
    left = [cell for cell in matrix() if only in str(cell)]
    if not left:
        raise ChaosFailed(f"no kill is named like {only!r}; they are: {_names()}")
    found: list[Cell] = []
    while left:
        found.append(left.pop(chance.integer(0, len(left))))
    return sorted(found, key=lambda cell: cell.victim is Victim.EXECUTOR)


def _names() -> str:
    return "; ".join(map(str, matrix()))
