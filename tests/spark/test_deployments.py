"""Not only in one process: Spark Connect, and a standalone cluster of real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kits.spark.sink_kit import made
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.spark.cluster import StandaloneCluster

PROGRAM = Path(__file__).with_name("deployment_program.py")
PROGRAM_MAX_S = 300


def run_program(master: str, servers: str, directory: Path, prefix: str) -> None:
    """Everything that it checks was right, or this fails with what it says."""
    for topic in ("in", "out"):
        made(servers, f"{prefix}-{topic}", 3)
    command = [sys.executable, str(PROGRAM), master, servers, str(directory), prefix]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_MAX_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"


@pytest.mark.slow
def test_spark_connect(
    spark: SparkSession, connect_server: str, servers: str, tmp_path: Path
) -> None:
    """The client is another process; reading and writing happen where the server is."""
    del spark  # the server
    run_program(connect_server, servers, tmp_path, "connect")


@pytest.mark.slow
def test_a_standalone_cluster(servers: str, tmp_path: Path) -> None:
    require_runtime("java")
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        (tmp_path / "settings.json").write_text(json.dumps(cluster.session_settings))
        run_program(cluster.master, servers, tmp_path, "standalone")
