"""A cluster of three brokers, of Apache Kafka or ours, that gets the same admin requests.

Brokers 2 and 3 can go: what decides about metadata (Kafka's controller, our keeper) stays.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from kits.process.up_kit import cluster_up
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.testing.peers.kafka import ApacheKafka, NodeConfig, node_configs
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest

SETTINGS: Final = {
    "auto.create.topics.enable": "true",
    "default.replication.factor": "3",
    # Enough to see a broker go, and more than a busy machine lets one wait for a turn.
    "broker.session.timeout.ms": "6000",
}
WAIT_S: Final = 60.0


class BrokerView(NamedTuple):
    """A broker as a client sees it."""

    broker_id: int
    place: str
    rack: str | None
    is_fenced: bool


class Shape(NamedTuple):
    """A partition, as far as it does not depend on the placement's choice."""

    replicas: list[int]
    isr: list[int]
    offline: list[int]
    is_led: bool


class World:
    """All three are up at first. Requests go to broker 1 unless the call names another."""

    def __init__(
        self, servers: Sequence[str], *, kill: Callable[[int], None], stop: Callable[[int], None]
    ) -> None:
        self.servers = list(servers)
        self.kill = kill
        self.stop = stop

    def send(self, request: Any, version: int, *, broker_id: int = 1) -> Any:
        with WireClient(self.servers[broker_id - 1]) as client:
            return client.send(request, version)

    # -- topics ----------------------------------------------------------------------------

    def create(
        self, topic: str, *, partitions: int = 1, factor: int = 3, validate: bool = False
    ) -> ErrorCode:
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=factor)
        return self._created(wanted, validate=validate)

    def assign(self, topic: str, *replicas: int) -> ErrorCode:
        """With the replicas of its only partition given by hand."""
        one = CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
        wanted = CreatableTopic(
            name=topic, num_partitions=-1, replication_factor=-1, assignments=[one]
        )
        return self._created(wanted)

    def _created(self, wanted: CreatableTopic, *, validate: bool = False) -> ErrorCode:
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=20_000, validate_only=validate)
        return ErrorCode(self.send(request, 7).topics[0].error_code)

    def grow(self, topic: str, count: int) -> ErrorCode:
        wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=20_000)
        return ErrorCode(self.send(request, 3).results[0].error_code)

    def metadata(self, *topics: str, create: bool = False) -> Any:
        topic_requests = [MetadataRequestTopic(name=name) for name in topics]
        return self.send(
            MetadataRequest(topics=topic_requests, allow_auto_topic_creation=create), 12
        )

    def metadata_code(self, topic: str) -> ErrorCode:
        """The code of a Metadata request that may create the topic."""
        return ErrorCode(self.metadata(topic, create=True).topics[0].error_code)

    def shapes(self, topic: str, count: int) -> list[Shape]:
        """When all partitions are known."""

        def partitions() -> Any:
            (found,) = self.metadata(topic).topics
            return found.partitions if len(found.partitions) == count else None

        found = until(partitions, f"{topic} has {count} partitions", timeout_s=WAIT_S)
        return [
            Shape(
                sorted(one.replica_nodes),
                sorted(one.isr_nodes),
                sorted(one.offline_replicas),
                one.leader_id in one.isr_nodes,
            )
            for one in sorted(found, key=lambda one: int(one.partition_index))
        ]

    # -- brokers ---------------------------------------------------------------------------

    def brokers(self, *, with_fenced: bool = True, version: int = 2) -> list[BrokerView]:
        request = DescribeClusterRequest()
        if version >= 2:
            request = DescribeClusterRequest(include_fenced_brokers=with_fenced)
        return [
            BrokerView(one.broker_id, f"{one.host}:{one.port}", one.rack, one.is_fenced)
            for one in self.send(request, version).brokers
        ]

    def wait_for_live(self, *broker_ids: int) -> None:
        def is_so() -> bool:
            return [one.node_id for one in self.metadata().brokers] == list(broker_ids)

        until(is_so, f"brokers {broker_ids} are alive", timeout_s=WAIT_S)

    def unregister(self, broker_id: int) -> ErrorCode:
        request = UnregisterBrokerRequest(broker_id=broker_id)
        return ErrorCode(self.send(request, 0).error_code)

    # -- producers -------------------------------------------------------------------------

    def producers(self, topic: str, *indexes: int, broker_id: int) -> list[tuple[ErrorCode, int]]:
        """For each partition the code and the number of active producers."""
        request = TopicRequest(name=topic, partition_indexes=list(indexes))
        answer = self.send(DescribeProducersRequest(topics=[request]), 0, broker_id=broker_id)
        return [
            (ErrorCode(one.error_code), len(one.active_producers))
            for one in answer.topics[0].partitions
        ]


@contextmanager
def our_world(directory: Path) -> Iterator[World]:
    directory.mkdir(parents=True, exist_ok=True)
    with cluster_up(directory / "data", "--brokers", "3", "--port", "0") as (_, cluster):
        yield World(
            cluster.bootstrap_servers.split(","),
            kill=cluster.kill,
            stop=lambda broker_id: os.kill(cluster.pid(broker_id), signal.SIGTERM),
        )


@contextmanager
def kafka_cluster(directory: Path, jars: Path) -> Iterator[World]:
    nodes = [
        ApacheKafka(directory / str(one.node_id), jars=jars, node=one, settings=_settings(one))
        for one in node_configs(3)
    ]
    with ExitStack() as stack:
        for node in nodes:
            node.spawn()
            stack.callback(_end, node)
        for node in nodes:
            node.wait_ready()
        yield World(
            [one.bootstrap_servers for one in nodes],
            kill=lambda broker_id: nodes[broker_id - 1].kill(),
            stop=lambda broker_id: nodes[broker_id - 1].stop(),
        )


def _end(node: ApacheKafka) -> None:
    if node.process_id is not None:
        node.kill()


def _settings(node: NodeConfig) -> dict[str, str]:
    """Node 1 is the only controller."""
    controller = node.nodes[0].controller
    settings = {**SETTINGS, "controller.quorum.voters": f"1@127.0.0.1:{controller}"}
    if node.node_id > 1:
        settings["process.roles"] = "broker"
        settings["listeners"] = f"PLAINTEXT://127.0.0.1:{node.ports.clients}"
    return settings
