"""`millstream up` on the data directory of a broker alone, as earlier versions made them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kits.process.up_kit import MILLSTREAM, cluster_up
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch


@contextmanager
def alone(data: Path, log_dirs: str | None = None) -> Iterator[WireClient]:
    """A broker without a keeper in the place where `up` has its first one."""
    home = data / "broker-1"
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "server.properties"
    lines = [
        "broker.id=1",
        "listeners=PLAINTEXT://127.0.0.1:0",
        f"log.dirs={log_dirs or home / 'data'}",
        f"pid.file={home / 'millstream.pid'}",
        "default.replication.factor=1",
    ]
    settings.write_text("\n".join([*lines, ""]))
    process = subprocess.Popen(
        [*MILLSTREAM, "broker", "--config", str(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: ")
        with WireClient(line.removeprefix("ready: ").strip()) as client:
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=30)


def fill(client: WireClient, count: int) -> None:
    for number in range(count):
        answer = client.produce(
            "events", build_batch([(b"k", b"%d" % number)]), partition=number % 3
        )
        assert answer.responses[0].partition_responses[0].error_code == 0


def ends(places: str) -> list[int]:
    with WireClient(places.split(",")[0]) as client:
        found = [client.fetch("events", 0, partition=index) for index in range(3)]
    return [one.responses[0].partitions[0].high_watermark for one in found]


def test_a_broker_alone_becomes_a_cluster_of_one_and_then_of_three(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with alone(data) as client:
        client.create_topic("events", 3, retention_ms="12345678")
        fill(client, 30)
    with cluster_up(data) as (_, cluster):
        assert ends(cluster.bootstrap_servers) == [10, 10, 10]
        with WireClient(cluster.bootstrap_servers) as client:
            fill(client, 3)
    assert (data / "keeper").is_dir()
    with cluster_up(data, "--brokers", "3", "--port", "0") as (_, cluster):
        assert len(cluster.bootstrap_servers.split(",")) == 3
        until(lambda: ends(cluster.bootstrap_servers) == [11, 11, 11], "the first broker leads")


def test_a_broker_alone_becomes_a_cluster_of_three_at_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with alone(data) as client:
        client.create_topic("events", 3)
        fill(client, 3)
    with cluster_up(data, "--brokers", "3", "--port", "0") as (_, cluster):
        until(lambda: ends(cluster.bootstrap_servers) == [1, 1, 1], "the first broker leads")
        cluster.create("more")
        cluster.in_sync("more", 3)


def test_a_broker_alone_that_misses_a_directory_stays_alone_and_serves(tmp_path: Path) -> None:
    """In a cluster its partitions would be created again, empty."""
    data = tmp_path / "data"
    one, two = data / "broker-1" / "data", tmp_path / "two"
    with alone(data, f"{one},{two}") as client:
        client.create_topic("events", 3)
        fill(client, 3)
    two.rename(tmp_path / "away")
    with cluster_up(data) as (_, cluster):
        with WireClient(cluster.bootstrap_servers) as client:
            found = [client.fetch("events", 0, partition=index) for index in range(3)]
        codes = [one.responses[0].partitions[0].error_code for one in found]
        assert sorted(set(codes)) in ([0, 56], [56]), "offline, not empty"
    told = (tmp_path / "stderr").read_text()
    assert "is missing" in told
    assert "the broker stays standalone" in told
    assert not (data / "keeper").exists()
    two.mkdir(exist_ok=True)
    two.rmdir()
    (tmp_path / "away").rename(two)
    with cluster_up(data) as (_, cluster):
        assert ends(cluster.bootstrap_servers) == [1, 1, 1]
    assert (data / "keeper").is_dir()


@pytest.mark.parametrize("brokers", [["--brokers", "2"], []])
def test_logs_from_elsewhere_are_not_taken_over(tmp_path: Path, brokers: list[str]) -> None:
    data = tmp_path / "data"
    with alone(data) as client:
        client.create_topic("events", 3)
    stranger = data / "broker-1" / "data" / "strange-0"
    (data / "broker-1" / "data" / "events-0").rename(stranger)
    if brokers:
        done = subprocess.run(
            [*MILLSTREAM, "up", "--data-dir", str(data), "--port", "0", *brokers],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "cannot be used in this cluster" in done.stderr
    else:
        with cluster_up(data):
            pass
        assert "the broker stays standalone" in (tmp_path / "stderr").read_text()
    assert stranger.is_dir()
