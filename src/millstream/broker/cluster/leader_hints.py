"""Who leads a partition, told together with an error that says "not here" (KIP-951).

With it a client goes on at once instead of asking for metadata first.
"""

from typing import NamedTuple

from millstream.broker.requests.context import Context


class LeaderHint(NamedTuple):
    """A partition's leader and where it is reached."""

    leader_id: int
    leader_epoch: int
    host: str | None
    """None: it has no address on the client's listener."""
    port: int
    rack: str | None


def leader_hint(context: Context, topic: str, index: int) -> LeaderHint | None:
    """From the metadata of this moment; None when that does not have the partition."""
    image = context.services.image
    facts = image.topics.get(topic)
    if facts is None or not 0 <= index < len(facts.partitions):
        return None
    partition = facts.partitions[index]
    broker = image.brokers.get(partition.leader)
    endpoint = broker.live_endpoint(context.peer.listener) if broker is not None else None
    host, port = (endpoint.host, endpoint.port) if endpoint is not None else (None, 0)
    rack = broker.rack if broker is not None else None
    return LeaderHint(int(partition.leader), int(partition.leader_epoch), host, port, rack)
