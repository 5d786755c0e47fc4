"""Reads the cluster's nodes: all of them once, and the registered brokers whenever they change.

Reads are sent many at a time, because ten thousand answers one after the other would take minutes;
and not all at once, because requests of other brokers would have to wait behind them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from millstream.controller.cluster import nodes
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.nodes import Registration
from millstream.coordination.errors import ConnectionLost, NoNode
from millstream.coordination.paths import name_of
from millstream.coordination.port import NodeData, Session
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.observe.logs import get_logger
from millstream.runtime.scheduler import YieldCounter
from millstream.runtime.task_race import Wake

log = get_logger("millstream.controller.nodes")

_FLAT: Final = (
    nodes.KNOWN_BROKERS,
    nodes.TOPIC_CONFIGS,
    nodes.BROKER_CONFIGS,
    nodes.DELETIONS,
)
"""Their children have no children."""

READS_AT_ONCE: Final = 256
"""Requests in flight: enough to keep a service on another machine busy."""

T = TypeVar("T")


async def read_everything(session: Session) -> dict[str, NodeData]:
    """The nodes that a controller loads, by path, except the registrations. Raises SessionLost.

    The parent node of a partition's state is left out: it has no content.
    """
    found: dict[str, NodeData] = {}
    await _read_into(found, session, [nodes.CLUSTER_ID])
    for parent in _FLAT:
        await _read_into(
            found, session, [f"{parent}/{one}" for one in await _names(session, parent)]
        )
    names = await _names(session, nodes.TOPICS)
    await _read_into(found, session, [nodes.topic_path(one) for one in names])
    await _read_into(found, session, [nodes.partitions_path(one) for one in names])
    states = []
    pace = YieldCounter()
    for name in names:
        if pace.is_due():
            await asyncio.sleep(0)
        if (topic := found.get(nodes.topic_path(name))) is not None:
            count = len(nodes.decode_topic(name, topic.data).assignments)
            states += [nodes.state_path(name, index) for index in range(count)]
    await _read_into(found, session, states)
    is_whole = set(names) - {_topic_of(one) for one in states if one not in found}
    for name in names:
        if name not in is_whole or nodes.deletion_path(name) in found:
            await _read_rest(found, session, name)
    return found


async def _read_rest(found: dict[str, NodeData], session: Session, topic: str) -> None:
    """Everything that exists of a topic that was being created or deleted."""
    parent = nodes.partitions_path(topic)
    paths = [f"{parent}/{one}" for one in await _names(session, parent)]
    await _read_into(found, session, [*paths, *(f"{path}/state" for path in paths)])


def _topic_of(state_path: str) -> str:
    return state_path.removeprefix(f"{nodes.TOPICS}/").partition("/")[0]


async def _read_into(found: dict[str, NodeData], session: Session, paths: Sequence[str]) -> None:
    """Read those of the nodes that exist."""
    for at in range(0, len(paths), READS_AT_ONCE):
        part = paths[at : at + READS_AT_ONCE]
        read = await asyncio.gather(*(_read(session, path) for path in part))
        found.update(
            (path, node) for path, node in zip(part, read, strict=True) if node is not None
        )


async def _names(session: Session, parent: str) -> list[str]:
    try:
        return (await retry_on_connection_loss(session, lambda: session.children(parent))).names
    except NoNode:
        return []


async def _read(session: Session, path: str) -> NodeData | None:
    try:
        return await retry_on_connection_loss(session, lambda: session.get(path))
    except NoNode:
        return None


async def retry_on_connection_loss(session: Session, request: Callable[[], Awaitable[T]]) -> T:
    """Retry a read after a lost connection. Raises SessionLost."""
    while True:
        try:
            return await request()
        except ConnectionLost:
            await session.connected()


class BrokerWatch:
    """Reads the registered brokers again whenever they may have changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wake = Wake()

    async def changed(self) -> None:
        """Return when a new read could have another result: also after every lost connection, which
        drops watches.
        """
        await self._wake.wait()

    async def read(self) -> dict[str, NodeData]:
        """The nodes of the registered brokers; from here on `changed` waits for the next change."""
        session = self._session
        self._wake = wake = Wake()
        found: dict[str, NodeData] = {}
        try:
            children = await retry_on_connection_loss(
                session, lambda: session.children(nodes.BROKER_IDS, watch=wake)
            )
        except NoNode:
            return found
        # A node deleted meanwhile is left out; the watch fires for it.
        await _read_into(found, session, [f"{nodes.BROKER_IDS}/{one}" for one in children.names])
        return {path: node for path, node in found.items() if _decoded(path, node) is not None}


def registrations(found: Mapping[str, NodeData]) -> dict[BrokerId, Registration]:
    """The decoded registrations of the nodes that `read` returned."""
    decoded = (_decoded(path, node) for path, node in found.items())
    return {one.broker_id: one for one in decoded if one is not None}


def _decoded(path: str, node: NodeData) -> Registration | None:
    try:
        broker_id = nodes.parse_broker_id(nodes.BROKER_IDS, name_of(path))
        epoch = BrokerEpoch(node.stat.czxid)
        return nodes.decode_registration(broker_id, node.data, epoch=epoch)
    except DamagedNode as error:
        # One bad node must not stop the cluster: that broker just cannot be used.
        log.error("broker registration is unreadable", error=str(error))
        return None
