"""Metrics and settings of the brokers that `millstream up` runs."""

import json
import socket
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from kits.process.broker_process import broker_process
from kits.process.up_kit import MILLSTREAM, cluster_up
from kits.process.wire_client import WireClient
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

BROKER = 4


def metrics_ports(directory: Path) -> dict[int, int]:
    """By broker, as the log lines have them."""
    lines = (directory / "stderr").read_text().splitlines()
    told = [json.loads(one) for one in lines if "serving metrics" in one]
    return {one["node"]: one["port"] for one in told}


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def settings_of(place: str, broker_id: int, *names: str) -> dict[str, str | None]:
    asked = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(broker_id), configuration_keys=list(names)
    )
    with WireClient(place) as client:
        (found,) = client.send(DescribeConfigsRequest(resources=[asked]), 4).results
    return {one.name: one.value for one in found.configs}


def test_every_broker_serves_metrics_also_where_the_usual_ports_are_taken(tmp_path: Path) -> None:
    with ExitStack() as stack:
        taken = set()
        for port in (9404, 9405):
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:  # another process has it, as long as it likes
                continue
            taken.add(port)
        with cluster_up(tmp_path / "data", "--brokers", "2", "--port", "0"):
            ports = metrics_ports(tmp_path)
            assert set(ports) == {1, 2}
            assert not taken & set(ports.values())
            for port in ports.values():
                assert "millstream_group_partitions " in scraped(port)


def test_a_setting_of_one_start_wins_and_is_not_kept(tmp_path: Path) -> None:
    """Over the file's and the environment's; of all brokers."""
    data = tmp_path / "data"
    options = ("--config", "log.retention.ms=12345", "--config=metrics.port=-1")
    with cluster_up(data, "--brokers", "2", "--port", "0", *options) as (_, cluster):
        for number, place in enumerate(cluster.bootstrap_servers.split(","), 1):
            found = settings_of(place, number, "log.retention.ms", "metrics.port")
            assert found == {"log.retention.ms": "12345", "metrics.port": "-1"}
        assert metrics_ports(tmp_path) == {}
    for settings in data.glob("broker-*/server.properties"):
        assert "12345" not in settings.read_text()
    with cluster_up(data) as (_, cluster):
        found = settings_of(cluster.bootstrap_servers.split(",")[0], 1, "log.retention.ms")
        assert found["log.retention.ms"] != "12345"


def test_a_bad_setting_of_one_start_is_refused_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MILLSTREAM, "up", "--data-dir", str(tmp_path), "--config", "log.retention.m=1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "did you mean log.retention.ms?" in line
    assert not list(tmp_path.iterdir())


def test_a_broker_started_by_hand_serves_no_metrics_unless_told(tmp_path: Path) -> None:
    with broker_process(tmp_path):
        pass
    assert "serving metrics" not in (tmp_path / "stderr").read_text()
