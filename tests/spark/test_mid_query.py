"""What goes away under a running query is reported in one clear line, in a time that has a name."""

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kits.client.our_writer import client_of
from kits.process.waiting_for import until
from kits.spark.crash_kit import SessionRunner, brought_to, session_runner, started
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.spark.pipeline import Pipeline
from millstream.testing.chaos.spark.steps import Sink, Step
from millstream.testing.chaos.spark.world import SparkWorld

SLACK_S = 20.0
"""For Spark on a busy machine, on top of the time that is named."""


@pytest.fixture(scope="module")
def runner(spark: SparkSession) -> Iterator[SessionRunner]:
    with session_runner(spark) as made:
        yield made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, runner: SessionRunner) -> Iterator[SparkWorld]:
    made = SparkWorld(tmp_path_factory.mktemp("world"), SeededRandomness(1))
    made.runner = runner
    yield made
    made.close()


def delete(world: SparkWorld, topic: str) -> None:
    with client_of(world.broker.bootstrap_servers) as client:
        assert client.delete_topics([topic]) == {topic: True}


def failure(world: SparkWorld, pipeline: Pipeline, *, named_s: float) -> str:
    """Let everybody go on; why the query stopped, which it must in time."""
    found: list[str] = []

    def has_failed() -> bool:
        why = world.new_failure(pipeline)
        found.extend([why] if why else [])
        return bool(found)

    world.control.release()
    until(has_failed, "the query stops", timeout_s=named_s + SLACK_S)
    return found[0]


def test_a_topic_deleted_between_plan_and_read(world: SparkWorld) -> None:
    """The plan was right when it was made: the task notices."""
    pipeline = started(world, Sink.FILES, kafkaConsumer__pollTimeoutMs="5000")
    brought_to(world, pipeline, Step.LOGGED)
    delete(world, pipeline.spec.source)
    assert "PARTITIONS_DELETED" in failure(world, pipeline, named_s=5)


def test_a_target_deleted_in_mid_write(world: SparkWorld) -> None:
    """`kafka.delivery.timeout.ms`: until then it may come back."""
    limits = {"kafka__delivery__timeout__ms": "3000", "kafka__request__timeout__ms": "2000"}
    pipeline = started(world, Sink.TOPIC, **limits)
    brought_to(world, pipeline, Step.WRITING)
    delete(world, pipeline.spec.target)
    message = failure(world, pipeline, named_s=3)
    assert re.search(rf"records to {pipeline.spec.target}-\d: timed out after 3 s", message)
    assert "UNKNOWN_TOPIC" in message


def test_a_broker_that_goes_away_for_good(world: SparkWorld) -> None:
    """`kafka.default.api.timeout.ms` on the driver; `kafkaConsumer.pollTimeoutMs` in a task."""
    limits = {"kafka__default__api__timeout__ms": "2000", "kafkaConsumer__pollTimeoutMs": "2000"}
    waiting = started(world, Sink.FILES, **limits)
    world.broker.kill()
    try:
        assert "no broker could be reached within 2" in failure(world, waiting, named_s=2)
    finally:
        world.broker.start()
    reading = started(world, Sink.FILES, **limits)
    brought_to(world, reading, Step.LOGGED)
    world.broker.kill()
    try:
        assert "could be reached" in failure(world, reading, named_s=4)
    finally:
        world.broker.start()
