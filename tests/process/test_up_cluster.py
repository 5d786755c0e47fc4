"""`millstream up --brokers 3`: a keeper and three brokers, real clients, kills and restarts."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from kits.process.up_kit import MILLSTREAM, cluster_up


def test_cluster_goes_on_without_a_broker_and_has_everything_after_a_restart(
    tmp_path: Path,
) -> None:
    """A leader and the controller are killed (-9); all of it is stopped and started again."""
    data = tmp_path / "data"
    with cluster_up(data, "--brokers", "3", "--port", "0") as (process, cluster):
        assert len(cluster.bootstrap_servers.split(",")) == 3
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
        places = cluster.bootstrap_servers
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    for number in (1, 2, 3):
        assert not (data / f"broker-{number}" / "millstream.pid").exists() or number == victim
    with cluster_up(data) as (_, again):
        assert again.bootstrap_servers == places
        again.in_sync("events", 3)
        values = again.consume("events", 600)
        assert set(values) == acknowledged
        assert len(values) == 600, "nothing is doubled"
        assert len(again.produce("events", range(600, 700))) == 100
    lines = (tmp_path / "stderr").read_text().splitlines()
    told = [json.loads(one) for one in lines if "topic created" in one and "events" in one]
    assert sorted(one["node"] for one in told) == [1, 2, 3], "it is no change at a start"


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


def test_a_cluster_is_not_cut_down(tmp_path: Path) -> None:
    data = tmp_path / "several"
    with cluster_up(data, "--port", "0", "--brokers", "2"):
        pass
    done = subprocess.run(
        [*MILLSTREAM, "up", "--port", "0", "--data-dir", str(data), "--brokers", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "has the data of 2 brokers" in done.stderr


def test_broker_alone_does_not_take_directories_of_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cluster_up(data, "--port", "0") as (_, cluster):
        cluster.admin.create_topics([NewTopic("t", num_partitions=1, replication_factor=1)])[
            "t"
        ].result(20)
        keeper = (data / "broker-1" / "server.properties").read_text()
    other = tmp_path / "other.properties"
    other.write_text("\n".join(one for one in keeper.splitlines() if "zookeeper" not in one))
    done = subprocess.run(
        [*MILLSTREAM, "broker", "--config", str(other)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "zookeeper.connect" in done.stderr


def test_a_keeper_from_an_older_backup_is_refused_and_the_logs_stay(tmp_path: Path) -> None:
    """Its brokers would take topics that were made since for strays, and delete them."""
    data = tmp_path / "data"
    with cluster_up(data, "--port", "0") as (_, cluster):
        cluster.admin.create_topics([NewTopic("old", 1, 1)])["old"].result(20)
    shutil.copytree(data / "keeper", tmp_path / "backup")
    with cluster_up(data) as (_, cluster):
        cluster.admin.create_topics([NewTopic("new", 1, 1)])["new"].result(20)
        cluster.kill(1)  # without the proof of a clean stop
    shutil.rmtree(data / "keeper")
    shutil.copytree(tmp_path / "backup", data / "keeper")
    for _ in range(2):
        done = subprocess.run(
            [*MILLSTREAM, "up", "--data-dir", str(data)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "the coordination service has lost data" in done.stderr
        assert (data / "broker-1" / "data" / "new-0").is_dir()
    for name in ("cluster.epoch", ".kafka_cleanshutdown"):
        (data / "broker-1" / "data" / name).unlink(missing_ok=True)
    with cluster_up(data) as (_, cluster):
        assert set(cluster.admin.list_topics(timeout=5).topics) == {"old"}


def test_every_broker_of_a_cluster_that_grew_gives_topics_as_many_replicas(
    tmp_path: Path,
) -> None:
    """The controller's settings count, and each of them can be the controller."""
    data = tmp_path / "data"
    with cluster_up(data, "--port", "0"):
        pass
    with cluster_up(data, "--port", "0", "--brokers", "3") as (_, cluster):
        kinds = [ConfigResource(ResourceType.BROKER, str(number)) for number in (1, 2, 3)]
        told = [cluster.admin.describe_configs([one])[one].result(20) for one in kinds]
        for name, value in (("default.replication.factor", "3"), ("min.insync.replicas", "2")):
            assert [one[name].value for one in told] == [value] * 3
        cluster.admin.create_topics([NewTopic("events", num_partitions=1)])["events"].result(20)
        cluster.in_sync("events", 3)
    errors = (tmp_path / "stderr").read_text()
    assert "broker 1: default.replication.factor is now 3, for 3 brokers" in errors
    assert "disagree" not in errors


def test_brokers_that_disagree_about_new_topics_are_warned_about(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cluster_up(data, "--port", "0"):
        pass
    settings = data / "broker-1" / "server.properties"
    name = "default.replication.factor"
    settings.write_text(settings.read_text().replace(f"{name}=1", f"{name}=2"))
    with cluster_up(data, "--port", "0", "--brokers", "3"):
        assert f"{name}=2" in settings.read_text()
    errors = (tmp_path / "stderr").read_text()
    assert f"brokers disagree on {name}: 2 on broker 1, 3 on brokers 2,3" in errors
    assert errors.count("disagree") == 1
