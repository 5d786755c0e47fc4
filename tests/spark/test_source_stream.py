"""`spark.readStream.format("millstream")` in a real session: what only Spark itself can do."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kits.spark.source_kit import World, numbered
from millstream.pipelines.progress import lag_from_progress

TIMEOUT_S = 60

Batches = dict[int, list[list[bytes]]]
"""By number, the values of each time that a batch was run."""


class Query:
    """A streaming query whose batches are collected."""

    def __init__(self, spark: SparkSession, world: World, directory: Path) -> None:
        self._spark, self._world = spark, world
        self.checkpoint = directory / "checkpoint"
        self.seen: Batches = defaultdict(list)
        self.running: StreamingQuery | None = None

    def start(self, *, is_available_now: bool = False, **options: object) -> StreamingQuery:
        reader = self._spark.readStream.format("millstream")
        source = reader.options(**self._world.options(**options)).load()
        writer = source.writeStream.foreachBatch(self._collect)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if is_available_now:
            writer = writer.trigger(availableNow=True)
        self.running = writer.start()
        return self.running

    def _collect(self, rows: DataFrame, number: int) -> None:
        found = rows.select("partition", "offset", "value").collect()
        self.seen[number].append([one.value for one in sorted(found)])

    def run(self, **options: object) -> StreamingQuery:
        """AvailableNow, to its end."""
        query = self.start(is_available_now=True, **options)
        assert query.awaitTermination(TIMEOUT_S)
        return query

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()

    def forget_commits(self, *numbers: int) -> None:
        """As if the driver had been killed before these batches were done."""
        for number in numbers:
            for path in (self.checkpoint / "commits").glob(f"*{number}*"):
                path.unlink()

    @property
    def values(self) -> list[bytes]:
        return [value for runs in self.seen.values() for value in runs[-1]]


@pytest.fixture
def world(servers: str, request: pytest.FixtureRequest) -> World:
    return World(servers, request.node.name.replace("_", "-"))


@pytest.fixture
def query(spark: SparkSession, world: World, tmp_path: Path) -> Iterator[Query]:
    made = Query(spark, world, tmp_path)
    yield made
    made.stop()
    shutil.rmtree(made.checkpoint, ignore_errors=True)


def test_query_goes_on_where_it_stopped(world: World, query: Query) -> None:
    """AvailableNow in limited batches, a restart, partitions added meanwhile, and the lag."""
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    reading = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 6}
    query.run(**reading)
    assert [runs[0] for runs in query.seen.values()] == [numbered(0, 6), numbered(6, 10)]
    world.add_partitions(topic, 2)
    world.write(topic, numbered(10, 13), partition=1)
    done = query.run(**reading)
    assert query.values == numbered(0, 13)
    assert done.lastProgress is not None
    source = done.lastProgress["sources"][0]
    lag = lag_from_progress(source["endOffset"], source["latestOffset"])
    assert lag is not None
    assert (lag.max_offsets, lag.partition_count) == (0, 2)


def test_first_batch_from_latest_is_replayed_as_it_was(world: World, query: Query) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    running = query.start(subscribe=topic)
    running.processAllAvailable()
    world.write(topic, numbered(3, 6))
    running.processAllAvailable()
    running.stop()
    numbers = sorted(query.seen)
    assert query.values == numbered(3, 6)
    world.write(topic, numbered(6, 9))
    query.forget_commits(*numbers[-1:])
    query.run(subscribe=topic)
    assert query.seen[numbers[-1]] == [query.seen[numbers[-1]][0]] * 2
    assert query.values == numbered(3, 9)


def test_batch_zero_is_replayed_with_its_own_start(world: World, query: Query) -> None:
    """The checkpoint has no start for batch 0 and Spark asks again, when latest has moved."""
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    query.run(subscribe=topic, startingTimestamp=1)
    assert query.seen[0] == [numbered(0, 3)]
    world.write(topic, numbered(3, 6))
    query.forget_commits(0)
    query.run(subscribe=topic, startingOffsets="latest")
    assert query.seen[0] == [numbered(0, 3)] * 2
    assert query.values == numbered(0, 6)


def test_lost_records_stop_the_query_with_a_clear_line(world: World, query: Query) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    reading = {"subscribe": topic, "startingOffsets": "earliest"}
    query.run(**reading, maxOffsetsPerTrigger=10)
    world.write(topic, numbered(10, 20))
    world.delete_before(topic, 15)
    with pytest.raises(StreamingQueryException) as stopped:
        query.run(**reading)
    assert (
        "DataLost: some records are no longer available: [KAFKA_DATA_LOSS.START_OFFSET_RESET]"
        in (str(stopped.value))
    )
    assert "set the option failOnDataLoss to false" in str(stopped.value)
    query.run(**reading, failOnDataLoss="false")
    assert query.values == [*numbered(0, 10), *numbered(15, 20)]


def test_topic_deleted_under_a_running_query_stops_it(world: World, query: Query) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    running = query.start(subscribe=topic, startingOffsets="earliest")
    running.processAllAvailable()
    world.delete(topic)
    with pytest.raises(StreamingQueryException, match="PARTITIONS_DELETED"):
        running.awaitTermination(TIMEOUT_S)


def test_two_sources_in_one_query(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Each has a process of its own, and options of its own."""
    first, second = world.topic("a"), world.topic("b")
    world.write(first, numbered(0, 3))
    world.write(second, numbered(3, 6))

    def source(topic: str) -> DataFrame:
        options = world.options(subscribe=topic, startingOffsets="earliest")
        return spark.readStream.format("millstream").options(**options).load()

    seen: list[bytes] = []

    def collect(rows: DataFrame, _: int) -> None:
        seen.extend(one.value for one in rows.collect())

    both = source(first).union(source(second)).writeStream.foreachBatch(collect)
    both = both.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert both.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    assert sorted(seen) == numbered(0, 6)
