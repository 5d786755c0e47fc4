"""I-43: one kill of each kind in the middle of a micro-batch; all of them are in `make chaos`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kits.spark.crash_kit import SessionRunner, session_runner
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.spark.kill import Kill
from millstream.testing.chaos.spark.steps import Cell, Sink, Step, Victim
from millstream.testing.chaos.spark.world import SparkWorld

SEED = 20_240_101


@pytest.fixture
def runner(spark: SparkSession) -> Iterator[SessionRunner]:
    with session_runner(spark) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path, runner: SessionRunner) -> Iterator[SparkWorld]:
    """A broker to kill, and Spark in the session of the tests."""
    made = SparkWorld(tmp_path, SeededRandomness(SEED))
    made.runner = runner
    yield made
    made.close()


def killed(world: SparkWorld, cell: Cell) -> tuple[Kill, dict[str, int]]:
    """What came out is right, or this raises; returns what there was to compare."""
    kill = Kill(world, world.new_pipeline(cell.sink), cell, SeededRandomness(SEED))
    return kill, kill.run().check()


@pytest.mark.slow
def test_a_killed_driver_replays_its_first_batch_from_where_it_began(world: SparkWorld) -> None:
    """It started at latest, and more is written before another program goes on with it."""
    world.runner, world.successor = None, world.runner
    cell = Cell(victim=Victim.DRIVER, sink=Sink.TOPIC, step=Step.WRITTEN, is_first_batch=True)
    _, compared = killed(world, cell)
    assert compared["plans compared"] == 1
    assert compared["task reads compared"] > 0
    assert compared["rows written again"] > 0


@pytest.mark.slow
def test_a_batch_whose_worker_was_killed_is_run_again(world: SparkWorld) -> None:
    cell = Cell(victim=Victim.WORKER, sink=Sink.TOPIC, step=Step.WRITTEN)
    kill, compared = killed(world, cell)
    assert kill.counts["queries failed and started again"] == 1
    assert compared["plans compared"] == 1
    assert compared["rows written again"] > 0


@pytest.mark.slow
def test_a_query_does_not_notice_that_its_broker_was_killed(world: SparkWorld) -> None:
    """And a task does not tell that rows are stored while there is nobody to store them."""
    cell = Cell(victim=Victim.BROKER, sink=Sink.TOPIC, step=Step.WRITING)
    kill, compared = killed(world, cell)
    assert not kill.counts["queries failed and started again"]
    assert compared["rows written again"] == 0
    assert compared["rows"] > 0
