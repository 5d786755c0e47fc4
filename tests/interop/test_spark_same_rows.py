"""The same query gives the same rows: Spark's connector in the JVM and our source, on both brokers.

SPARK_SEEDS=7,8,9 runs other random topics.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kits.interop.client_kit import new_topic_name
from kits.interop.client_targets import running
from kits.interop.kafka_workload import TOPICS, Workload
from kits.interop.kafka_world import SETTINGS, KafkaWorld, is_cleaned, is_deleted
from kits.interop.random_topics import RandomTopics
from kits.interop.spark_queries import CONNECTOR, OURS, Stream, TopicRow, assert_same, read
from kits.interop.waiting import wait_until
from millstream.testing import BrokerThread
from millstream.testing.peers.kafka import ApacheKafka

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("pyspark")]

SEEDS = [int(seed) for seed in os.environ.get("SPARK_SEEDS", "1,2,3").split(",")]
QUERIES_PER_SEED = 6


@pytest.fixture(scope="module")
def spark(pyspark_session: SparkSession) -> SparkSession:
    """It has the connector's jars."""
    return pyspark_session


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    directory = tmp_path_factory.mktemp("kafka")
    with ApacheKafka(directory / "kafka", jars=jars, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def both(kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Addresses of our broker and of Apache Kafka."""
    with running("millstream", tmp_path_factory.mktemp("millstream")) as target:
        yield [target.servers, kafka.bootstrap_servers]


@pytest.fixture(scope="module", params=["kafka", "directory of kafka"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Every kind of topic: on Apache Kafka, and on our broker in a directory that Kafka wrote."""
    with ExitStack() as stack:
        if request.param == "kafka":
            broker: ApacheKafka = request.getfixturevalue("kafka")
            _fill(broker)
            yield broker.bootstrap_servers
        else:
            world: KafkaWorld = request.getfixturevalue("world")
            data = world.clean.copy_to(tmp_path_factory.mktemp("copy") / "data")
            ours = BrokerThread({"log.retention.ms": -1}, directory=data, is_standalone=True)
            yield stack.enter_context(ours).bootstrap_servers


def _fill(kafka: ApacheKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    workload = Workload(kafka.bootstrap_servers)
    workload.create_topics(admin)
    workload.write_everything()
    workload.delete_records(admin)
    wait_until("deleted segments gone", lambda: is_deleted(kafka.data_directory))
    wait_until("cleaner done", lambda: is_cleaned(kafka.data_directory))


def without_time(rows: list[TopicRow], topics: set[str]) -> list[TopicRow]:
    """Times that the brokers' clocks gave differ between brokers."""
    return [row._replace(timestamp=None) if row.topic in topics else row for row in rows]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_every_kind_of_topic(filled: str, isolation: str, spark: SparkSession) -> None:
    """Transactions, compaction, deleted records, all codecs, all shapes of records."""
    options = {
        "subscribe": ",".join(TOPICS),
        "includeHeaders": "true",
        "startingOffsets": "earliest",
        "kafka.isolation.level": isolation,
    }
    theirs = read(spark, CONNECTOR, filled, options)
    assert {row.topic for row in theirs} == set(TOPICS) - {"empty"}
    assert_same(read(spark, OURS, filled, options), theirs, lambda: isolation)


def test_isolation_levels_differ(filled: str, spark: SparkSession) -> None:
    """So that the test above compares something."""
    rows = {
        isolation: read(
            spark,
            OURS,
            filled,
            {"subscribe": "transactions,open-transaction", "kafka.isolation.level": isolation},
        )
        for isolation in ("read_committed", "read_uncommitted")
    }
    assert set(rows["read_committed"]) < set(rows["read_uncommitted"])


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_streams_of_every_kind_of_topic(
    filled: str, isolation: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Batch for batch the same rows under a limit that cuts through everything."""
    streams = {
        source: Stream(
            spark,
            source,
            filled,
            {
                "subscribe": "transactions,transactions-rolled,compacted,deleted,shapes",
                "includeHeaders": "true",
                "startingOffsets": "earliest",
                "kafka.isolation.level": isolation,
                "maxOffsetsPerTrigger": "700",
            },
            tmp_path / source,
        )
        for source in (CONNECTOR, OURS)
    }
    for stream in streams.values():
        stream.run()
    theirs, ours = streams[CONNECTOR].filled(), streams[OURS].filled()
    assert len(theirs) > 2
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert_same(one, other, lambda number=number: f"batch {number}")  # type: ignore[misc]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_queries_over_random_topics(
    seed: int, both: list[str], spark: SparkSession, replay: Callable[[int], str]
) -> None:
    topics = RandomTopics(seed, new_topic_name("same"))
    topics.first_round(both)
    for _ in range(QUERIES_PER_SEED):
        options = topics.query()

        def about(options: dict[str, str] = options) -> str:
            return f"{options}\n{replay(seed)}"

        found = [
            read(spark, source, servers, options)
            for servers in both
            for source in (CONNECTOR, OURS)
        ]
        assert_same(found[1], found[0], about)
        assert_same(found[3], found[2], about)
        plain = [without_time(rows, topics.append_time) for rows in found]
        assert_same(plain[0], plain[2], about)


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_over_topics_that_grow(
    seed: int, both: list[str], spark: SparkSession, tmp_path: Path, replay: Callable[[int], str]
) -> None:
    """A query that goes on from its checkpoint: new records, new partitions, the same batches."""
    topics = RandomTopics(seed, new_topic_name("grow"))
    topics.first_round(both)
    options = {
        "subscribePattern": f"{topics.prefix}-[0-9]",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(topics.random.randint(40, 400)),
        "minPartitions": str(topics.random.randint(1, 6)),
    }
    streams = [
        Stream(spark, source, servers, options, tmp_path / f"{number}-{source}")
        for number, servers in enumerate(both)
        for source in (CONNECTOR, OURS)
    ]
    for stream in streams:
        stream.run()
    topics.next_round(both)
    for stream in streams:
        stream.run()
    batches = [
        [without_time(rows, topics.append_time) for rows in stream.filled()] for stream in streams
    ]
    total = sum(topics.ends.values()) - sum(topics.starts.values())
    for found in batches:
        assert sum(map(len, found)) == total, replay(seed)
        assert len(found) == len(batches[0]), replay(seed)
        for one, other in zip(found, batches[0], strict=True):
            assert_same(one, other, lambda: replay(seed))


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Callable[[int], str]:
    name = request.node.nodeid.split("[")[0]
    return lambda seed: f"again: SPARK_SEEDS={seed} .venv/bin/python -m pytest {name}"
