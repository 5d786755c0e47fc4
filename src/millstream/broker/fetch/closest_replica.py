"""Where a consumer shall read: from a replica in its own rack, if one has what it wants (KIP-392).

As Kafka's RackAwareReplicaSelector, which `replica.selector.class` names: the leader where that is
in the rack, else the follower in sync that has the most; without one in the rack the leader.
"""

from collections.abc import Mapping
from typing import Final

from millstream.broker.fetch.request import FetchAsk
from millstream.broker.requests.services import Services
from millstream.controller.image import BrokerImage
from millstream.model.ids import BrokerId, Offset
from millstream.replication.partition import Partition

HERE: Final = -1


class ClosestReplica:
    """For one request."""

    __slots__ = ("_brokers", "_rack")

    def __init__(self, services: Services, rack: str) -> None:
        self._brokers: Mapping[BrokerId, BrokerImage] = services.image.brokers
        self._rack = rack

    def __call__(self, leader: Partition, offset: Offset) -> int:
        """The broker to read from, or HERE."""
        if leader.others is None or self._rack_of(leader.broker_id) == self._rack:
            return HERE
        near = [
            (end, -one)
            for end, one in leader.others.holders(offset)
            if self._rack_of(one) == self._rack
        ]
        return -max(near)[1] if near else HERE

    def _rack_of(self, broker_id: BrokerId) -> str | None:
        """None also of a broker that cannot serve."""
        broker = self._brokers.get(broker_id)
        return broker.rack if broker is not None and not broker.is_fenced else None


def selection(services: Services, ask: FetchAsk) -> ClosestReplica | None:
    """None where the request is read wherever it came to."""
    if not ask.rack_id or ask.is_follower:
        return None
    if not services.partitions.cluster.is_rack_aware():
        return None
    return ClosestReplica(services, ask.rack_id)
