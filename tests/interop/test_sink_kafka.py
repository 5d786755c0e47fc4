"""The sink writes to Apache Kafka as it does to ours; tests/spark has the rest of its promises."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kits.client.our_writer import CODECS, java_partition, read_all
from kits.spark.sink_kit import HEADERS, append, frame, made, write_through_a_kill
from millstream.testing.peers.kafka import ApacheKafka

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("pyspark")]


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    settings = {"auto.create.topics.enable": "true", "num.partitions": "3"}
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), jars=jars, settings=settings) as running:
        yield running


@pytest.mark.parametrize("codec", CODECS)
def test_rows_arrive_as_they_are_in_a_topic_that_kafka_creates(
    pyspark_session: SparkSession, kafka: ApacheKafka, codec: str
) -> None:
    topic = f"sink-{codec}"
    rows = [
        (f"key {number % 50}", None if number % 7 == 0 else b"%d" % number, [("h", None)])
        for number in range(500)
    ]
    written = frame(pyspark_session, f"key string, value binary, {HEADERS}", *rows)
    append(written, kafka.bootstrap_servers, topic, kafka__compression__type=codec)
    found = read_all(kafka.bootstrap_servers, topic, 3, 500)
    seen = [(one.key, one.value, one.headers) for part in found for one in part]
    expected = [(key.encode(), value, headers) for key, value, headers in rows]
    assert sorted(seen, key=repr) == sorted(expected, key=repr)
    for partition, part in enumerate(found):
        assert all(java_partition(one.key or b"", 3) == partition for one in part)


def test_nothing_is_lost_or_doubled_when_kafka_is_killed_in_mid_write(
    pyspark_session: SparkSession, jars: Path, tmp_path: Path
) -> None:
    with ApacheKafka(tmp_path / "kafka", jars=jars) as kafka:

        def kill_and_restart() -> None:
            kafka.kill()
            kafka.start()

        write_through_a_kill(
            pyspark_session,
            kafka.bootstrap_servers,
            "sink-killed",
            kill_and_restart,
        )


def test_several_topics_and_a_partition_column(
    pyspark_session: SparkSession, kafka: ApacheKafka
) -> None:
    topics = [made(kafka.bootstrap_servers, f"sink-several-{number}", 2) for number in range(2)]
    rows = [(topics[number % 2], number // 2 % 2, f"{number}") for number in range(40)]
    append(
        frame(pyspark_session, "topic string, partition int, value string", *rows),
        kafka.bootstrap_servers,
    )
    for index, topic in enumerate(topics):
        found = read_all(kafka.bootstrap_servers, topic, 2, 20)
        for partition, part in enumerate(found):
            expected = {b"%s" % row[2].encode() for row in rows if row[:2] == (topic, partition)}
            assert {one.value for one in part} == expected, index
