"""A streaming query writes its micro-batches to topics."""

from pathlib import Path

from pyspark.sql import SparkSession
from sink_kit import made, parquet_file, values_of


def test_a_stream_goes_on_where_it_was_stopped(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    topic = made(servers, "sink-stream", 2)
    for first in (0, 100):
        parquet_file(spark, tmp_path / "in", first, first + 100)
        query = (
            spark.readStream.schema("value string")
            .parquet(str(tmp_path / "in"))
            .writeStream.format("millstream")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        expected = sorted(b"%d" % number for number in range(first + 100))
        assert values_of(servers, topic, 2, first + 100) == expected
