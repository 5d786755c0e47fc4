"""A streaming query writes its micro-batches to topics; restarts and failures lose nothing."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sink_kit import all_values, append, frame, made, parquet_file, values_of

from broker_process import BrokerProcess, broker_process
from millstream.testing import BrokerThread
from waiting_for import until

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


@contextmanager
def killable(directory: Path) -> Iterator[tuple[str, list[BrokerProcess], ExitStack]]:
    """A broker's process and where its followers on the same port and directory go."""
    with ExitStack() as stack:
        first = stack.enter_context(broker_process(directory))
        yield first.place, [first], stack


def test_a_broker_that_is_killed_in_mid_write_costs_no_row_and_doubles_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """SIGKILL while tasks write; one attempt is idempotent over it."""
    count = 300_000
    with killable(tmp_path / "broker") as (servers, running, stack):
        topic = made(servers, "sink-killed")
        rows = spark.range(count).selectExpr("CAST(id AS STRING) AS value", "repeat('x', 200) AS h")
        rows = rows.selectExpr("concat(value, '-', h) AS value")
        failures: list[BaseException] = []

        def write() -> None:
            try:
                # Makes the session that of this thread: Spark finds no Python source without.
                frame(spark, "value string", ("",))
                append(rows, servers, topic, kafka__buffer__memory="4000000")
            except BaseException as error:  # noqa: BLE001 - told by the test
                failures.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        until(
            lambda: failures or size_of(tmp_path, topic) > 5_000_000,
            "a part is written",
            timeout_s=60,
        )
        assert not failures
        running[-1].kill()
        assert writing.is_alive()
        port = int(servers.rpartition(":")[2])
        stack.enter_context(broker_process(tmp_path / "broker", port=port))
        writing.join(MINUTE_S)
        assert not failures
        assert not writing.is_alive()
        found = [(value or b"").partition(b"-")[0] for value in all_values(servers, topic)]
    assert sorted(found) == numbers(count)


def size_of(directory: Path, topic: str) -> int:
    logs = (directory / "broker" / "data" / f"{topic}-0").glob("*.log")
    return sum(path.stat().st_size for path in logs)
