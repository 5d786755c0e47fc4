"""A batch query writes rows to topics, and other clients read what was written."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kits.client.our_writer import CODECS, Seen, java_partition
from kits.spark.sink_kit import HEADERS, append, frame, made, read_all, stored_batches
from millstream.testing import BrokerThread


def pairs(found: list[Seen]) -> list[tuple[bytes | None, bytes | None]]:
    return [(one.key, one.value) for one in found]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """One whose files can be looked at."""
    with BrokerThread() as running:
        yield running


def test_strings_bytes_and_nulls_arrive_as_they_are(spark: SparkSession, servers: str) -> None:
    """A null value is a tombstone, and no empty one."""
    topic = made(servers, "sink-plain")
    texts = [("a", "é"), ("b", None), (None, "no key"), ("", "")]
    append(frame(spark, "key string, value string", *texts).coalesce(1), servers, topic)
    raw: list[tuple[Any, ...]] = [(b"\xff\x00", b"\x00"), (b"gone", None), (None, None), (b"", b"")]
    append(
        frame(spark, "value binary, key binary", *[(value, key) for key, value in raw]).coalesce(1),
        servers,
        topic,
    )
    (found,) = read_all(servers, topic, 1, 8)
    expected = [(key and key.encode(), value and value.encode()) for key, value in texts]
    assert pairs(found[:4]) == [
        (b"" if key == "" else key, b"" if value == "" else value) for key, value in expected
    ]
    assert pairs(found[4:]) == raw


def test_headers_arrive_in_their_order_with_nulls_and_duplicates(
    spark: SparkSession, servers: str
) -> None:
    topic = made(servers, "sink-headers")
    given: list[list[tuple[str, bytes | None]] | None] = [
        [("h", b"1"), ("h", b"2"), ("null", None), ("", b"")],
        [],
        None,
        [("again", b"\x00\xff")],
    ]
    rows = [(f"v{number}", headers) for number, headers in enumerate(given)]
    append(frame(spark, f"value string, {HEADERS}", *rows).coalesce(1), servers, topic)
    (found,) = read_all(servers, topic, 1, 4)
    assert [one.headers for one in found] == [headers or [] for headers in given]


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_packed_as_asked(spark: SparkSession, broker: BrokerThread, codec: str) -> None:
    topic = made(broker.bootstrap_servers, f"sink-{codec}")
    rows = spark.range(2000).selectExpr("repeat(CAST(id AS STRING), 20) AS value")
    append(rows, broker.bootstrap_servers, topic, kafka__compression__type=codec)
    (found,) = read_all(broker.bootstrap_servers, topic, 1, 2000)
    assert {one.value for one in found} == {b"%d" % one * 20 for one in range(2000)}
    assert {CODECS[one.codec] for one in stored_batches(broker, topic)} == {codec}


def test_keys_go_where_javas_producer_sends_them(spark: SparkSession, servers: str) -> None:
    topic = made(servers, "sink-keys", 7)
    rows = spark.range(500).selectExpr(
        "CAST(id % 100 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    append(rows, servers, topic)
    found = read_all(servers, topic, 7, 500)
    for partition, part in enumerate(found):
        assert part
        for one in part:
            assert one.key is not None
            assert java_partition(one.key, 7) == partition


def test_rows_without_keys_stay_together_until_there_is_a_batch_of_them(
    spark: SparkSession, servers: str
) -> None:
    few, many = made(servers, "sink-few", 4), made(servers, "sink-many", 4)
    rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS value")
    append(rows.coalesce(1), servers, few)
    assert sorted(len(part) for part in read_all(servers, few, 4, 1000)) == [0, 0, 0, 1000]
    # 40 batches: that they all hit one of four partitions does not happen.
    rows = spark.range(20_000).selectExpr("repeat('x', 1000) AS value")
    append(rows.coalesce(1), servers, many)
    assert sum(1 for part in read_all(servers, many, 4, 20_000) if part) > 1


def test_the_column_partition_goes_before_the_key(spark: SparkSession, servers: str) -> None:
    topic = made(servers, "sink-partition", 3)
    rows = [("k", 2, "explicit"), ("k", None, "by key"), (None, 0, "no key")]
    append(frame(spark, "key string, partition int, value string", *rows), servers, topic)
    found = read_all(servers, topic, 3, 3)
    places = {one.value: partition for partition, part in enumerate(found) for one in part}
    assert places == {b"explicit": 2, b"by key": java_partition(b"k", 3), b"no key": 0}


def test_each_row_goes_to_its_topic_unless_the_option_names_one(
    spark: SparkSession, servers: str
) -> None:
    topics = [made(servers, f"sink-topic-{number}") for number in range(3)]
    rows = [(topics[number % 3], f"{number}") for number in range(300)]
    several = frame(spark, "topic string, value string", *rows)
    append(several, servers)
    for number, topic in enumerate(topics):
        (found,) = read_all(servers, topic, 1, 100)
        assert {one.value for one in found} == {b"%d" % one for one in range(number, 300, 3)}
    only = made(servers, "sink-topic-only")
    append(several, servers, only)
    assert len(read_all(servers, only, 1, 300)[0]) == 300


def test_a_topic_is_created_where_the_broker_allows_it(spark: SparkSession, servers: str) -> None:
    append(frame(spark, "value string", ("first",)), servers, "sink-created")
    assert pairs(read_all(servers, "sink-created", 1, 1)[0]) == [(None, b"first")]


def test_no_rows_are_no_records(spark: SparkSession, servers: str) -> None:
    topic = made(servers, "sink-nothing")
    append(frame(spark, "value string", ("v",)).where("value = 'w'"), servers, topic)
    assert read_all(servers, topic, 1, 0) == [[]]


def test_large_rows_wait_for_room_instead_of_filling_the_memory(
    spark: SparkSession, servers: str
) -> None:
    """More is written than may be buffered, in pieces that do not fit together."""
    topic = made(servers, "sink-narrow", 2)
    rows = spark.range(3000).selectExpr("repeat(CAST(id % 10 AS STRING), 9000) AS value")
    append(rows, servers, topic, kafka__buffer__memory="1000000")
    found = read_all(servers, topic, 2, 3000)
    assert sum(len(one.value or b"") for part in found for one in part) == 3000 * 9000
