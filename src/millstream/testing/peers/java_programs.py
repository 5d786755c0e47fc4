"""Java programs of our own, compiled against a directory of jars; and Spark, to have those jars."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from millstream.testing.peers.builds import built_once, run_build
from millstream.testing.peers.kafka import TEST_JVM_OPTIONS
from millstream.testing.peers.maven import Artifact, fetch_jars
from millstream.testing.peers.runtimes import find_runtime

SPARK_VERSION: Final = "4.2.0"

# The part that fetches Kerberos tokens, which nothing here uses. Not every mirror of the jars has
# its newest versions; its own dependencies do not matter, as it comes last.
SPARK_TOKENS_VERSION: Final = "4.0.0"

# Spark's first repository, which is not reachable from everywhere.
SPARK_EXTRA_REPOSITORY: Final = "gcs-maven-central-mirror"

# Spark accesses internal packages of the JVM; its launcher sets these options too.
_OPENED_PACKAGES: Final = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)
SPARK_JVM_OPTIONS: Final = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
)


def spark_jars(cache: Path, version: str = SPARK_VERSION) -> Path:
    """Spark SQL with its connector for Kafka, fetched into `cache` when needed."""
    artifacts = [
        Artifact("org.apache.spark", "spark-sql_2.13", version),
        Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
        Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SPARK_TOKENS_VERSION),
    ]
    return fetch_jars(
        cache / f"spark-{version}", artifacts, without_repositories=[SPARK_EXTRA_REPOSITORY]
    )


def java_classes(cache: Path, name: str, sources: Sequence[Path], jars: Path) -> Path:
    """The directory with the compiled `sources`."""

    def compile_into(directory: Path) -> None:
        command = [str(find_runtime("javac")), "-nowarn", "-encoding", "UTF-8"]
        command += ["-d", str(directory), "-cp", f"{jars}{os.sep}*"]
        run_build([*command, *map(str, sources)], directory=directory)

    return built_once(cache, name, sources, compile_into, salt=jars.name)


def java_command(
    main_class: str,
    *,
    classes: Path,
    jars: Path,
    logging: Path,
    jvm_options: Sequence[str] = TEST_JVM_OPTIONS,
) -> list[str]:
    """The command that starts a compiled program."""
    return [
        str(find_runtime("java")),
        *jvm_options,
        "-Dfile.encoding=UTF-8",
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        f"{classes}{os.pathsep}{jars}{os.sep}*",
        main_class,
    ]
