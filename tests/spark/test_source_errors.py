"""What a user sees when something is wrong: one clear line, in a time that has a name."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from kits.spark.source_kit import World
from millstream.pipelines.errors import OptionsInvalid
from millstream.pipelines.spark.columns import source_schema
from millstream.pipelines.spark.data_source import MillstreamDataSource
from millstream.pipelines.spark.notices import MillstreamWarning


@contextmanager
def told(said: str) -> Iterator[None]:
    with pytest.raises(PySparkException) as refused:
        yield
    assert said in str(refused.value)


def test_wrong_options_are_told_where_the_frame_is_made(spark: SparkSession) -> None:
    """What is wrong in a batch and in a stream alike needs no query to be started."""
    servers = {"kafka.bootstrap.servers": "localhost:1"}
    both = spark.read.format("millstream").options(**servers, subscribe="a", assign="{}")
    with told("option 'subscribe' is 'a': only one of subscribe, subscribePattern, assign"):
        both.load()
    stream = spark.readStream.format("millstream").options(**servers, subscribe="a")
    with told("option 'minPartitions' is 'many': must be an integer"):
        stream.option("minPartitions", "many").load()


def test_options_of_the_other_kind_are_told_when_it_begins(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "a"}
    batch = spark.read.format("millstream").options(**options, startingOffsets="latest").load()
    with told("option 'startingOffsets' is 'latest': a batch query cannot use latest here"):
        batch.collect()
    stream = spark.readStream.format("millstream").options(**options, endingOffsets="latest").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="option 'endingOffsets' is 'latest'"):
        writer.start().awaitTermination(60)


def test_nothing_to_read_is_told_by_the_reader(spark: SparkSession) -> None:
    frame = spark.read.format("millstream").options(**{"kafka.bootstrap.servers": "localhost:1"})
    with told("option 'subscribe' is not set: one of subscribe, subscribePattern, assign"):
        frame.load().collect()


def test_security_that_is_not_there_is_told_before_anything_connects(spark: SparkSession) -> None:
    options = {
        "kafka.bootstrap.servers": "localhost:1",
        "subscribe": "a",
        "kafka.security.protocol": "SSL",
    }
    with told("ConfigInvalid: security.protocol=SSL is not supported yet"):
        spark.read.format("millstream").options(**options).load().collect()


def test_unknown_topic_is_told(spark: SparkSession, servers: str) -> None:
    options = World(servers, "").options(subscribe="no-such-topic")
    with told("unknown topic no-such-topic; create it first, or check the spelling"):
        spark.read.format("millstream").options(**options).load().collect()


def test_brokers_that_cannot_be_reached_are_told_within_the_named_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`kafka.default.api.timeout.ms`: a broker that does not answer, and none at all."""
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        servers = f"127.0.0.1:{unheard.getsockname()[1]}"
        options = {
            "kafka.bootstrap.servers": servers,
            "kafka.default.api.timeout.ms": "1500",
            "subscribe": "a",
        }
        with told("no broker could be reached within 1.5 s"):
            spark.read.format("millstream").options(**options).load().collect()
    options["kafka.bootstrap.servers"] = servers  # nobody listens there any more
    stream = spark.readStream.format("millstream").options(**options).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match=r"no broker could be reached within 1.5 s"):
        writer.start().awaitTermination(60)


def test_broker_that_dies_under_a_task_is_told_within_the_poll_timeout(servers: str) -> None:
    from millstream.client.errors import ClientError
    from millstream.pipelines.spark.batch_reader import BatchReader
    from millstream.testing import BrokerThread

    del servers
    with BrokerThread() as broker:
        world = World(broker.bootstrap_servers, "dies")
        topic = world.topic()
        world.write(topic, [b"one"])
        options = world.options(
            subscribe=topic,
            kafkaConsumer__pollTimeoutMs=700,
            kafka__request__timeout__ms=400,
        )
        reader = BatchReader(options, source_schema(options))
        planned = reader.partitions()
    began_s = time.monotonic()
    with pytest.raises(ClientError, match=rf"reading {topic}-0 from offset 0|no broker could be"):
        list(reader.read(planned[0]))
    assert time.monotonic() - began_s < 10


def test_reading_options_are_not_asked_of_a_sink() -> None:
    """Spark may ask a sink's source for its schema; a sink has no topics to read."""
    assert MillstreamDataSource({"topic": "t"}).schema().fieldNames()[0] == "key"
    with pytest.raises(OptionsInvalid):
        MillstreamDataSource({"subscribe": "t"}).schema()


def test_what_stops_nothing_is_a_warning(servers: str) -> None:
    """On the driver, once; `docs/spark-options.md` says where Spark shows it."""
    world = World(servers, "warned")
    given = {
        "failOnDataLos": "true",
        "kafka__session__timeout__ms": "1",
        "kafka__client__ids": "me",
        "kafka__group__id": "g",
        "maxOffsetsPerTrigger": "5",
    }
    with pytest.warns(MillstreamWarning) as warned:
        world.batch(subscribe=world.topic(), **given)
    assert [str(one.message) for one in warned] == [
        "option 'maxOffsetsPerTrigger' is ignored: it is for streaming queries",
        "option 'failondatalos' is unknown and ignored; did you mean failOnDataLoss?",
        "option 'kafka.client.ids' is ignored: the client has no setting client.ids;"
        " did you mean client.id?",
        "option 'kafka.session.timeout.ms' is ignored: the client has no setting"
        " session.timeout.ms",
    ]
