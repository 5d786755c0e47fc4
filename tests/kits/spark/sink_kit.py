"""What tests of the sink share: topics, frames, and how rows get back out."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from kits.client.our_client import created, has_leaders
from kits.client.our_writer import Seen, client_of, read_all
from kits.process.waiting_for import until
from millstream.client.offsets import LATEST
from millstream.model.ids import Offset, TopicPartition
from millstream.testing import BrokerThread

__all__ = ["Seen", "client_of", "read_all"]

_LENGTH = Struct(">8xi")
_ATTRIBUTES = Struct(">21xh")
_PRODUCER_ID = Struct(">43xq")
HEADERS = "headers array<struct<key:string,value:binary>>"


def made(servers: str, topic: str, partitions: int = 1, **configs: str) -> str:
    """A topic that can be written to."""
    with client_of(servers) as client:
        created(client, topic, partitions, **configs)
        until(lambda: has_leaders(client, topic), "every partition has a leader")
    return topic


def frame(spark: SparkSession, schema: str, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)


def append(rows: DataFrame, servers: str, topic: str | None = None, **options: str) -> None:
    """Write them; options with `__` for dots."""
    writer = rows.write.format("millstream").mode("append")
    writer = writer.option("kafka.bootstrap.servers", servers)
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def values_of(servers: str, topic: str, partitions: int, count: int) -> list[bytes | None]:
    """Of all partitions, sorted."""
    found = read_all(servers, topic, partitions, count)
    return sorted((one.value for part in found for one in part), key=lambda one: one or b"")


def all_values(servers: str, topic: str) -> list[bytes | None]:
    """Of partition 0, however many there are."""
    partition = TopicPartition(topic, 0)
    with client_of(servers) as client:
        end = client.list_offsets({partition: LATEST})[partition].offset
        assert end is not None
        batches = client.read_columns(partition, Offset(0), end, columns=["value"])
        return [value for batch in batches for value in batch.column(0).to_pylist()]


class StoredBatch(NamedTuple):
    """What the header of a batch on disk says."""

    codec: int
    producer_id: int


def stored_batches(broker: BrokerThread, topic: str) -> list[StoredBatch]:
    """Of partition 0."""
    (path,) = (broker.data_directory / f"{topic}-0").glob("*.log")
    data = path.read_bytes()
    found, at = [], 0
    while at < len(data):
        (attributes,), (producer,) = (
            _ATTRIBUTES.unpack_from(data, at),
            _PRODUCER_ID.unpack_from(data, at),
        )
        found.append(StoredBatch(attributes & 7, producer))
        at += 12 + int(_LENGTH.unpack_from(data, at)[0])
    return found


def end_of(servers: str, topic: str) -> int:
    """Of partition 0."""
    partition = TopicPartition(topic, 0)
    with client_of(servers) as client:
        return client.list_offsets({partition: LATEST})[partition].offset or 0


def write_through_a_kill(
    spark: SparkSession,
    servers: str,
    topic: str,
    kill_and_restart: Callable[[], None],
) -> None:
    """The broker is killed while tasks write; nothing is missing after, and nothing there twice."""
    count = 300_000
    made(servers, topic)
    rows = spark.range(count).selectExpr("concat(id, '-', repeat('x', 200)) AS value")
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
    until(lambda: failures or end_of(servers, topic) > 20_000, "a part is written", timeout_s=60)
    kill_and_restart()
    writing.join(60)
    assert not failures
    assert not writing.is_alive()
    found = Counter(
        int((value or b"-1").partition(b"-")[0]) for value in all_values(servers, topic)
    )
    missing = sorted(set(range(count)) - set(found))
    doubled = sorted(number for number, times in found.items() if times > 1)
    # The figures alone: three hundred thousand numbers side by side tell nothing.
    told = [
        f"{name}: {len(one)}, {one[:3]}.."
        for name, one in (("missing", missing), ("twice", doubled))
    ]
    assert not missing, told
    assert not doubled, told


def parquet_file(spark: SparkSession, directory: Path, first: int, last: int) -> None:
    """One more input file of a stream; numbers as values."""
    rows = spark.range(first, last).selectExpr("CAST(id AS STRING) AS value")
    rows.coalesce(1).write.mode("append").parquet(str(directory))
