"""Our Spark source and sink against Spark's own connector for Kafka (`make bench PART=spark`).

Both connectors talk to the same broker of ours, in sessions with the same settings, one process
each; the group `kafka` puts Apache Kafka behind both. QUICK=1 runs fewer cells with fewer rows,
CELLS=read,stream picks groups, in the order given.
"""

import compileall
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import millstream
from bench import spark_read, spark_tasks, spark_write
from bench.broker_systems import PEERS, Kafka, Millstream, System
from bench.measure import Row
from bench.spark_cells import Bench
from bench.spark_drivers import Drivers, running
from bench.spark_read import Shape, Topics, reading
from millstream.testing.peers.java_programs import spark_jars
from millstream.testing.peers.runtimes import MissingRuntimeError, find_runtime

KAFKA_LABEL = ", Apache Kafka"
GROUPS = ("read", "stream", "write", "tasks", "kafka")
WARM_UP_RUNS = 5


def measure() -> list[Row]:
    chosen = os.environ.get("CELLS", ",".join(GROUPS)).split(",")
    unknown = [name for name in chosen if name not in GROUPS]
    if unknown:
        sys.exit(f"bench: no cells {unknown[0]!r}; there are {', '.join(GROUPS)}")
    try:
        find_runtime("java")
        jars = spark_jars(PEERS)
    except MissingRuntimeError as error:
        sys.exit(f"bench: {error}")
    _make_byte_code()
    Path("build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir="build"))
    try:
        with running(directory / "spark", jars) as drivers:
            return _measure(chosen, drivers, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make_byte_code() -> None:
    """As in an installation. Spark starts a new Python process for every streaming query: where the
    environment forbids to write byte code, each would begin with compiling all of ours.
    """
    compileall.compile_dir(Path(millstream.__file__).parent, quiet=1)


def _measure(chosen: list[str], drivers: Drivers, directory: Path) -> list[Row]:
    rows: list[Row] = []
    own = [name for name in chosen if name != "kafka"]
    if own:
        rows += _beside(
            Millstream(directory / "ours"),
            drivers,
            lambda bench, topics: [
                row for name in own for row in _group(name, bench, topics, directory)
            ],
        )
    if "kafka" in chosen:
        rows += _beside(
            Kafka(directory / "kafka"),
            drivers,
            lambda bench, topics: [
                *spark_read.measure_at(bench, topics, KAFKA_LABEL),
                *spark_write.measure_at(bench, topics, directory, KAFKA_LABEL),
            ],
        )
    return rows


def _beside(
    system: System, drivers: Drivers, work: Callable[[Bench, Topics], list[Row]]
) -> list[Row]:
    """Both connectors use this broker."""
    system.start()
    try:
        bench, topics = Bench(drivers, system, (system,)), Topics()
        warm_up(bench, topics)
        return work(bench, topics)
    finally:
        system.stop()


def _group(name: str, bench: Bench, topics: Topics, directory: Path) -> list[Row]:
    if name == "read":
        return spark_read.measure_batch(bench, topics)
    if name == "stream":
        return spark_read.measure_stream(bench, topics)
    if name == "write":
        return spark_write.measure(bench, topics, directory)
    return spark_tasks.measure(bench, topics)


def warm_up(bench: Bench, topics: Topics) -> None:
    """A JVM is slow until its compiler has seen the load."""
    topic = topics.at(bench.broker.address, Shape(100, "none"))
    for _ in range(WARM_UP_RUNS):
        for driver in bench.drivers:
            reading("read", bench, topic, "noop")(driver)
