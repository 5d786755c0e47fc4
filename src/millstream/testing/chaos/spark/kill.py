"""One kill: run a query to a step, kill, continue until everything is processed."""

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.spark.control import Breakpoint, Report
from millstream.testing.chaos.spark.pipeline import PARTITIONS, Pipeline
from millstream.testing.chaos.spark.process import parent_of
from millstream.testing.chaos.spark.steps import Cell, Step, Victim
from millstream.testing.chaos.spark.world import SparkWorld
from millstream.testing.wait_until import wait_until

HIT_MAX_S: Final = 120.0
"""A query that does not get to a step within this hangs."""
CATCH_UP_MAX_S: Final = 180.0
"""How long a query may take after a kill until it has processed everything."""
MANIFEST_TRIES_MAX: Final = 8
"""Between manifest and commit log nothing of ours runs: the moment is found by watching files, and
a busy machine can miss it."""
DOWN_MAX_S: Final = 1.5


class Kill:
    """One cell of the matrix, applied to one query."""

    def __init__(
        self, world: SparkWorld, pipeline: Pipeline, cell: Cell, chance: SeededRandomness
    ) -> None:
        self._world = world
        self._pipeline = pipeline
        self._cell = cell
        self._chance = chance
        self.counts: Counter[str] = Counter()

    def run(self) -> Pipeline:
        """Raise ChaosFailed also when the step is not reached. Return the query's pipeline."""
        self._world.ensure_driver(is_cluster=self._cell.victim is Victim.EXECUTOR)
        if self._cell.step is Step.MANIFEST:
            self._stop_at_manifest()
            self._kill_victim(None)
        else:
            point = self._run_to_step()
            self._check_position()
            self._kill_victim(point)
        self._recover()
        return self._pipeline

    # -- to the step

    def _run_to_step(self) -> Breakpoint:
        """Run the query to the cell's step and hold it there."""
        if not self._cell.is_first_batch:
            self._run_until_idle()
        point = self._break_at(Step.END)
        self._world.ensure_running(self._pipeline)
        self._wait_for(point, Step.END)
        # Held before it reads the ends: exactly what is written now is in the next batch.
        if self._cell.step is not Step.IDLE:
            self._feed()
        if self._cell.step in (Step.IDLE, Step.END):
            return point
        reached = self._break_at(self._cell.step)
        point.resume.set()
        self._wait_for(reached, self._cell.step)
        return reached

    def _run_until_idle(self) -> None:
        """Finish a first batch, until the query has nothing to do."""
        self._world.ensure_running(self._pipeline)
        if self._pipeline.checkpoint.committed < 0:
            self._wait_for_start()
            self._feed()
        self._wait_until_done()

    def _wait_for_start(self) -> None:
        """Records that are written before the query has begun would not be read by it."""
        from millstream.testing.chaos.spark.hooks import STARTED

        wait_until(
            lambda: self._world.control.reports(self._pipeline.name, STARTED),
            f"{self._pipeline.name} starts",
            timeout_s=HIT_MAX_S,
        )

    def _break_at(self, step: Step) -> Breakpoint:
        name = self._pipeline.name

        def matches(report: Report) -> bool:
            return report.query == name and report.what == step.value

        return self._world.control.set_breakpoint(matches)

    def _wait_for(self, point: Breakpoint, step: Step) -> None:
        def is_there() -> bool:
            self._check_running()
            return point.is_hit.is_set()

        wait_until(is_there, f"{self._pipeline.name} is {step.value}", timeout_s=HIT_MAX_S)

    def _check_position(self) -> None:
        """Check that the checkpoint agrees with the report of the step."""
        pending = self._pipeline.pending
        if self._cell.step.is_within_batch != (pending is not None):
            raise ChaosFailed(f"reported {self._cell.step.value}, but the checkpoint has {pending}")
        if self._cell.is_first_batch and pending not in (None, 0):
            raise ChaosFailed(f"the first batch was to be killed, not {pending}")

    def _stop_at_manifest(self) -> None:
        """The JVM is stopped with the batch in the manifest and not in the commit log."""
        for _ in range(MANIFEST_TRIES_MAX):
            if not self._cell.is_first_batch:
                self._run_until_idle()
            point = self._break_at(Step.END)
            self._world.ensure_running(self._pipeline)
            self._wait_for(point, Step.END)
            self._feed()
            batch = self._pipeline.checkpoint.logged + 1
            point.resume.set()
            if self._is_stopped_before_commit(batch):
                return
            self.counts["moments missed"] += 1
            os.kill(self._world.driver.jvm_pid, signal.SIGCONT)
            if self._cell.is_first_batch:
                self._begin_again()
        raise ChaosFailed("the moment after the manifest was missed every time")

    def _is_stopped_before_commit(self, batch: int) -> bool:
        manifest = self._pipeline.manifest
        wait_until(
            lambda: manifest.has(batch),
            f"the manifest of batch {batch}",
            timeout_s=HIT_MAX_S,
            pause_s=0.0005,
        )
        os.kill(self._world.driver.jvm_pid, signal.SIGSTOP)
        return self._pipeline.pending == batch

    def _begin_again(self) -> None:
        """Its first batch is over: continue with a new query."""
        self._wait_until_done()
        self._world.retire(self._pipeline)
        self._pipeline = self._world.new_pipeline(self._cell.sink)

    # -- the kill

    def _kill_victim(self, point: Breakpoint | None) -> None:
        match self._cell.victim:
            case Victim.DRIVER:
                self._world.end_driver()
            case Victim.BROKER:
                self._kill_broker(point)
            case Victim.WORKER:
                os.kill(self._hit_report(point).pid, signal.SIGKILL)
            case Victim.EXECUTOR:
                daemon = parent_of(self._hit_report(point).pid)
                os.kill(parent_of(daemon), signal.SIGKILL)
        self._release(point)

    def _kill_broker(self, point: Breakpoint | None) -> None:
        """Let the query run without a broker for a while, or restart the broker first."""
        self._world.broker.kill()
        if self._cell.step is Step.WRITING or self._chance.chance(0.7):
            before = self._tasks_stored(point)
            self._release(point)
            self.counts["the query went on without a broker"] += 1
            time.sleep(self._chance.between(DOWN_MAX_S / 2, DOWN_MAX_S))
            if self._cell.step is Step.WRITING and self._tasks_stored(point) > before:
                raise ChaosFailed("I-43 a task reported its rows as stored, without a broker")
        self._world.broker.start()

    def _tasks_stored(self, point: Breakpoint | None) -> int:
        """How often the task that is held has reported that all its rows are stored."""
        held = None if point is None else point.report
        reports = self._world.control.reports(self._pipeline.name, Step.WRITTEN.value)
        return sum(held is not None and one.task == held.task for one in reports)

    def _release(self, point: Breakpoint | None) -> None:
        if point is not None:
            point.resume.set()
        elif self._world.runner is not None:
            with suppress(ProcessLookupError):
                os.kill(self._world.driver.jvm_pid, signal.SIGCONT)

    def _hit_report(self, point: Breakpoint | None) -> Report:
        if point is None or point.report is None:
            raise ChaosFailed("no process is held")
        return point.report

    # -- afterwards

    def _recover(self) -> None:
        """Continue after the kill: a replay must not include what came after it."""
        if self._cell.step is Step.IDLE or self._cell.is_first_batch or self._chance.chance(0.5):
            self._feed()
        is_cluster = self._cell.victim is Victim.EXECUTOR
        self._world.ensure_driver(is_cluster=is_cluster)
        self._world.ensure_running(self._pipeline)
        self._wait_until_done(may_fail=self._may_fail)

    @property
    def _may_fail(self) -> bool:
        """Spark replaces the Python process of a task, but not those of a source or a commit."""
        runner = self._world.runner
        is_retried = self._cell.step.is_in_task and runner is not None and runner.retries_tasks
        return self._cell.victim is Victim.WORKER and not is_retried

    def _wait_until_done(self, *, may_fail: bool = False) -> None:
        def is_done() -> bool:
            self._check_running(may_fail=may_fail)
            return self._pipeline.is_caught_up

        wait_until(is_done, f"{self._pipeline.name} is done", timeout_s=CATCH_UP_MAX_S)

    def _check_running(self, *, may_fail: bool = False) -> None:
        """A query that failed where it may is started again."""
        failure = self._world.new_failure(self._pipeline)
        if failure is None:
            return
        if not may_fail:
            raise ChaosFailed(f"the query {self._pipeline.name} failed: {failure}")
        self.counts["queries failed and started again"] += 1
        self._world.ensure_running(self._pipeline)

    def _feed(self) -> None:
        counts = {one: self._chance.integer(0, 400) for one in range(PARTITIONS)}
        counts[self._chance.integer(0, PARTITIONS)] += 100
        self.counts["records"] += self._pipeline.feed(counts)
