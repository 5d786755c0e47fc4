"""How clients on one listener see brokers and partitions. No I/O, no wire messages."""

from collections.abc import Collection
from typing import Final, NamedTuple

from millstream.controller.image import (
    NO_LEADER,
    ClusterImage,
    PartitionImage,
)
from millstream.model.ids import BrokerId
from millstream.wire.errors import ErrorCode

OPERATIONS_NOT_REQUESTED: Final = -(2**31)
"""In place of the authorized operations where the client did not request them."""

TOPIC_OPERATIONS_ALL: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: what every client may
do while there is no authorizer."""

CLUSTER_OPERATIONS_ALL: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""Create, alter, describe, cluster action, describe and alter configs, idempotent write."""

GROUP_OPERATIONS_ALL: Final = sum(1 << code for code in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe and alter configs."""


class Node(NamedTuple):
    """A broker as clients of one listener see it."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class PartitionView(NamedTuple):
    """A partition as clients of one listener see it."""

    error: ErrorCode
    leader: BrokerId
    replicas: list[int]
    isr: list[int]
    offline: list[int]


def nodes_on(
    image: ClusterImage,
    listener: str,
    *,
    arrived_at: str,
    is_unnamed: bool = False,
    with_fenced: bool = False,
) -> list[Node]:
    """The brokers that can be reached on the listener, by id.

    A broker that listens on all addresses and advertises none is reported as `arrived_at`, the
    address that the client has just reached it by. In a cluster such a broker (`is_unnamed`)
    registers its host name for the others, which clients may not be able to resolve: while it is
    the only broker, it too is reported as `arrived_at`.
    """
    by_arrival = is_unnamed and len(image.brokers) == 1
    nodes = []
    for broker_id, broker in sorted(image.brokers.items()):
        endpoint = broker.endpoint(listener)
        if broker.is_fenced and not with_fenced:
            continue
        if endpoint is not None:
            host = arrived_at if by_arrival or not endpoint.host else endpoint.host
            nodes.append(Node(broker_id, host, endpoint.port, broker.rack, broker.is_fenced))
    return nodes


def controller_on(image: ClusterImage, nodes: Collection[Node]) -> BrokerId:
    """Where to send changes: the controller, or -1 when it cannot be reached on this listener."""
    is_there = any(node.broker_id == image.controller_id for node in nodes)
    return image.controller_id if is_there else NO_LEADER


class PartitionViews:
    """Makes the views for one request.

    `version` is Metadata's: 0 lists only reachable replicas and reports that with an error, 1 to 5
    have no error for a missing listener. DescribeTopicPartitions is like the newest.
    """

    __slots__ = ("_brokers", "_is_oldest", "_listener_error", "_reachable")

    def __init__(self, image: ClusterImage, listener: str, *, version: int) -> None:
        self._brokers = image.brokers
        self._reachable = {
            broker_id
            for broker_id, broker in image.brokers.items()
            if broker.live_endpoint(listener) is not None
        }
        self._is_oldest = version == 0
        knows = version >= 6
        self._listener_error = (
            ErrorCode.LISTENER_NOT_FOUND if knows else ErrorCode.LEADER_NOT_AVAILABLE
        )

    def of(self, partition: PartitionImage, *, is_log_offline: bool = False) -> PartitionView:
        """With `is_log_offline` the disk of the leader's log failed: there is no leader."""
        reachable = self._reachable
        leader = NO_LEADER if is_log_offline else partition.leader
        offline: list[int] = [
            one for one in partition.replicas if one not in reachable or one in partition.lost
        ]
        if is_log_offline and partition.leader not in offline:
            offline.append(partition.leader)
        replicas: list[int] = list(partition.replicas)
        isr: list[int] = list(partition.isr)
        if self._is_oldest:
            replicas = [one for one in partition.replicas if one in reachable]
            isr = [one for one in partition.isr if one in reachable]
        if leader not in reachable:
            is_known = leader in self._brokers and not self._brokers[leader].is_fenced
            error = self._listener_error if is_known else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        elif len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
        else:
            error = ErrorCode.NONE
        return PartitionView(error, leader, replicas, isr, offline)
