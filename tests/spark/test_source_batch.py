"""`spark.read.format("millstream")` in a real session: columns, values, tasks, schemas."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kits.spark.source_kit import World, numbered
from millstream.pipelines.errors import SchemaInvalid
from millstream.pipelines.spark.batch_reader import BatchReader

COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "integer"),
    ("offset", "long"),
    ("timestamp", "timestamp"),
    ("timestampType", "integer"),
]
"""Of the connector's KafkaRecordToRowConverter, as JSON names them; all nullable."""
HEADERS = {
    "containsNull": True,
    "elementType": {
        "fields": [
            {"metadata": {}, "name": "key", "nullable": True, "type": "string"},
            {"metadata": {}, "name": "value", "nullable": True, "type": "binary"},
        ],
        "type": "struct",
    },
    "type": "array",
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def world(servers: str, request: pytest.FixtureRequest) -> World:
    return World(servers, request.node.name.replace("_", "-"))


def frame(spark: SparkSession, world: World, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("millstream").options(**world.options(**options))
    return (reader.schema(schema) if schema else reader).load()


def fields(found: DataFrame) -> list[tuple[str, Any, bool]]:
    told = json.loads(found.schema.json())["fields"]
    return [(one["name"], one["type"], one["nullable"]) for one in told]


def test_columns_are_those_of_the_connector(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.write(topic, [b"one"])
    plain = frame(spark, world, subscribe=topic)
    assert fields(plain) == [(name, kind, True) for name, kind in COLUMNS]
    assert len(plain.collect()) == 1
    whole = frame(spark, world, subscribe=topic, includeHeaders="true")
    assert fields(whole) == [*fields(plain), ("headers", HEADERS, True)]
    assert [row.headers for row in whole.collect()] == [None]


def test_records_of_another_producer_come_as_they_are(spark: SparkSession, world: World) -> None:
    """Nulls, empty values, headers, times, and every codec, written by librdkafka."""
    topic = world.topic(partitions=len(CODECS))
    stamp_ms = 1_700_000_000_123
    for partition, codec in enumerate(CODECS):
        producer = Producer(
            {"bootstrap.servers": world.servers, "compression.type": codec, "linger.ms": 50}
        )
        at: dict[str, Any] = {"partition": partition, "timestamp": stamp_ms}
        producer.produce(topic, value=None, key=b"k", **at)
        producer.produce(topic, value=b"", key=None, headers=[("h", b"1"), ("h", None)], **at)
        producer.produce(topic, value=codec.encode() * 500, key=b"", headers=[], **at)
        assert producer.flush(20) == 0
    found = frame(spark, world, subscribe=topic, includeHeaders="true").collect()
    assert len(found) == 3 * len(CODECS)
    for partition, codec in enumerate(CODECS):
        rows = sorted((one for one in found if one.partition == partition), key=lambda r: r.offset)
        assert [(one.key, one.value) for one in rows] == [
            (b"k", None),
            (None, b""),
            (b"", codec.encode() * 500),
        ]
        assert [one.headers for one in rows] == [None, [("h", b"1"), ("h", None)], None]
        assert {(one.topic, one.timestampType) for one in rows} == {(topic, 0)}
        when = datetime.fromtimestamp(stamp_ms / 1000, UTC).replace(tzinfo=None)
        assert {one.timestamp for one in rows} == {when}


def test_time_of_the_append_is_told_apart(spark: SparkSession, world: World) -> None:
    topic = world.topic(message_timestamp_type="LogAppendTime")
    world.write(topic, [b"one"])
    assert [one.timestampType for one in frame(spark, world, subscribe=topic).collect()] == [1]


def test_tasks_are_split_as_asked(spark: SparkSession, world: World) -> None:
    topic = world.topic(partitions=2)
    for partition in range(2):
        world.write(topic, numbered(0, 50), partition)

    def tasks(**options: Any) -> int:
        found = frame(spark, world, subscribe=topic, **options)
        assert found.count() == 100
        return found.rdd.getNumPartitions()

    assert tasks() == 2
    assert tasks(minPartitions=6) == 6
    assert tasks(maxRecordsPerPartition=20) == 6


def test_nothing_to_read_is_no_rows(spark: SparkSession, world: World) -> None:
    assert frame(spark, world, subscribe=world.topic()).collect() == []
    assert frame(spark, world, subscribePattern="^nothing-is-named-so$").count() == 0


def test_schema_of_the_user_chooses_columns(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    chosen = frame(spark, world, "offset bigint, VALUE binary", subscribe=topic)
    assert chosen.columns == ["offset", "VALUE"]
    assert [tuple(row) for row in chosen.collect()] == list(enumerate(numbered(0, 3)))
    typed = "Headers array<struct<key:string,value:binary>>, topic string"
    named = frame(spark, world, typed, subscribe=topic, includeHeaders="true")
    assert {tuple(row) for row in named.collect()} == {(None, topic)}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("value string", "column 'value' is binary, not string; convert it in the query"),
        ("price int", "unknown column 'price'"),
        ("value binary not null", "column 'value' is nullable; leave out NOT NULL"),
        (
            "headers array<struct<key:string,value:binary>>",
            "column 'headers' needs the option includeHeaders",
        ),
        (
            "headers array<struct<key:string not null,value:binary>>",
            "the elements of column 'headers' are nullable; leave out NOT NULL",
        ),
    ],
)
def test_schema_that_cannot_be_is_refused(
    spark: SparkSession, servers: str, schema: str, said: str
) -> None:
    del spark  # which parses the text
    options = {"kafka.bootstrap.servers": servers, "subscribe": "any"}
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    with pytest.raises(SchemaInvalid) as refused:
        BatchReader(options, parsed)
    assert str(refused.value).startswith(said)


def test_refused_schema_is_told_by_the_action(spark: SparkSession, servers: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "any"}
    reader = spark.read.format("millstream").schema("value string").options(**options)
    with pytest.raises(PySparkException, match="SchemaInvalid: column 'value' is binary, not"):
        reader.load().collect()


def test_view_in_sql_takes_options(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW millstream_view USING millstream OPTIONS "
        f"('kafka.bootstrap.servers' '{world.servers}', subscribe '{topic}')"
    )
    found = spark.sql("SELECT CAST(value AS string) AS text FROM millstream_view ORDER BY offset")
    assert [row.text for row in found.collect()] == ["0", "1", "2"]
