"""What cannot be written is told in one line: options before any row, the rest in a named time."""

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StringType, StructType

from kits.spark.sink_kit import (
    all_values,
    append,
    client_of,
    frame,
    made,
    stored_batches,
    values_of,
)
from millstream.pipelines.spark.batch_writer import BatchWriter
from millstream.pipelines.spark.task_writer import WriteFailed
from millstream.testing import BrokerThread

NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def strict() -> Iterator[str]:
    """Where a broker listens that creates no topics by itself."""
    with BrokerThread({"auto.create.topics.enable": False}) as broker:
        yield broker.bootstrap_servers


def refused(rows: DataFrame, servers: str, topic: str | None, **options: str) -> str:
    """What the user is told, without Spark's and Python's traces."""
    with pytest.raises(PySparkException) as told:
        append(rows, servers, topic, **options)
    lines = [line for line in str(told.value).splitlines() if line.startswith("millstream.")]
    assert lines, told.value
    return lines[0]


# -- before any row --------------------------------------------------------------------------------


def test_spark_tells_the_line_before_a_task_runs(spark: SparkSession, servers: str) -> None:
    topic = made(servers, "sink-refused")
    rows = frame(spark, "value int", (1,))
    with pytest.raises(AnalysisException, match="column 'value' is int; it must be string"):
        append(rows, servers, topic)
    writer = frame(spark, "value string", ("v",)).write.format("millstream").mode("overwrite")
    with pytest.raises(AnalysisException, match=r"only be appended: use mode\('append'\)"):
        writer.option("kafka.bootstrap.servers", servers).option("topic", topic).save()
    assert values_of(servers, topic, 1, 0) == []


# -- while writing ---------------------------------------------------------------------------------


def test_a_row_without_topic_is_named(spark: SparkSession, servers: str) -> None:
    made(servers, "sink-named")
    rows = frame(spark, "topic string, value string", ("sink-named", "v"), (None, "w")).coalesce(1)
    told = refused(rows, servers, None)
    assert "row 1 of task 0: has no topic; set it, or give a topic for all rows" in told


def test_a_topic_that_nobody_creates_is_told_soon(spark: SparkSession, strict: str) -> None:
    begun_s = time.monotonic()
    told = refused(frame(spark, "value string", ("v",)).coalesce(1), strict, "nowhere")
    assert "topic 'nowhere' does not exist; create it, or correct the name" in told
    assert time.monotonic() - begun_s < 20  # CREATION_S, and what Spark takes on a busy machine


def test_a_partition_that_is_not_there_is_told(spark: SparkSession, servers: str) -> None:
    topic = made(servers, "sink-no-partition", 2)
    rows = frame(spark, "value string, partition int", ("v", 0), ("w", 2)).coalesce(1)
    told = refused(rows, servers, topic)
    assert f"row 1 of task 0: topic '{topic}' has partitions 0 to 1, not 2" in told


def test_a_record_above_the_limits_is_named(spark: SparkSession, servers: str) -> None:
    """The limit of the client and that of the topic."""
    topic = made(servers, "sink-large", max_message_bytes="20000")
    rows = spark.range(30_000).selectExpr("repeat('x', IF(id = 20001, 50000, 10)) AS value")
    told = refused(rows.coalesce(1), servers, topic)
    assert "row 20001 of task 0" in told
    assert "the limit is 20000" in told
    told = refused(rows.coalesce(1), servers, topic, kafka__max__request__size="30000")
    assert "row 20001 of task 0" in told
    assert "max.request.size is 30000" in told


def test_nobody_there_is_told_in_the_named_time(spark: SparkSession) -> None:
    begun_s = time.monotonic()
    told = refused(
        frame(spark, "value string", ("v",)).coalesce(1), NOBODY, "t", kafka__max__block__ms="1000"
    )
    assert "no broker could be reached within 1 s (127.0.0.1:1" in told
    assert time.monotonic() - begun_s < 15


def test_a_broker_that_goes_away_for_good_is_told_in_the_named_time(spark: SparkSession) -> None:
    """`delivery.timeout.ms`: the topic was known, and its leader is gone."""
    with BrokerThread() as broker:
        servers = broker.bootstrap_servers
        topic = made(servers, "sink-gone")
        writer = writer_of(
            servers,
            topic,
            kafka__delivery__timeout__ms="1500",
            kafka__request__timeout__ms="1000",
            kafka__max__block__ms="500",
        )
        writer.write(iter([batch_of(range(10))]))
    begun_s = time.monotonic()
    with pytest.raises(WriteFailed, match=r"task 0: writing 10 records.* (within|after) 1\.5 s"):
        writer.write(iter([batch_of(range(10))]))
    assert time.monotonic() - begun_s < 10


