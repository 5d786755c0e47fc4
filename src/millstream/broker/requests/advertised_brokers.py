"""Brokers as the client of one request gets them: at addresses of the listener it connected to.

An error that says that another broker leads a partition comes with a hint of its leader (KIP-951),
so that a client continues at once instead of fetching metadata first.
"""

from typing import NamedTuple

from millstream.broker.requests.context import Context
from millstream.controller.views import Node, nodes_on


def advertised_brokers(context: Context, *, with_fenced: bool = False) -> list[Node]:
    """Those on the client's listener, at addresses that it can reach."""
    services, peer = context.services, context.peer
    return nodes_on(
        services.image,
        peer.listener,
        arrived_at=peer.local_host,
        is_unnamed=peer.listener in services.unnamed_listeners,
        with_fenced=with_fenced,
    )


class LeaderHint(NamedTuple):
    """A partition's leader and its address."""

    leader_id: int
    leader_epoch: int
    host: str | None
    """None: it has no address on the client's listener."""
    port: int
    rack: str | None


def leader_hint(context: Context, topic: str, index: int) -> LeaderHint | None:
    """From the current metadata; None when that does not have the partition."""
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
