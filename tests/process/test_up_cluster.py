"""`millstream up --brokers 3`: a keeper and three brokers, real clients, kills and restarts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from waiting_for import until

MILLSTREAM = [sys.executable, "-m", "millstream"]
PARTITIONS = 3


class Cluster:
    """What `up` runs in one data directory."""

    def __init__(self, data: Path, places: str) -> None:
        self.data = data
        self.places = places
        self.admin = AdminClient({"bootstrap.servers": places, "socket.timeout.ms": 5000})

    def pid(self, broker_id: int) -> int:
        return int((self.data / f"broker-{broker_id}" / "millstream.pid").read_text())

    def kill(self, broker_id: int) -> None:
        os.kill(self.pid(broker_id), signal.SIGKILL)

    def create(self, topic: str, **configs: str) -> None:
        wanted = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=3, config=configs)
        self.admin.create_topics([wanted])[topic].result(20)
        self.wait(lambda parts: len(parts) == PARTITIONS, topic, "the topic is known")

    def partitions(self, topic: str) -> dict[int, Any]:
        try:
            found = self.admin.list_topics(topic, timeout=5).topics
        except KafkaException:
            return {}
        return dict(found[topic].partitions) if topic in found else {}

    def wait(self, is_so: Any, topic: str, what: str) -> None:
        until(lambda: is_so(self.partitions(topic)), what, timeout_s=40)

    def in_sync(self, topic: str, count: int) -> None:
        self.wait(
            lambda parts: bool(parts) and all(len(one.isrs) == count for one in parts.values()),
            topic,
            f"{count} replicas are in sync",
        )

    def produce(self, topic: str, values: range) -> set[bytes]:
        """The values that were acknowledged by all in-sync replicas."""
        acknowledged: set[bytes] = set()
        producer = Producer(
            {
                "bootstrap.servers": self.places,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": 60_000,
                "socket.timeout.ms": 5_000,
            }
        )

        def told(error: Any, message: Any) -> None:
            assert error is None, error
            acknowledged.add(message.value())

        for number in values:
            value = b"%d" % number
            producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=told)
            producer.poll(0)
        assert producer.flush(60) == 0
        return acknowledged

    def consume(self, topic: str, count: int) -> list[bytes]:
        consumer = Consumer(
            {"bootstrap.servers": self.places, "group.id": "none", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        values: list[bytes] = []
        deadline_s = time.monotonic() + 40
        while len(values) < count and time.monotonic() < deadline_s:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
        consumer.close()
        return values


@contextmanager
def cluster_up(data: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", Cluster]]:
    with (data.parent / "stderr").open("a") as errors:
        process = subprocess.Popen(
            [*MILLSTREAM, "up", "--data-dir", str(data), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: "), (data.parent / "stderr").read_text()[-4000:]
        yield process, Cluster(data, line.removeprefix("ready: ").strip())
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=100)


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
        settings = str(data / "broker-2" / "server.properties")
        by_hand = subprocess.Popen(
            [*MILLSTREAM, "broker", "--config", settings], stdout=subprocess.PIPE, text=True
        )
        assert by_hand.stdout is not None
        assert by_hand.stdout.readline().startswith("ready: ")
        cluster.in_sync("events", 3)
        assert len(acknowledged) == 90
        assert len(cluster.consume("events", 180)) == 180
    assert by_hand.wait(60) == 0, "up stops it with the rest"
    by_hand.stdout.close()


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
