"""Spark sessions for tests and benchmarks: small, quiet, with all files in one directory."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # A worker that dies prints its stack.
    "spark.python.worker.faulthandler.enabled": "true",
    # No test may depend on where it runs.
    "spark.sql.session.timeZone": "UTC",
}

SHORT_LIVED_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for a minute: optimizing compilation costs more than it saves."""

# The connector and what it needs beyond what is in Spark itself.
_CONNECTOR_JARS: Final = (
    "spark-sql-kafka-0-10_",
    "spark-token-provider-kafka-0-10_",
    "kafka-clients-",
    "commons-pool2-",
)


def connector_jars(directory: Path) -> list[Path]:
    """The jars of Spark's connector for Kafka, from `java_programs.spark_jars`."""
    return sorted(
        path
        for path in directory.glob("*.jar")
        if any(path.name.startswith(name) for name in _CONNECTOR_JARS)
    )


def local_session(
    scratch: Path,
    *,
    master: str = "local[2]",
    jars: Sequence[Path] = (),
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A session in this process; a JVM has one at a time, and its JVM settings stay."""
    from pyspark.sql import SparkSession

    # Workers must run the interpreter, and the source tree, that the driver runs.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("millstream")
    own = {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.jars": ",".join(map(str, jars)),
        **_SETTINGS,
        **(settings or {}),
    }
    for name, value in own.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
