"""`millstream up` that cannot start: the cause and a hint are the last lines, whatever else is."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kits.process.broker_process import broker_process
from kits.process.up_kit import MILLSTREAM, cluster_up
from kits.process.waiting_for import until

UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"]
"""Root may write everywhere, unless it gives that up."""


def failed_up(
    data: Path, *options: str, before: list[str] | None = None, **environment: str
) -> tuple[str, str]:
    """The last two lines."""
    done = subprocess.run(
        [*(before or []), *MILLSTREAM, "up", "--data-dir", str(data), "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert (done.returncode, done.stdout) == (1, "")
    reason, hint = done.stderr.splitlines()[-2:]
    assert hint.startswith("millstream: hint: ")
    return reason.removeprefix("millstream: "), hint


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def test_a_port_that_one_of_three_brokers_cannot_have(tmp_path: Path) -> None:
    with taken_port() as port:
        reason, hint = failed_up(tmp_path, "--brokers", "3", "--port", str(port - 1))
    assert reason.startswith("broker 2 did not start: ")
    assert f"127.0.0.1:{port}: Address already in use" in reason
    assert "--port" in hint
    assert not list(tmp_path.glob("broker-*/server.properties")), "the next try is free to differ"


def test_a_metrics_port_that_was_asked_for_and_is_taken(tmp_path: Path) -> None:
    with taken_port() as port:
        reason, hint = failed_up(tmp_path, MILLSTREAM_METRICS_PORT=str(port))
    assert reason.startswith(f"broker 1 did not start: metrics.port {port} on 127.0.0.1: ")
    assert "metrics.port" in hint


def test_log_directories_that_another_process_has(tmp_path: Path) -> None:
    log_dirs = {"log.dirs": str(tmp_path / "data" / "broker-1" / "data")}
    with broker_process(tmp_path / "other", log_dirs):
        reason, hint = failed_up(tmp_path / "data")
    assert reason.startswith("broker 1 did not start: ")
    assert log_dirs["log.dirs"] in reason
    assert "--data-dir" in hint


def test_a_keeper_that_another_up_still_runs(tmp_path: Path) -> None:
    """Its broker is gone, and so is the pid file's word that the directory is in use."""
    data = tmp_path / "data"
    with cluster_up(data, "--port", "0") as (_, cluster):
        cluster.kill(1)
        until(lambda: "exited" in (tmp_path / "stderr").read_text(), "up has noticed")
        reason, hint = failed_up(data)
    assert reason == f"the keeper cannot start: {data / 'keeper'} is in use by another process"
    assert "--data-dir" in hint


def test_a_broker_that_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cluster_up(data, "--port", "0") as (_, cluster):
        reason, hint = failed_up(data)
        assert f"is already running (pid {cluster.pid(1)})" in reason
    assert "--data-dir" in hint


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere"
)
@pytest.mark.parametrize("place", ["", "keeper", "broker-1/data"])
def test_a_directory_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    data = tmp_path / "data"
    (data / place).mkdir(parents=True)
    (data / place).chmod(0o500)
    before = UNPRIVILEGED if os.geteuid() == 0 else []
    try:
        reason, hint = failed_up(data, before=before)
    finally:
        (data / place).chmod(0o700)
    assert str(data / place) in reason
    assert "Permission denied" in reason
    assert "permissions" in hint


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("log.retention.ms=soon", "invalid value 'soon' for log.retention.ms"),
        ("listeners=nowhere", "is not NAME://host:port"),
        ("broker.rack=\\u00", "\\u must be followed by"),
    ],
)
def test_a_bad_setting(tmp_path: Path, line: str, told: str) -> None:
    settings = tmp_path / "broker-1" / "server.properties"
    settings.parent.mkdir()
    settings.write_text(f"broker.id=1\n{line}\n")
    done = subprocess.run(
        [*MILLSTREAM, "up", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    reason, hint = done.stderr.splitlines()[-2:]
    assert (done.returncode, done.stdout) == (1, "")
    assert told in reason
    assert "docs/configuration.md" in hint
    assert settings.read_text() == f"broker.id=1\n{line}\n"
