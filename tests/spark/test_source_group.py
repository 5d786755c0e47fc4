"""A streaming query with `group.id`, seen as any tool for the lag of groups sees it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kits.process.waiting_for import until
from kits.spark.source_kit import World, numbered

TIMEOUT_S = 60


@pytest.fixture
def world(servers: str, request: pytest.FixtureRequest) -> World:
    return World(servers, request.node.name.replace("_", "-"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "checkpoint"
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)


def _committed(world: World, group: str, topic: str, partitions: int = 1) -> list[int]:
    consumer = Consumer({"bootstrap.servers": world.servers, "group.id": group})
    try:
        asked = [ConfluentPartition(topic, index) for index in range(partitions)]
        return [one.offset for one in consumer.committed(asked, timeout=TIMEOUT_S)]
    finally:
        consumer.close()


def _start(
    spark: SparkSession,
    world: World,
    checkpoint: Path,
    *,
    is_available_now: bool,
    **options: object,
) -> StreamingQuery:
    source = spark.readStream.format("millstream").options(**world.options(**options)).load()
    writer = source.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    if is_available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def test_the_group_stands_where_an_available_now_query_ended(
    spark: SparkSession, world: World, checkpoint: Path
) -> None:
    topic, group = world.topic(partitions=2), f"{world.prefix}-lag"
    world.write(topic, numbered(0, 10))
    world.write(topic, numbered(0, 4), partition=1)
    reading = {"subscribe": topic, "startingOffsets": "earliest", "group__id": group}
    query = _start(spark, world, checkpoint, is_available_now=True, **reading)
    assert query.awaitTermination(TIMEOUT_S)
    assert _committed(world, group, topic, 2) == [10, 4]


def test_an_idle_query_has_no_lag(spark: SparkSession, world: World, checkpoint: Path) -> None:
    topic, group = world.topic(), f"{world.prefix}-lag"
    world.write(topic, numbered(0, 5))
    reading = {"subscribe": topic, "startingOffsets": "earliest", "group__id": group}
    query = _start(spark, world, checkpoint, is_available_now=False, **reading)
    try:
        until(
            lambda: _committed(world, group, topic) == [5], "the group is told", timeout_s=TIMEOUT_S
        )
        world.write(topic, numbered(5, 8))
        until(
            lambda: _committed(world, group, topic) == [8], "the group is told", timeout_s=TIMEOUT_S
        )
        assert query.isActive
    finally:
        query.stop()
