"""Reads the cluster's nodes: all of them once, and the registered brokers whenever they change.

Reads go out many at a time, because ten thousand answers one after the other would take minutes;
and not all at once, because each is a request that somebody else's may have to wait behind.
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
"""Questions under way: enough to keep a service on another machine busy."""

T = TypeVar("T")


async def read_everything(session: Session) -> dict[str, NodeData]:
    """The nodes that a controller loads, by path, but for the registrations. Raises SessionLost.

    Of a partition that has its state the node above it is left out: it tells nothing.
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
    """Everything that is there of a topic which was being made or deleted."""
    parent = nodes.partitions_path(topic)
    paths = [f"{parent}/{one}" for one in await _names(session, parent)]
    await _read_into(found, session, [*paths, *(f"{path}/state" for path in paths)])


def _topic_of(state_path: str) -> str:
    return state_path.removeprefix(f"{nodes.TOPICS}/").partition("/")[0]


async def _read_into(found: dict[str, NodeData], session: Session, paths: Sequence[str]) -> None:
    """Those of the nodes that are there."""
    for at in range(0, len(paths), READS_AT_ONCE):
        part = paths[at : at + READS_AT_ONCE]
        read = await asyncio.gather(*(_read(session, path) for path in part))
        found.update(
            (path, node) for path, node in zip(part, read, strict=True) if node is not None
        )


async def _names(session: Session, parent: str) -> list[str]:
    try:
        return (await patiently(session, lambda: session.children(parent))).names
    except NoNode:
        return []


async def _read(session: Session, path: str) -> NodeData | None:
    try:
        return await patiently(session, lambda: session.get(path))
    except NoNode:
        return None


async def patiently(session: Session, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again after a lost connection; for what changes nothing. Raises SessionLost."""
    while True:
        try:
            return await ask()
        except ConnectionLost:
            await session.connected()


class BrokerWatch:
    """The registered brokers, looked at again whenever they may have changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wake = Wake()

    async def changed(self) -> None:
        """Return when a look could show something else: also after every break of the connection,
        in which watches get lost.
        """
        await self._wake.wait()

    async def look(self) -> dict[str, NodeData]:
        """The nodes of those that are there; from here on `changed` waits for the next change."""
        session = self._session
        self._wake = wake = Wake()
        found: dict[str, NodeData] = {}
        try:
            children = await patiently(
                session, lambda: session.children(nodes.BROKER_IDS, watch=wake)
            )
        except NoNode:
            return found
        # One that is gone meanwhile is left out; the watch tells of it.
        await _read_into(found, session, [f"{nodes.BROKER_IDS}/{one}" for one in children.names])
        return {path: node for path, node in found.items() if _decoded(path, node) is not None}


def registrations(found: Mapping[str, NodeData]) -> dict[BrokerId, Registration]:
    """What the nodes of a look say."""
    decoded = (_decoded(path, node) for path, node in found.items())
    return {one.broker_id: one for one in decoded if one is not None}


def _decoded(path: str, node: NodeData) -> Registration | None:
    try:
        broker_id = nodes.parse_broker_id(nodes.BROKER_IDS, name_of(path))
        epoch = BrokerEpoch(node.stat.czxid)
        return nodes.decode_registration(broker_id, node.data, epoch=epoch)
    except DamagedNode as error:
        # One bad node must not stop the cluster: nobody can use that broker, which is enough.
        log.error("broker registration is unreadable", error=str(error))
        return None
