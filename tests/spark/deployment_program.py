"""A user's program, in a process of its own: it writes and reads topics in batches and streams.

    python deployment_program.py MASTER SERVERS DIRECTORY PREFIX

MASTER is a cluster (`spark://...`) or a Spark Connect server (`sc://...`); the topics PREFIX-in and
PREFIX-out are there and empty. The last line that it prints is `done`.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from millstream.testing.spark.sessions import local_session

ROWS = 1000
QUERY_MAX_S = 120


def session_for(master: str, scratch: Path) -> SparkSession:
    """Of a Connect server nothing is needed but its address: no Java runs in this process."""
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    settings = json.loads((scratch / "settings.json").read_text())
    return local_session(scratch, master=master, settings=settings)


def topic_of(session: SparkSession, servers: str, topic: str) -> DataFrame:
    reader = session.read.format("millstream").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", topic).load()


def check(rows: DataFrame, where: str) -> None:
    """Every number once."""
    numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    found = numbers.selectExpr("count(*)", "count(DISTINCT number)", "sum(number)").first()
    wanted = (ROWS, ROWS, sum(range(ROWS)))
    if found is None or tuple(found) != wanted:
        sys.exit(f"{where} has {found}, not {wanted}")


def main(master: str, servers: str, directory: str, prefix: str) -> None:
    session = session_for(master, Path(directory))
    rows = session.range(ROWS).selectExpr(
        "CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    writer = rows.repartition(3).write.format("millstream").mode("append")
    writer = writer.option("kafka.bootstrap.servers", servers)
    writer.option("topic", f"{prefix}-in").save()
    check(topic_of(session, servers, f"{prefix}-in"), "the topic that was written by a batch")
    reader = session.readStream.format("millstream").option("kafka.bootstrap.servers", servers)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "600")
    stream = reader.option("subscribe", f"{prefix}-in").load().select("key", "value").writeStream
    stream = stream.format("millstream").option("kafka.bootstrap.servers", servers)
    stream = stream.option("checkpointLocation", f"{directory}/checkpoint")
    query = stream.option("topic", f"{prefix}-out").trigger(availableNow=True).start()
    if not query.awaitTermination(QUERY_MAX_S):
        sys.exit(f"the query did not end in {QUERY_MAX_S} s: {query.status}")
    check(topic_of(session, servers, f"{prefix}-out"), "the topic that was written by a stream")
    sys.stdout.write("done\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
