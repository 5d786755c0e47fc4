"""A cluster of real processes, as `millstream up` runs it, with confluent-kafka's clients."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kits.process.waiting_for import until

MILLSTREAM = [sys.executable, "-m", "millstream"]
PARTITIONS = 3


class Cluster:
    """The processes that `up` runs in one data directory."""

    def __init__(self, data: Path, bootstrap_servers: str) -> None:
        self.data = data
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient(
            {"bootstrap.servers": bootstrap_servers, "socket.timeout.ms": 5000}
        )

    def pid(self, broker_id: int) -> int:
        return int((self.data / f"broker-{broker_id}" / "millstream.pid").read_text())

    def kill(self, broker_id: int) -> None:
        os.kill(self.pid(broker_id), signal.SIGKILL)

    @contextmanager
    def by_hand(self, broker_id: int) -> Iterator["subprocess.Popen[str]"]:
        """Restart a broker that was killed; `up` stops it with the others."""
        settings = str(self.data / f"broker-{broker_id}" / "server.properties")
        process = subprocess.Popen(
            [*MILLSTREAM, "broker", "--config", settings],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("ready: ")
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)

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
        def is_seen() -> bool:
            parts = self.partitions(topic)
            return bool(parts) and bool(is_so(parts))

        until(is_seen, what, timeout_s=60)

    def in_sync(self, topic: str, count: int) -> None:
        self.wait(
            lambda parts: all(len(one.isrs) == count for one in parts.values()),
            topic,
            f"{count} replicas are in sync",
        )

    def produce(self, topic: str, values: range) -> set[bytes]:
        """The values that were acknowledged by all in-sync replicas."""
        acknowledged: set[bytes] = set()
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": 60_000,
                "socket.timeout.ms": 5_000,
            }
        )

        def on_delivery(error: Any, message: Any) -> None:
            assert error is None, error
            acknowledged.add(message.value())

        for number in values:
            value = b"%d" % number
            producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=on_delivery)
            producer.poll(0)
        assert producer.flush(60) == 0
        return acknowledged

    def consume(self, topic: str, count: int) -> list[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "none",
                "enable.auto.commit": False,
            }
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
