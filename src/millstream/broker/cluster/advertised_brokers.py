"""The brokers of the cluster as the client of one request is told of them."""

from millstream.broker.requests.context import Context
from millstream.controller.views import Node, nodes_on


def told_nodes(context: Context, *, with_fenced: bool = False) -> list[Node]:
    """Those on the client's listener, at addresses that it can reach."""
    services, peer = context.services, context.peer
    return nodes_on(
        services.image,
        peer.listener,
        arrived_at=peer.local_host,
        is_unnamed=peer.listener in services.unnamed_listeners,
        with_fenced=with_fenced,
    )
