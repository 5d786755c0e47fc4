"""A cluster's state as its brokers report it: leaders, in-sync replicas, controller.

Each broker is queried separately, because during a fault they know different things: the newest
state of a partition is the one with the highest leader epoch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millstream.testing.chaos.broker.client import read_answer, send_request
from millstream.testing.chaos.cluster.processes import BROKER_PORT, BrokerProcess
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import Node
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

NO_BROKER: Final = -1
REQUEST_TIMEOUT_S: Final = 3.0
"""A broker that does not answer Metadata for this long is treated as unreachable."""
METADATA_VERSION: Final = 9


class PartitionView(NamedTuple):
    """A partition's state as one broker reports it."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True)
class ClusterView:
    """What one broker reports, or the newest of what several report."""

    controller: int = NO_BROKER
    partitions: Mapping[int, PartitionView] = field(default_factory=dict)
    brokers: frozenset[int] = frozenset()

    def led_by(self, broker_id: int) -> list[int]:
        """The partitions that it leads."""
        return [one for one, view in self.partitions.items() if view.leader == broker_id]

    def led_by_others(self, partitions: Iterable[int], broker_id: int) -> bool:
        """Whether all of the partitions have a leader, and it is another broker."""
        leaders = [self.partitions[one].leader for one in partitions if one in self.partitions]
        return all(leader not in (NO_BROKER, broker_id) for leader in leaders)

    def differs_from(self, other: "ClusterView") -> bool:
        """Whether a leader or the controller changed; a missing one is no change."""
        pairs = [(self.controller, other.controller)]
        for partition, view in self.partitions.items():
            was = other.partitions.get(partition)
            if was is not None:
                pairs.append((view.leader, was.leader))
        return any(one != was and NO_BROKER not in (one, was) for one, was in pairs)

    def is_healthy(self, *, partitions: int, brokers: Iterable[int]) -> bool:
        """Whether all brokers and a controller are there, and everything is led and in sync."""
        return (
            self.controller != NO_BROKER
            and self.brokers >= set(brokers)
            and len(self.partitions) == partitions
            and all(
                view.leader != NO_BROKER and set(view.isr) == set(view.replicas)
                for view in self.partitions.values()
            )
        )


def send_from_node(observer: Node, host: str, request: Any, version: int, timeout_s: float) -> Any:
    """Send one request from a node to a broker and return the response; raises OSError."""
    with observer.connect(host, BROKER_PORT, timeout_s=timeout_s) as connection:
        connection.settimeout(timeout_s)
        send_request(connection, request, version)
        return read_answer(connection, request, version)


def read_view(observer: Node, broker: BrokerProcess, topic: str) -> ClusterView | None:
    """The broker's view; None when it does not answer."""
    topic_request = MetadataRequestTopic(name=topic)
    request = MetadataRequest(topics=[topic_request], allow_auto_topic_creation=False)
    try:
        answer = send_from_node(
            observer, broker.node.address, request, METADATA_VERSION, REQUEST_TIMEOUT_S
        )
    except OSError:
        return None
    if answer.topics[0].error_code:
        code = ErrorCode(answer.topics[0].error_code)
        if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ChaosFailed(f"{broker.node} says {code.name} for topic {topic}")
    partitions = {
        one.partition_index: PartitionView(
            one.leader_id, one.leader_epoch, tuple(one.replica_nodes), tuple(one.isr_nodes)
        )
        for one in answer.topics[0].partitions
    }
    known = frozenset(one.node_id for one in answer.brokers)
    return ClusterView(answer.controller_id, partitions, known)


def newest(views: Iterable[ClusterView]) -> ClusterView:
    """One view of several: the highest epochs, and the controller that most of them name."""
    partitions: dict[int, PartitionView] = {}
    controllers: Counter[int] = Counter()
    brokers: set[int] = set()
    for view in views:
        brokers |= view.brokers
        if view.controller != NO_BROKER:
            controllers[view.controller] += 1
        for number, one in view.partitions.items():
            if number not in partitions or one.epoch > partitions[number].epoch:
                partitions[number] = one
    named = controllers.most_common(1)
    return ClusterView(named[0][0] if named else NO_BROKER, partitions, frozenset(brokers))
