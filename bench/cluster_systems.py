"""Clusters of ours and of Apache Kafka on loopback, each broker a process of its own.

Ours has its coordination in one process more, the keeper, which counts for CPU and memory. Kafka's
brokers are controllers as well (combined mode, a quorum of all), each with the heap of one gigabyte
that its own start script gives: with three of them no more than the machine should have free.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.broker_systems import (
    AGAINST,
    OURS,
    OURS_OF_ANOTHER_COMMIT,
    Kafka,
    Millstream,
    Server,
    Systems,
)
from bench.broker_wire import metadata, send_and_receive
from millstream.testing.peers.kafka import free_ports, node_configs
from millstream.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)

BROKERS = 3
SESSION_MS = 6_000
"""Our default; Kafka gets the same, so that both take equally long to detect a lost broker."""
DESCRIBE_QUORUM_VERSION = 1
OURS_SETTINGS = {"zookeeper.session.timeout.ms": str(SESSION_MS)}
KAFKA_SETTINGS = {"broker.session.timeout.ms": str(SESSION_MS)}


class Node(Protocol):
    """One broker of a cluster."""

    @property
    def address(self) -> str: ...

    @property
    def process_id(self) -> int: ...

    def spawn(self) -> None: ...

    def wait_ready(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class Cluster:
    """All brokers of one kind. Implements `broker_systems.System`."""

    name = ""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(node.process_id for node in self.nodes.values())

    def start(self) -> None:
        """Start all at once: Kafka's nodes serve only with a majority of their quorum."""
        for node in self.nodes.values():
            node.spawn()
        for node in self.nodes.values():
            node.wait_ready()

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()

    def controller_id(self) -> int:
        raise NotImplementedError

    def restart(self, broker_id: int) -> None:
        """Start a broker that was killed or stopped."""
        self.nodes[broker_id].spawn()
        self.nodes[broker_id].wait_ready()

    def address_without(self, broker_id: int) -> str:
        """The addresses of the other brokers."""
        left = (node.address for number, node in self.nodes.items() if number != broker_id)
        return ",".join(left)


class Keeper(Server):
    """The coordination service of ours."""

    def __init__(self, directory: Path, *, tree: Path | None = None) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.secret_file = directory / "data" / "cluster.secret"
        arguments = ["keeper", "--data-dir", str(directory / "data"), "--port", str(port)]
        super().__init__(directory, arguments, tree=tree)


class MillstreamCluster(Cluster):
    """Ours."""

    def __init__(self, directory: Path, count: int = BROKERS, *, tree: Path | None = None) -> None:
        self.name = OURS if tree is None else OURS_OF_ANOTHER_COMMIT
        self._keeper = Keeper(directory / "keeper", tree=tree)
        coordination = {
            "zookeeper.connect": self._keeper.address,
            "zookeeper.secret.file": str(self._keeper.secret_file),
        }
        shared = {**OURS_SETTINGS, **coordination}
        super().__init__(
            {
                number: Millstream(
                    directory / f"broker-{number}",
                    {**shared, "broker.id": str(number)},
                    tree=tree,
                )
                for number in range(1, count + 1)
            }
        )

    @property
    def process_ids(self) -> tuple[int, ...]:
        return (*super().process_ids, self._keeper.process_id)

    def start(self) -> None:
        self._keeper.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._keeper.stop()

    def controller_id(self) -> int:
        return metadata(self.address, []).controller_id


class KafkaCluster(Cluster):
    """The peer."""

    name = Kafka.name

    def __init__(self, directory: Path, count: int = BROKERS) -> None:
        self._kafkas = [
            Kafka(directory / f"broker-{node.node_id}", KAFKA_SETTINGS, node)
            for node in node_configs(count)
        ]
        super().__init__(dict(enumerate(self._kafkas, 1)))

    def format(self) -> None:
        """Create the data directories, which is not part of a start."""
        for node in self._kafkas:
            node.format()

    def stop(self) -> None:
        """Kill all at once: in a clean stop the last ones would wait minutes for a quorum."""
        for node in self._kafkas:
            node.kill()

    def controller_id(self) -> int:
        """Its Metadata names a random broker; the controller is the leader of the quorum."""
        topic = RequestTopicData(
            topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)]
        )
        answer = send_and_receive(
            self.address, DescribeQuorumRequest(topics=[topic]), DESCRIBE_QUORUM_VERSION
        )
        found: int = answer.topics[0].partitions[0].leader_id
        return found


class Clusters(NamedTuple):
    """Both, running."""

    ours: Cluster
    peer: Cluster

    @property
    def systems(self) -> Systems:
        return Systems(*self)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Clusters]:
    """Both started, and stopped whatever happens; their data is removed."""
    clusters = Clusters(MillstreamCluster(directory / "ours"), _make_peer(directory / "peer"))
    try:
        for cluster in clusters:
            cluster.start()
        yield clusters
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _make_peer(directory: Path) -> Cluster:
    if AGAINST is None:
        return KafkaCluster(directory)
    return MillstreamCluster(directory, tree=Path(AGAINST))
