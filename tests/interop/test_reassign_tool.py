"""Kafka's own tool moves partitions of a cluster of three, with a throttle that it takes away."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from conftest import ByName
from kits.interop.client_kit import ConnectedClient
from kits.interop.kafka_tools import run_script
from kits.process.throttled_move import RATE, SIZE_BYTES, TOPIC, fill
from kits.process.up_kit import Cluster, cluster_up
from kits.process.waiting_for import until

pytestmark = pytest.mark.interop

PLAN = {"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "replicas": [1, 3]}]}


def settings(cluster: Cluster) -> str:
    """All dynamic settings of the topic and of the brokers, as text."""
    kinds = [(ResourceType.TOPIC, TOPIC), *((ResourceType.BROKER, str(one)) for one in (1, 2, 3))]
    asked = [ConfigResource(*one) for one in kinds]
    found = [cluster.admin.describe_configs([one])[one].result(20) for one in asked]
    return " ".join(
        f"{key}={entry.value}"
        for entries in found
        for key, entry in entries.items()
        if "throttled" in key and not entry.is_default
    )


def test_reassign_tool_sets_and_removes_throttles(client_of: ByName, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    java = client_of("java")
    with cluster_up(tmp_path / "data", "--brokers", "3", "--port", "0") as (_, cluster):
        fill(cluster)
        options = ["--reassignment-json-file", str(plan)]
        java = ConnectedClient(java._client, java.kind, cluster.bootstrap_servers)
        began_s = time.monotonic()
        told = run_script(
            java, "kafka-reassign-partitions", "--execute", "--throttle", str(RATE), *options
        ).text
        assert "Successfully started" in told
        throttled = settings(cluster)
        assert f"leader.replication.throttled.rate={RATE}" in throttled
        assert "follower.replication.throttled.replicas=0:3" in throttled
        cluster.wait(lambda parts: set(parts[0].isrs) == {1, 3}, TOPIC, "it has moved")
        assert time.monotonic() - began_s > 0.6 * SIZE_BYTES / RATE
        told = run_script(java, "kafka-reassign-partitions", "--verify", *options).text
        assert "is completed" in told
        until(lambda: settings(cluster) == "", "no throttle is left")
