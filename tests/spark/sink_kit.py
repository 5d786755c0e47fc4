"""What tests of the sink share: topics, frames, and how rows get back out."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from our_client import created, has_leaders
from our_writer import Seen, client_of, read_all
from waiting_for import until

__all__ = ["Seen", "append", "client_of", "frame", "made", "read_all", "values_of"]

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


def parquet_file(spark: SparkSession, directory: Path, first: int, last: int) -> None:
    """One more input file of a stream; numbers as values."""
    rows = spark.range(first, last).selectExpr("CAST(id AS STRING) AS value")
    rows.coalesce(1).write.mode("append").parquet(str(directory))
