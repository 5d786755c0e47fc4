"""From which replica a consumer reads: one in its own rack, if that has the offset (KIP-392).

As Kafka's RackAwareReplicaSelector, which `replica.selector.class` names: the leader where that is
in the rack, else the follower in sync that has the most; without one in the rack the leader.
"""

from collections.abc import Mapping
from typing import Final

from millstream.broker.fetch.request import FetchParams
from millstream.broker.requests.services import Services
from millstream.controller.image import BrokerImage
from millstream.model.ids import BrokerId, Offset
from millstream.replication.partition import Partition

NO_PREFERRED_REPLICA: Final = -1


class ClosestReplica:
    """For one request."""

    __slots__ = ("_brokers", "_rack")

    def __init__(self, services: Services, rack: str) -> None:
        self._brokers: Mapping[BrokerId, BrokerImage] = services.image.brokers
        self._rack = rack

    def __call__(self, leader: Partition, offset: Offset) -> int:
        """The broker to read from instead, or NO_PREFERRED_REPLICA."""
        if leader.others is None or self._rack_of(leader.broker_id) == self._rack:
            return NO_PREFERRED_REPLICA
        near = [
            (end, -one)
            for end, one in leader.others.holders(offset)
            if self._rack_of(one) == self._rack
        ]
        return -max(near)[1] if near else NO_PREFERRED_REPLICA

    def _rack_of(self, broker_id: BrokerId) -> str | None:
        """None also of a broker that cannot serve."""
        broker = self._brokers.get(broker_id)
        return broker.rack if broker is not None and not broker.is_fenced else None


def replica_selector(services: Services, params: FetchParams) -> ClosestReplica | None:
    """None where the request is served by the broker that got it."""
    if not params.rack_id or params.is_follower:
        return None
    if not services.partitions.cluster.is_rack_aware():
        return None
    return ClosestReplica(services, params.rack_id)
