"""Spark's own connector for Kafka, in the JVM, reads and writes topics: batch and streaming."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ByName
from kits.interop.client_kit import PROGRAMS, START_MS, Client, Record, record_of, some_records
from kits.interop.client_targets import PEERS, Target
from millstream.testing.peers.java_programs import (
    SPARK_JVM_OPTIONS,
    SPARK_VERSION,
    java_classes,
    java_command,
    spark_jars,
)
from millstream.testing.peers.runtimes import require_runtime

# One session of Spark is enough for all tests: it takes more to start than they take to run.
pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("spark")]

HEADERS = (("trace", b"\x00\x01"), ("empty", None))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A local Spark session."""
    require_runtime("java", "javac", "mvn")
    jars = spark_jars(PEERS)
    folder = PROGRAMS / "java"
    sources = [*(folder / "contract").glob("*.java"), *(folder / "spark").glob("*.java")]
    classes = java_classes(PEERS, "spark-program", sources, jars)
    command = java_command(
        "SparkProgram",
        classes=classes,
        jars=jars,
        logging=folder / "log4j2.properties",
        jvm_options=SPARK_JVM_OPTIONS,
    )
    scratch = tmp_path_factory.mktemp("spark")
    client = Client([*command, str(scratch)], log=scratch / "spark.log")
    assert client.request("hello") == {"client": "spark", "version": SPARK_VERSION}
    yield client
    client.close()


@pytest.fixture
def spark(program: Client, target: Target) -> Callable[..., Any]:
    """Asks the session to do something with a topic; options are the connector's."""

    def ask(do: str, topic: str, *, options: dict[str, str] | None = None, **given: object) -> Any:
        return program.request(
            do, servers=target.servers, topic=topic, options=options or {}, **given
        )

    return ask


def contents(records: list[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


def test_batch_write_is_read_by_others_and_by_spark(
    spark: Callable[..., Any],
    target: Target,
    new_topic: Callable[..., str],
    client_of: ByName,
) -> None:
    topic = new_topic("spark-written", partitions=2)
    records = [
        *some_records(200, timed=False),
        Record(key=b"gone", value=None),
        Record(value=b"with headers", headers=HEADERS),
    ]
    plain = [record.to_json() for record in records]
    options = {"kafka.compression.type": "zstd"}
    spark("write", topic, partition=1, records=plain, options=options)
    read = client_of("franz-go").consume(topic, len(records), partition=1)
    assert contents(read) == contents(records)
    assert read[-1].headers == HEADERS
    stored = target.stored(topic, 1)
    assert {batch.codec for batch in stored} == {"zstd"}
    assert all(batch.producer_id >= 0 for batch in stored)
    again = spark("read", topic)
    assert [one["partition"] for one in again] == [1] * len(records)
    assert [record_of(one) for one in again] == read


def test_batch_read_of_a_range(
    spark: Callable[..., Any], new_topic: Callable[..., str], client_of: ByName
) -> None:
    """By offset and by time, with several tasks for one partition."""
    topic = new_topic("spark-range")
    records = [one._replace(offset=n) for n, one in enumerate(some_records(100))]
    client_of("confluent-kafka").produce(topic, records, codec="lz4")
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 10}}),
        "endingOffsets": json.dumps({topic: {"0": 90}}),
        "minPartitions": "3",
    }
    found = [record_of(one) for one in spark("read", topic, options=bounds)]
    assert found == records[10:90]
    bounds = {
        "startingTimestamp": str(START_MS + 20_000),
        "endingTimestamp": str(START_MS + 30_000),
    }
    found = [record_of(one) for one in spark("read", topic, options=bounds)]
    assert found == records[20:30]


def test_stream_reads_to_the_end(
    spark: Callable[..., Any], new_topic: Callable[..., str], client_of: ByName
) -> None:
    topic = new_topic("spark-stream", partitions=2)
    records = some_records(50)
    producer = client_of("java")
    producer.produce(topic, records[:30], partition=0, codec="snappy")
    producer.produce(topic, records[30:], partition=1, codec="gzip")
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    found = [record_of(one) for one in spark("read_stream", topic, options=options)]
    assert contents(found) == contents(records)


def test_stream_copies_one_topic_to_another_and_goes_on(
    spark: Callable[..., Any],
    new_topic: Callable[..., str],
    client_of: ByName,
    tmp_path: Path,
) -> None:
    """The second run continues where the first one stopped, by its checkpoint."""
    source, copy = new_topic("spark-source"), new_topic("spark-copy")
    records = some_records(40)
    producer = client_of("confluent-kafka")
    given = {"target": copy, "checkpoint": str(tmp_path / "checkpoint")}
    options = {"startingOffsets": "earliest"}
    producer.produce(source, records[:25])
    spark("copy_stream", source, options=options, **given)
    producer.produce(source, records[25:])
    spark("copy_stream", source, options=options, **given)
    assert contents(client_of("java").consume(copy, 40)) == contents(records)
    assert client_of("java").offsets(copy)["latest"] == 40
