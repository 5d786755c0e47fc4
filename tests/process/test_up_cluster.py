"""`millstream up --brokers 3`: a keeper and three brokers, real clients, kills and restarts."""

import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from up_kit import MILLSTREAM, cluster_up


def test_cluster_goes_on_without_a_broker_and_has_everything_after_a_restart(
    tmp_path: Path,
) -> None:
    """A leader and the controller are killed (-9); all of it is stopped and started again."""
    data = tmp_path / "data"
    with cluster_up(data, "--brokers", "3", "--port", "0") as (process, cluster):
        assert len(cluster.places.split(",")) == 3
        cluster.create("events")
        cluster.in_sync("events", 3)
        acknowledged = cluster.produce("events", range(300))
        victim = cluster.admin.list_topics(timeout=5).controller_id
        cluster.kill(victim)
        acknowledged |= cluster.produce("events", range(300, 600))
        cluster.wait(
            lambda parts: all(one.leader not in (-1, victim) for one in parts.values()),
            "events",
            "others lead",
        )
        assert len(acknowledged) == 600
        assert set(cluster.consume("events", 600)) == acknowledged
        places = cluster.places
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    for number in (1, 2, 3):
        assert not (data / f"broker-{number}" / "millstream.pid").exists() or number == victim
    with cluster_up(data) as (_, again):
        assert again.places == places
        again.in_sync("events", 3)
        values = again.consume("events", 600)
        assert set(values) == acknowledged
        assert len(values) == 600, "nothing is doubled"
        assert len(again.produce("events", range(600, 700))) == 100


def test_killed_broker_that_is_started_again_is_in_sync_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cluster_up(data, "--brokers", "3", "--port", "0") as (_, cluster):
        cluster.create("events")
        cluster.produce("events", range(90))
        cluster.kill(2)
        acknowledged = cluster.produce("events", range(90, 180))
        with cluster.by_hand(2):
            cluster.in_sync("events", 3)
            assert len(acknowledged) == 90
            assert len(cluster.consume("events", 180)) == 180


def test_data_directory_stays_what_it_is(tmp_path: Path) -> None:
    """One broker's own does not become a cluster's, and a cluster is not cut down."""

    def refusal(*options: str) -> str:
        done = subprocess.run(
            [*MILLSTREAM, "up", "--port", "0", *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    alone, several = tmp_path / "alone", tmp_path / "several"
    with cluster_up(alone, "--port", "0"):
        pass
    assert "belongs to one broker" in refusal("--data-dir", str(alone), "--brokers", "3")
    with cluster_up(several, "--port", "0", "--brokers", "2"):
        pass
    assert "belongs to 2 brokers" in refusal("--data-dir", str(several), "--brokers", "1")


@pytest.mark.parametrize("was_in_cluster", [True, False])
def test_broker_does_not_take_directories_of_the_other_kind(
    tmp_path: Path, was_in_cluster: bool
) -> None:
    data = tmp_path / "data"
    options = ["--brokers", "2"] if was_in_cluster else []
    with cluster_up(data, "--port", "0", *options) as (_, cluster):
        cluster.admin.create_topics([NewTopic("t", num_partitions=1, replication_factor=1)])[
            "t"
        ].result(20)
        keeper = (data / "broker-1" / "server.properties").read_text()
        other = tmp_path / "other.properties"
        lines = [one for one in keeper.splitlines() if "zookeeper" not in one]
    if not was_in_cluster:
        lines.append("zookeeper.connect=127.0.0.1:1")
    other.write_text("\n".join(lines))
    done = subprocess.run(
        [*MILLSTREAM, "broker", "--config", str(other)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "zookeeper.connect" in done.stderr
