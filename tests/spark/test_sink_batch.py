"""A batch query writes rows to topics, and other clients read what was written."""

from pyspark.sql import SparkSession
from sink_kit import append, frame, made, read_all


def test_rows_are_written(spark: SparkSession, servers: str) -> None:
    topic = made(servers, "sink-plain")
    append(frame(spark, "key string, value string", ("a", "1"), ("b", None)), servers, topic)
    (found,) = read_all(servers, topic, 1, 2)
    assert {(one.key, one.value) for one in found} == {(b"a", b"1"), (b"b", None)}
