"""Bootstraps a cluster from a standalone broker: its metadata becomes nodes for the first
controller.

Its topics keep their ids, settings and leader epochs, and producer ids continue where they were. It
can be repeated until it succeeds: nothing is in force before the first election, so what an
interrupted attempt left is removed first. A cluster that has had a controller is never bootstrapped
again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.controller.cluster import nodes
from millstream.controller.cluster.drafts import (
    GROUP_BYTES_MAX,
    GROUP_OPERATIONS_MAX,
    TOPIC_NODE_BYTES_MAX,
)
from millstream.controller.cluster.nodes import KnownBroker
from millstream.controller.cluster.registration import make_base_nodes
from millstream.controller.errors import InconsistentClusterId, InvalidPartitionCount
from millstream.controller.image import NO_LEADER, TopicImage
from millstream.coordination.errors import ConnectionLost, NoNode
from millstream.coordination.port import ANY_VERSION, Create, Operation, Session, Set
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.model.limits import PRODUCER_ID_BLOCK

STANDALONE_EPOCH: Final = BrokerEpoch(0)
"""The epoch of a standalone broker: smaller than every one that the coordination service gives. The
broker registers with it as its proof if it was shut down cleanly."""

_OPERATION_BYTES: Final = 64
"""What an operation of a multi takes beside its path and data."""
_CLEARED: Final = (
    nodes.TOPICS,
    nodes.TOPIC_CONFIGS,
    nodes.BROKER_CONFIGS,
    nodes.DELETIONS,
    nodes.KNOWN_BROKERS,
)


class ClusterExists(OperatingError):
    """The cluster has had a controller; it cannot be bootstrapped again."""


class StandaloneState(NamedTuple):
    """The metadata of a standalone broker."""

    broker_id: BrokerId
    cluster_id: str
    topics: Sequence[TopicImage]
    broker_configs: Mapping[str, Mapping[str, str]]
    next_producer_id: int


async def bootstrap_from_standalone(session: Session, state: StandaloneState) -> None:
    """Write all of it; raises ClusterExists, InconsistentClusterId, InvalidPartitionCount."""
    _check_sizes(state.topics)
    while True:
        try:
            await _bootstrap(session, state)
        except ConnectionLost:
            await session.connected()
        else:
            return


async def _bootstrap(session: Session, state: StandaloneState) -> None:
    if await session.exists(nodes.CONTROLLER_EPOCH) is not None:
        raise ClusterExists("the cluster in this coordination service has had a controller")
    await make_base_nodes(session)
    await _check_cluster_id(session, state.cluster_id)
    for root in _CLEARED:
        await _clear(session, root)
    for group in _in_groups(bootstrap_operations(state)):
        await session.multi(group)


async def _check_cluster_id(session: Session, ours: str) -> None:
    try:
        found = await session.get(nodes.CLUSTER_ID)
    except NoNode:
        await session.create(nodes.CLUSTER_ID, nodes.encode_cluster_id(ours))
        return
    theirs = nodes.decode_cluster_id(found.data)
    if theirs != ours:
        raise InconsistentClusterId(path=nodes.CLUSTER_ID, ours=ours, theirs=theirs)


async def _clear(session: Session, path: str) -> None:
    """Delete everything below the node."""
    for name in (await session.children(path)).names:
        child = f"{path}/{name}"
        await _clear(session, child)
        await session.delete(child, version=ANY_VERSION)


# -- what is written ---------------------------------------------------------------------------


def bootstrap_operations(state: StandaloneState) -> Iterator[Operation]:
    """The operations that create each node after its parent; the base nodes exist already."""
    for topic in state.topics:
        yield from _topic(topic)
    for name, configs in state.broker_configs.items():
        yield Create(path=nodes.broker_configs_path(name), data=nodes.encode_configs(configs))
    if state.next_producer_id:
        last = range(state.next_producer_id - PRODUCER_ID_BLOCK, state.next_producer_id)
        data = nodes.encode_producer_ids(state.broker_id, last)
        yield Set(path=nodes.PRODUCER_IDS, data=data, version=ANY_VERSION)
    known = nodes.encode_known_broker(KnownBroker(STANDALONE_EPOCH))
    yield Create(path=nodes.known_broker_path(state.broker_id), data=known)


def _topic(topic: TopicImage) -> Iterator[Operation]:
    """The topic has no leader yet: the broker is elected once it has registered."""
    name = topic.name
    yield Create(path=nodes.topic_configs_path(name), data=nodes.encode_configs(topic.configs))
    data = nodes.encode_topic(topic.topic_id, topic.partitions)
    yield Create(path=nodes.topic_path(name), data=data)
    yield Create(path=nodes.partitions_path(name))
    for one in topic.partitions:
        state = nodes.encode_state(one._replace(leader=NO_LEADER), controller_epoch=0)
        yield Create(path=nodes.partition_path(name, one.index))
        yield Create(path=nodes.state_path(name, one.index), data=state)


def _check_sizes(topics: Iterable[TopicImage]) -> None:
    for topic in topics:
        size = len(nodes.encode_topic(topic.topic_id, topic.partitions))
        if size > TOPIC_NODE_BYTES_MAX:
            raise InvalidPartitionCount(
                f"topic {topic.name!r} has {len(topic.partitions)} partitions: the assignment takes"
                f" {size} bytes, and a topic's node may have {TOPIC_NODE_BYTES_MAX}"
            )


def _in_groups(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """As many operations in one multi as the service accepts."""
    group: list[Operation] = []
    size = 0
    for one in operations:
        data = one.data if isinstance(one, Create | Set) else b""
        bytes_more = len(one.path) + len(data) + _OPERATION_BYTES
        if group and (len(group) == GROUP_OPERATIONS_MAX or size + bytes_more > GROUP_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(one)
        size += bytes_more
    if group:
        yield group
