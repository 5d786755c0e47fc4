"""Kafka's own tool moves partitions on a cluster of Kafka's and on ours.

It prints the same and leaves the same settings: throttles set, changed, verified and cancelled.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from kits.interop.client_kit import KINDS, Client, ClientKind, ConnectedClient
from kits.interop.kafka_tools import run_script
from kits.process.up_kit import cluster_up
from kits.process.waiting_for import until
from millstream.testing.peers.kafka import ApacheKafka, node_configs

pytestmark = pytest.mark.interop

TOPIC = "moved"
SIZE_BYTES = 6_000_000
SLOW, CHANGED, FAST = "1000", "1100", "500000000"
"""Bytes in a second: with the first two a move does not end within a test."""
EXECUTE = ("--execute", "--disallow-replication-factor-change")
Seen = list[tuple[str, str, dict[str, str]]]
"""After each step: what was done, what the tool printed, and the settings there are."""


class Movers:
    """Two brokers with two log directories each, and the tool."""

    def __init__(self, java: ConnectedClient, directory: Path, roots: list[Path]) -> None:
        self._java = java
        self._plan = directory / "plan.json"
        self._roots = roots
        """Of the brokers' log directories: `one` and `two` are below."""
        self._admin = AdminClient({"bootstrap.servers": java.servers})
        self.seen: Seen = []

    def fill(self) -> None:
        """On the first broker."""
        wanted = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1]])
        self._admin.create_topics([wanted])[TOPIC].result(20)
        producer = Producer({"bootstrap.servers": self._java.servers, "acks": "all"})
        for _ in range(SIZE_BYTES // 10_000):
            producer.produce(TOPIC, os.urandom(10_000), partition=0)
            producer.poll(0)
        assert producer.flush(60) == 0

    def plan(self, broker: int, log_directory: str = "any") -> None:
        if log_directory != "any":
            log_directory = str(self._roots[broker - 1] / log_directory)
        one = {"topic": TOPIC, "partition": 0, "replicas": [broker], "log_dirs": [log_directory]}
        self._plan.write_text(json.dumps({"version": 1, "partitions": [one]}))

    def run(self, *options: str) -> str:
        """With the plan; what it prints, with the names of the directories as everywhere."""
        plan = [] if "--list" in options else ["--reassignment-json-file", str(self._plan)]
        arguments = [*options, *plan]
        text = run_script(self._java, "kafka-reassign-partitions", *arguments).text
        for number, root in enumerate(self._roots, 1):
            text = text.replace(json.dumps(str(root))[1:-1], f"ROOT{number}")
        return text

    def step(self, *options: str) -> str:
        """As `run`; it is noted."""
        text = self.run(*options)
        self.seen.append((" ".join(options), text, self.settings()))
        return text

    def settings(self) -> dict[str, str]:
        """All about throttles that is described of the topic and the brokers."""
        kinds = [
            (ResourceType.TOPIC, TOPIC),
            (ResourceType.BROKER, "1"),
            (ResourceType.BROKER, "2"),
        ]
        found = {}
        for kind, name in kinds:
            asked = ConfigResource(kind, name)
            entries = self._admin.describe_configs([asked])[asked].result(20)
            for key, entry in entries.items():
                if "throttled" in key or key.startswith("replica.alter"):
                    found[f"{name} {key}"] = f"{entry.value} {entry.source}"
        return found

    def wait_for_throttle(self, name: str, value: str | None) -> None:
        """Kafka's brokers learn of settings a moment later."""

        def is_so() -> bool:
            values = [text for key, text in self.settings().items() if key.endswith(name)]
            return not values if value is None else any(one.startswith(value) for one in values)

        until(is_so, f"{name} is {value}", timeout_s=60)


RATE = "leader.replication.throttled.rate"
MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def story(movers: Movers) -> Seen:
    movers.fill()
    movers.plan(2)
    movers.run(*EXECUTE, "--throttle", SLOW)
    movers.wait_for_throttle(RATE, SLOW)
    movers.step("--list")
    movers.step("--verify")
    movers.run("--execute", "--additional", "--throttle", CHANGED)
    movers.wait_for_throttle(RATE, CHANGED)
    movers.step("--execute", "--additional", "--throttle", CHANGED)
    movers.step("--verify", "--preserve-throttles")
    movers.step("--cancel", "--preserve-throttles")
    movers.run("--cancel")
    movers.wait_for_throttle(RATE, None)
    movers.step("--cancel")

    movers.plan(1, "two")
    movers.run("--execute", "--replica-alter-log-dirs-throttle", SLOW)
    movers.wait_for_throttle(MOVE_RATE, SLOW)
    movers.step("--verify")
    movers.step("--execute", "--replica-alter-log-dirs-throttle", SLOW)
    movers.step("--cancel", "--preserve-throttles")
    movers.run("--cancel")
    movers.wait_for_throttle(MOVE_RATE, None)

    movers.plan(2, "two")
    options = ("--throttle", FAST, "--replica-alter-log-dirs-throttle", FAST)
    movers.run("--execute", *options)
    movers.wait_for_throttle(MOVE_RATE, FAST)
    until(lambda: "Clearing" in movers.run("--verify"), "it has moved", timeout_s=60)
    movers.wait_for_throttle(MOVE_RATE, None)
    movers.wait_for_throttle(RATE, None)
    movers.step("--verify")
    return movers.seen


@contextmanager
def kafka_roots(jars: Path, directory: Path) -> Iterator[tuple[str, list[Path]]]:
    roots = [directory / f"node-{number}" for number in (1, 2)]
    with ExitStack() as stack:
        nodes = []
        for root, config in zip(roots, node_configs(2), strict=True):
            settings = {"log.dirs": f"{root / 'one'},{root / 'two'}"}
            node = ApacheKafka(root, jars=jars, settings=settings, node=config)
            node.spawn()
            stack.callback(node.kill)
            nodes.append(node)
        for node in nodes:
            node.wait_ready()
        yield ",".join(node.bootstrap_servers for node in nodes), roots


@contextmanager
def our_roots(directory: Path) -> Iterator[tuple[str, list[Path]]]:
    roots = [directory / f"broker-{number}" for number in (1, 2)]
    for number, root in enumerate(roots, 1):
        root.mkdir(parents=True)
        (root / "server.properties").write_text(
            f"listeners=PLAINTEXT://127.0.0.1:0\nbroker.id={number}\n"
            f"log.dirs={root / 'one'},{root / 'two'}\npid.file={root / 'millstream.pid'}\n"
        )
    with cluster_up(directory) as (_, cluster):
        yield cluster.bootstrap_servers, roots


def test_the_tool_prints_and_leaves_the_same(
    jars: Path, programs: Callable[[ClientKind], Client], tmp_path: Path
) -> None:
    (java,) = (kind for kind in KINDS if kind.name == "java")

    def told(servers: str, roots: list[Path]) -> Seen:
        client = ConnectedClient(programs(java), java, servers)
        return story(Movers(client, tmp_path, roots))

    with our_roots(tmp_path / "ours") as (servers, roots):
        ours = told(servers, roots)
    with kafka_roots(jars, tmp_path / "theirs") as (servers, roots):
        theirs = told(servers, roots)
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
    assert "still in progress" in ours[1][1]
    assert ours[-1][2].keys() == {
        f"{TOPIC} {side}.replication.throttled.replicas" for side in ("leader", "follower")
    }