# -- attempts --------------------------------------------------------------------------------------


def writer_of(servers: str, topic: str, **options: str) -> BatchWriter:
    """As a task gets it, here in the test's own process."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    named |= {"kafka.bootstrap.servers": servers, "topic": topic}
    schema = StructType().add("value", BinaryType())
    return BatchWriter(CaseInsensitiveDict(named), schema, is_overwrite=False)


def batch_of(numbers: range) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"%d" % number for number in numbers])})


def test_a_task_that_failed_is_run_again_without_loss(servers: str) -> None:
    """What the first attempt has stored stays; the second brings everything."""
    topic = made(servers, "sink-attempts")
    writer = writer_of(servers, topic)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch_of(range(1000))
        yield pa.record_batch({"value": pa.array([b"%d" % (one % 1000) for one in range(200_000)])})
        raise RuntimeError("the task is killed")

    with pytest.raises(RuntimeError, match="killed"):
        writer.write(broken())
    written = writer.write(iter([batch_of(range(1000)), batch_of(range(1000, 2000))]))
    assert written.records == {topic: 2000}
    found = all_values(servers, topic)
    assert set(found) == {b"%d" % number for number in range(2000)}
    assert found[-2000:] == [b"%d" % number for number in range(2000)]


def test_a_row_is_counted_in_the_task(servers: str) -> None:
    """Spark hands rows over in batches, which the user never sees."""
    topic = made(servers, "sink-counted")
    schema = StructType().add("topic", StringType()).add("value", StringType())
    options = CaseInsensitiveDict({"kafka.bootstrap.servers": servers})
    writer = BatchWriter(options, schema, is_overwrite=False)
    names = [topic] * 10
    first = pa.record_batch({"topic": names, "value": ["v"] * 10})
    second = pa.record_batch({"topic": [*names[:3], None, *names[4:]], "value": ["v"] * 10})
    with pytest.raises(WriteFailed, match=r"^row 13 of task 0: has no topic; set it"):
        writer.write(iter([first, second]))


def test_tasks_of_one_worker_are_one_producer() -> None:
    """Brokers remember a producer for a day: a stream must not make one for every task."""
    with BrokerThread() as broker:
        topic = made(broker.bootstrap_servers, "sink-producers")
        writer = writer_of(broker.bootstrap_servers, topic)
        for start in range(0, 50, 10):
            written = writer.write(iter([batch_of(range(start, start + 10))]))
            assert written.record_count == 10
        batches = stored_batches(broker, topic)
        assert len(batches) == 5
        assert len({one.producer_id for one in batches}) == 1
        assert batches[0].producer_id >= 0
        found = all_values(broker.bootstrap_servers, topic)
    assert found == [b"%d" % number for number in range(50)]


def test_a_topic_that_was_made_again_between_tasks_is_written_to(servers: str) -> None:
    """The worker's writer knows the old topic's id and counts on in its sequences."""
    topic = made(servers, "sink-again")
    writer = writer_of(servers, topic)
    writer.write(iter([batch_of(range(10))]))
    with client_of(servers) as client:
        assert client.delete_topics([topic]) == {topic: True}
    made(servers, topic)
    assert writer.write(iter([batch_of(range(10, 20))])).record_count == 10
    assert all_values(servers, topic) == [b"%d" % number for number in range(10, 20)]


def test_a_topic_that_was_deleted_between_tasks_is_told_soon(strict: str) -> None:
    topic = made(strict, "sink-deleted")
    limits = {"kafka__delivery__timeout__ms": "3000", "kafka__request__timeout__ms": "1000"}
    writer = writer_of(strict, topic, **limits)
    writer.write(iter([batch_of(range(10))]))
    with client_of(strict) as client:
        assert client.delete_topics([topic]) == {topic: True}
    begun_s = time.monotonic()
    with pytest.raises(WriteFailed, match=f"task 0: .*{topic}"):
        writer.write(iter([batch_of(range(10))]))
    assert time.monotonic() - begun_s < 15


def test_a_topic_that_was_deleted_between_tasks_is_created_again(servers: str) -> None:
    """By a broker that creates topics; the worker's writer still knows the old one."""
    topic = made(servers, "sink-revived")
    limits = {"kafka__delivery__timeout__ms": "3000", "kafka__request__timeout__ms": "1000"}
    writer = writer_of(servers, topic, **limits)
    writer.write(iter([batch_of(range(10))]))
    with client_of(servers) as client:
        assert client.delete_topics([topic]) == {topic: True}
    assert writer.write(iter([batch_of(range(10, 20))])).record_count == 10
    assert all_values(servers, topic) == [b"%d" % number for number in range(10, 20)]
