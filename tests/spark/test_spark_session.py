"""Jobs as users run them: `.venv/bin/python job.py`, with another Python first in the path."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.client.admin import NewTopic, or_raise
from millstream.client.blocking import client_for
from millstream.spark import session
from millstream.testing.peers.runtimes import find_runtime, require_runtime
from millstream.testing.spark.sessions import SHORT_LIVED_JVM

QUIET = f"""
here = "127.0.0.1"
quiet = {{"spark.ui.enabled": "false", "spark.driver.host": here, "spark.driver.bindAddress": here}}
quiet["spark.driver.extraJavaOptions"] = {SHORT_LIVED_JVM!r}
servers, topic = sys.argv[1:]
"""
WITHOUT = f"""
import sys
from pyspark.sql import SparkSession
from millstream.spark import SparkNotReady, register
{QUIET}
builder = SparkSession.builder.master("local[1]")
for name, value in quiet.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
try:
    register(spark)
except SparkNotReady as error:
    print(error)
spark.read.format("millstream").option("kafka.bootstrap.servers", servers).option(
    "subscribe", topic
).load().collect()
"""
WITH = f"""
import sys
from millstream.spark import session
{QUIET}
spark = session(master="local[1]", app_name="job", conf=quiet)
rows = spark.createDataFrame([("a", "1"), ("b", "2")], "key string, value string")
options = {{"kafka.bootstrap.servers": servers}}
rows.write.format("millstream").mode("append").options(**options).option("topic", topic).save()
read = spark.read.format("millstream").options(**options).option("subscribe", topic).load()
print(sorted(bytes(row.value) for row in read.collect()))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """With a `python3` that has neither PySpark nor us, whatever is installed on the machine."""
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    other.chmod(0o755)
    require_runtime("java")
    return f"{tmp_path}:{find_runtime('java').parent}:/usr/bin:/bin"


def run_job(program: str, path: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    job = Path(path.partition(":")[0]) / "job.py"
    job.write_text(program)
    return subprocess.run(
        [sys.executable, str(job), *arguments],
        env={"PATH": path, "HOME": str(job.parent)},
        cwd=job.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_job_runs_in_an_environment_that_is_not_activated(path: str, servers: str) -> None:
    topics = [NewTopic(name="not-activated", partitions=1)]
    made = client_for({"bootstrap.servers": servers}).create_topics(topics)
    assert all(or_raise(one) for one in made.values())
    done = run_job(WITH, path, servers, "not-activated")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == "[b'1', b'2']"


def test_without_the_helper_it_fails_and_a_session_like_that_is_refused(
    path: str, servers: str
) -> None:
    """What the page of Spark says that people meet."""
    done = run_job(WITHOUT, path, servers, "any")
    assert done.returncode != 0
    assert "DATA_SOURCE_NOT_FOUND" in done.stderr
    assert "ClassNotFoundException: millstream.DefaultSource" in done.stderr
    refused = done.stdout.strip()
    assert f"workers run {path.partition(':')[0]}/python3" in refused
    assert "millstream.spark.session()" in refused


def test_session_that_is_there_is_taken(spark: SparkSession) -> None:
    assert session() is spark
