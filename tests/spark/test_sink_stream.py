"""A streaming query writes its micro-batches to topics; restarts and failures lose nothing."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kits.process.broker_process import broker_process
from kits.spark.sink_kit import made, parquet_file, values_of, write_through_a_kill
from millstream.testing import BrokerThread

MINUTE_S = 60


def started(
    spark: SparkSession, directory: Path, servers: str, topic: str, **options: str
) -> StreamingQuery:
    """Writes all files that are there, one to a micro-batch, and ends."""
    writer = (
        spark.readStream.schema("value string")
        .option("maxFilesPerTrigger", "1")
        .parquet(str(directory / "in"))
        .writeStream.format("millstream")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    return writer.trigger(availableNow=True).start()


def numbers(stop: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(stop))


def test_a_stream_goes_on_where_it_was_stopped(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    topic = made(servers, "sink-stream", 2)
    for first in (0, 200):
        parquet_file(spark, tmp_path / "in", first, first + 100)
        parquet_file(spark, tmp_path / "in", first + 100, first + 200)
        query = started(spark, tmp_path, servers, topic)
        assert query.awaitTermination(MINUTE_S)
        assert values_of(servers, topic, 2, first + 200) == numbers(first + 200)
    assert sum(int(one.sink.numOutputRows) for one in query.recentProgress) == 200


def test_wrong_options_stop_a_stream_with_a_line(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    parquet_file(spark, tmp_path / "in", 0, 10)
    for options, told in (
        ({"deliveryGuarantee": "exactly_once"}, "it needs transactions"),
        ({"kafka__acks": "many"}, "for acks"),
    ):
        with pytest.raises(Exception, match=told):
            started(spark, tmp_path, servers, "t", **options).awaitTermination(MINUTE_S)


def test_a_batch_that_failed_is_written_by_the_restart(spark: SparkSession, tmp_path: Path) -> None:
    """The broker is gone when the second micro-batch is written; rows before it stay single."""
    with BrokerThread(directory=tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        topic = made(servers, "sink-restart")
        parquet_file(spark, tmp_path / "in", 0, 100)
        assert started(spark, tmp_path, servers, topic).awaitTermination(MINUTE_S)
        parquet_file(spark, tmp_path / "in", 100, 200)
        broker.stop()
        limits = {"kafka__max__block__ms": "500", "kafka__default__api__timeout__ms": "500"}
        query = started(spark, tmp_path, servers, topic, **limits)
        with pytest.raises(StreamingQueryException, match="no broker could be reached"):
            query.awaitTermination(MINUTE_S)
        broker.start()
        assert broker.bootstrap_servers == servers
        assert started(spark, tmp_path, servers, topic).awaitTermination(MINUTE_S)
        assert values_of(servers, topic, 1, 200) == numbers(200)


def test_a_broker_that_is_killed_in_mid_write_costs_no_row_and_doubles_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """SIGKILL while tasks write; one attempt is idempotent over it."""
    with ExitStack() as stack:
        first = stack.enter_context(broker_process(tmp_path))

        def kill_and_restart() -> None:
            first.kill()
            port = int(first.bootstrap_servers.rpartition(":")[2])
            stack.enter_context(broker_process(tmp_path, port=port))

        write_through_a_kill(spark, first.bootstrap_servers, "sink-killed", kill_and_restart)
