"""Queries in the session that all tests share, held at steps of a micro-batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kits.process.waiting_for import until
from millstream.testing.chaos.spark.control import Breakpoint
from millstream.testing.chaos.spark.pipeline import Pipeline
from millstream.testing.chaos.spark.query import SETTINGS, QuerySpec, register_hooks, start_query
from millstream.testing.chaos.spark.steps import Sink, Step
from millstream.testing.chaos.spark.world import SparkWorld

STEP_MAX_S = 60.0


class SessionRunner:
    """A QueryRunner without a process of its own."""

    retries_tasks = False

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._started: dict[str, list[StreamingQuery]] = {}

    def start(self, spec: QuerySpec) -> None:
        query = start_query(self._session, spec)
        self._started.setdefault(spec.name, []).append(query)

    def stop(self, query: str) -> None:
        for one in self._started[query]:
            one.stop()

    def failures(self, query: str) -> list[str]:
        ended = [one.exception() for one in self._started[query] if not one.isActive]
        return [str(one) for one in ended if one is not None]


@contextmanager
def session_runner(spark: SparkSession) -> Iterator[SessionRunner]:
    """Settings of the session are as before afterwards, and no query runs."""
    register_hooks(spark)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, SETTINGS[name])
    try:
        yield SessionRunner(spark)
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.conf.set(name, before or "")


def started(world: SparkWorld, sink: Sink, **options: str) -> Pipeline:
    """A query that was started and is held before it looks for its first records; with those.

    Options of the source, `__` for dots.
    """
    pipeline = world.new_pipeline(sink)
    named = {name.replace("__", "."): value for name, value in options.items()}
    pipeline.spec = replace(pipeline.spec, options={"startingOffsets": "latest", **named})
    point = break_at(world, pipeline, Step.END)
    world.ensure_running(pipeline)
    until(point.is_hit.is_set, "the query begins", timeout_s=STEP_MAX_S)
    pipeline.feed({0: 300})
    return pipeline


def break_at(world: SparkWorld, pipeline: Pipeline, step: Step) -> Breakpoint:
    return world.control.set_breakpoint(
        lambda report: (report.query, report.what) == (pipeline.name, step.value)
    )


def brought_to(world: SparkWorld, pipeline: Pipeline, step: Step) -> Breakpoint:
    """From wherever it is held to the step, and held there."""
    before, point = world.control.current, break_at(world, pipeline, step)
    if before is not None:
        before.resume.set()
    until(point.is_hit.is_set, step.value, timeout_s=STEP_MAX_S)
    return point
