"""What a round of Spark chaos acts on: a broker, a Spark program, queries with their topics."""

from collections import Counter
from pathlib import Path
from typing import Final, Protocol

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.broker.killable_broker import KillableBroker
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.spark.control import ControlServer
from millstream.testing.chaos.spark.pipeline import Pipeline
from millstream.testing.chaos.spark.process import LOCAL, SparkDriver
from millstream.testing.chaos.spark.query import QuerySpec
from millstream.testing.chaos.spark.steps import Sink
from millstream.testing.spark.cluster import StandaloneCluster

_BROKER: Final = {"log.level": "WARN", "auto.create.topics.enable": "false"}


class QueryRunner(Protocol):
    """A Spark program: a process of its own, or the session of a test."""

    retries_tasks: bool
    """Whether a query survives the loss of a task."""

    def start(self, spec: QuerySpec) -> None: ...

    def stop(self, query: str) -> None: ...

    def failures(self, query: str) -> list[str]: ...


class SparkWorld:
    """The broker runs from the start; `close` ends everything."""

    def __init__(self, root: Path, chance: SeededRandomness) -> None:
        self._root = root
        self._chance = chance
        self._drivers = 0
        self._cluster: StandaloneCluster | None = None
        self._made: Counter[Sink] = Counter()
        self._running: set[str] = set()
        self._failures_seen: Counter[str] = Counter()
        self.runner: QueryRunner | None = None
        self.successor: QueryRunner | None = None
        """Takes over the queries of a killed driver; without it a new driver does."""
        self.broker = KillableBroker(root / "broker", _BROKER).start()
        self.control = ControlServer()

    def close(self) -> None:
        if isinstance(self.runner, SparkDriver):
            self.runner.close()
        if self._cluster is not None:
            self._cluster.close()
        self.control.close()
        self.broker.stop()

    # -- the Spark program

    @property
    def driver(self) -> SparkDriver:
        """The driver process; raises ChaosFailed when there is none."""
        if not isinstance(self.runner, SparkDriver):
            raise ChaosFailed("there is no driver to kill")
        return self.runner

    def ensure_driver(self, *, is_cluster: bool) -> None:
        """Ensure that a driver of this kind runs; end one of the other kind first."""
        master = self._master(is_cluster=is_cluster)
        if isinstance(self.runner, SparkDriver):
            if self.runner.master == master:
                return
            self.end_driver()
        elif self.runner is not None:
            return  # the session of a test
        self._drivers += 1
        settings = self._cluster.session_settings if is_cluster and self._cluster else {}
        directory = self._root / f"driver-{self._drivers}"
        self.runner = SparkDriver(directory, self.control, master=master, settings=settings)

    def end_driver(self) -> None:
        """Kill the driver; a process that is held continues and finds it gone."""
        driver = self.driver
        driver.kill()
        self.control.release()
        driver.wait_for_workers_to_end()
        driver.close()
        self.runner = self.successor
        self._running.clear()
        self._failures_seen.clear()

    def _master(self, *, is_cluster: bool) -> str:
        if not is_cluster:
            return LOCAL
        if self._cluster is None:
            self._cluster = StandaloneCluster(self._root / "cluster").start()
        return self._cluster.master

    # -- queries

    def new_pipeline(self, sink: Sink) -> Pipeline:
        """Create a pipeline with its own topics, checkpoint and options; its query does not run."""
        self._made[sink] += 1
        name = f"{sink.value}-{self._made[sink]}"
        directory = self._root / name
        directory.mkdir()
        target = f"{name}-out" if sink is Sink.TOPIC else str(directory / "files")
        spec = QuerySpec(
            name=name,
            servers=self.broker.bootstrap_servers,
            source=f"{name}-in",
            sink=sink,
            target=target,
            checkpoint=str(directory / "checkpoint"),
            control=str(self.control.path),
            options=self._options(),
        )
        pipeline = Pipeline(spec, self.control)
        pipeline.create_topics()
        return pipeline

    def _options(self) -> dict[str, str]:
        """Options of a source that decide how a batch is divided into tasks."""
        options = {"startingOffsets": "latest"}
        if self._chance.chance(0.5):
            options["maxOffsetsPerTrigger"] = str(self._chance.integer(150, 500))
        if self._chance.chance(0.5):
            options["minPartitions"] = str(self._chance.integer(4, 7))
        return options

    def ensure_running(self, pipeline: Pipeline) -> None:
        """Start its query, or restart it where it failed."""
        if self.runner is None:
            raise ChaosFailed("there is no Spark program")
        if pipeline.name not in self._running:
            self.runner.start(pipeline.spec)
            self._running.add(pipeline.name)

    def new_failure(self, pipeline: Pipeline) -> str | None:
        """Why its query stopped by itself; each failure is returned once."""
        failures = [] if self.runner is None else self.runner.failures(pipeline.name)
        seen = self._failures_seen[pipeline.name]
        if len(failures) <= seen:
            return None
        self._failures_seen[pipeline.name] += 1
        self._running.discard(pipeline.name)
        return failures[seen]

    def retire(self, pipeline: Pipeline) -> None:
        """Stop its query."""
        if self.runner is not None and pipeline.name in self._running:
            self.runner.stop(pipeline.name)
            self._running.discard(pipeline.name)
