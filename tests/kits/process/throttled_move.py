"""A partition that moves to another broker of a running cluster, with throttles or without."""

import os
import time

from confluent_kafka import Producer
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from kits.process.up_kit import Cluster
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)

TOPIC = "moved"
SIZE_BYTES = 6_000_000
RATE = 2_000_000
LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"
BROKER_OF_SIDE = {LEADER: 1, FOLLOWER: 3}
"""The partition is led by 1, also in sync on 2, and goes to 3."""


def alter(cluster: Cluster, kind: ResourceType, name: str, **configs: str | None) -> None:
    """Set, or with None remove, settings; points are written as underscores."""
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            text,
            incremental_operation=AlterConfigOpType.DELETE
            if text is None
            else AlterConfigOpType.SET,
        )
        for key, text in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for done in cluster.admin.incremental_alter_configs([resource]).values():
        done.result(20)


def fill(cluster: Cluster) -> None:
    """A topic on brokers 1 and 2 with incompressible bytes."""
    wanted = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2]])
    cluster.admin.create_topics([wanted])[TOPIC].result(20)
    cluster.wait(lambda parts: len(parts[0].isrs) == 2, TOPIC, "two are in sync")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for _ in range(SIZE_BYTES // 10_000):
        producer.produce(TOPIC, os.urandom(10_000), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def move(cluster: Cluster, *replicas: int) -> None:
    one = ReassignablePartition(partition_index=0, replicas=list(replicas))
    topic = ReassignableTopic(name=TOPIC, partitions=[one])
    with WireClient(cluster.bootstrap_servers.split(",")[0]) as client:
        answer = client.send(
            AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=10_000), 0
        )
    assert not answer.error_code
    assert not answer.responses[0].partitions[0].error_code


def seconds_to_move(cluster: Cluster, *replicas: int) -> float:
    """Wait until those, and only those, are in sync."""
    began_s = time.monotonic()
    move(cluster, *replicas)
    until(lambda: not is_moving(cluster), "the move is over", timeout_s=60)
    cluster.wait(lambda parts: set(parts[0].isrs) == {*replicas}, TOPIC, "it has moved")
    return time.monotonic() - began_s


def is_moving(cluster: Cluster) -> bool:
    """The controller's state: that of other brokers may be older."""
    with WireClient(cluster.bootstrap_servers.split(",")[0]) as client:
        answer = client.send(ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000), 0)
    assert not answer.error_code
    return bool(answer.topics)


def slowest_ack_s(cluster: Cluster, count: int = 10) -> float:
    """The slowest acknowledgement of single records with acks=all."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0}
    )
    slowest_s = 0.0
    for number in range(count + 1):
        began_s = time.monotonic()
        producer.produce(TOPIC, b"now", partition=0)
        assert producer.flush(30) == 0
        if number:  # the first one makes the connection
            slowest_s = max(slowest_s, time.monotonic() - began_s)
    return slowest_s
