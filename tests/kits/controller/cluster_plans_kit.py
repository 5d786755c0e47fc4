"""Images, brokers and a tree of nodes in memory for tests of the controller's decisions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from millstream.controller.cluster import nodes
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.image import (
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    Endpoint,
    GrownTopic,
    ImageChange,
    MovedPartition,
    PartitionImage,
    TopicImage,
)
from millstream.coordination.port import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NodeData,
    NodeStat,
    Operation,
    Set,
)
from millstream.model.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    SessionId,
    TopicId,
    Zxid,
)

CLUSTER = "a-cluster"


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(one) for one in numbers)


def policy(*, in_sync_min: int = 2, unclean: bool = False) -> Policy:
    """Settings for every topic, unless a topic has its own."""

    def minimum(topic: TopicImage) -> int:
        return int(topic.configs.get("min.insync.replicas", in_sync_min))

    def is_unclean(topic: TopicImage) -> bool:
        return topic.configs.get("unclean.leader.election.enable", str(unclean).lower()) == "true"

    return Policy(minimum, is_unclean, 7)


def registration(
    broker_id: int, *, epoch: int, previous: int = NO_BROKER_EPOCH, rack: str | None = None
) -> Registration:
    endpoint = Endpoint("PLAINTEXT", f"host-{broker_id}", 9092)
    return Registration(
        BrokerId(broker_id), (endpoint,), rack, BrokerEpoch(epoch), BrokerEpoch(previous)
    )


def registered(*brokers: Registration) -> dict[BrokerId, Registration]:
    return {one.broker_id: one for one in brokers}


def broker(
    broker_id: int, *, epoch: int, fenced: bool = False, leaving: bool = False
) -> BrokerImage:
    registered = registration(broker_id, epoch=epoch)
    return BrokerImage(
        registered.broker_id,
        registered.endpoints,
        None,
        is_fenced=fenced,
        epoch=registered.epoch,
        is_leaving=leaving,
    )


def partition(
    *replicas: int,
    isr: Sequence[int] | None = None,
    leader: int | None = None,
    epoch: int = 5,
    version: int = 9,
    elr: Sequence[int] = (),
    last_known: int = NO_LEADER,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    index: int = 0,
) -> PartitionImage:
    members = ids(*(replicas if isr is None else isr))
    chosen = (members[0] if members else NO_LEADER) if leader is None else BrokerId(leader)
    return PartitionImage(
        index,
        ids(*replicas),
        members,
        chosen,
        LeaderEpoch(epoch),
        version,
        ids(*elr),
        BrokerId(last_known),
        ids(*adding),
        ids(*removing),
    )


def topic(
    name: str, *partitions: PartitionImage, configs: Mapping[str, str] | None = None
) -> TopicImage:
    numbered = tuple(one._replace(index=index) for index, one in enumerate(partitions))
    number = int.from_bytes(name.encode(), "big") + 1
    return TopicImage(name, TopicId(UUID(int=number % 2**128)), numbered, dict(configs or {}))


def image(brokers: Iterable[BrokerImage], *topics: TopicImage) -> ClusterImage:
    return ClusterImage(
        cluster_id=CLUSTER,
        controller_id=BrokerId(1),
        brokers={one.broker_id: one for one in brokers},
        topics={one.name: one for one in topics},
        broker_configs={},
    )


def only(cluster: ClusterImage) -> PartitionImage:
    """The only partition."""
    (one,) = cluster.topics.values()
    (found,) = one.partitions
    return found


def difference(before: ClusterImage, after: ClusterImage) -> ImageChange:
    """What an ImageChange must contain, computed the slow way."""
    old, new = before.topics_by_id, after.topics_by_id
    grown, moved = [], []
    for topic_id in old.keys() & new.keys():
        was, now = old[topic_id], new[topic_id]
        if len(now.partitions) > len(was.partitions):
            grown.append(GrownTopic(now, len(was.partitions)))
        pairs = zip(was.partitions, now.partitions, strict=False)
        moved += [MovedPartition(now, two) for one, two in pairs if one != two]
    return ImageChange(
        created=[new[one] for one in new.keys() - old.keys()],
        deleted=[old[one] for one in old.keys() - new.keys()],
        grown=grown,
        reconfigured=[
            new[one] for one in old.keys() & new.keys() if old[one].configs != new[one].configs
        ],
        brokers_reconfigured=before.broker_configs != after.broker_configs,
        moved=moved,
        brokers_changed=before.brokers != after.brokers,
    )


def as_values(change: ImageChange) -> tuple[object, ...]:
    """A change without the order of its parts, which means nothing."""
    return (
        sorted(change.created, key=lambda one: one.name),
        sorted(change.deleted, key=lambda one: one.name),
        sorted(change.grown, key=lambda one: one.topic.name),
        sorted(change.reconfigured, key=lambda one: one.name),
        change.brokers_reconfigured,
        sorted(change.moved, key=lambda one: (one.topic.name, one.partition.index)),
        change.brokers_changed,
    )


class _Node(NamedTuple):
    data: bytes
    czxid: int
    version: int


class Refused(AssertionError):
    """The coordination service would have refused the multi."""


class NodeTree:
    """Nodes by path with their versions, and multis as the coordination service does them."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0)}
        self.zxid = 0

    def copy(self) -> "NodeTree":
        other = NodeTree()
        other.nodes, other.zxid = dict(self.nodes), self.zxid
        return other

    def multi(self, operations: Sequence[Operation]) -> None:
        """All or nothing."""
        before = dict(self.nodes)
        self.zxid += 1
        try:
            for one in operations:
                self._apply(one)
        except Refused:
            self.nodes = before
            raise

    def _apply(self, one: Operation) -> None:
        node = self.nodes.get(one.path)
        if isinstance(one, Create):
            parent = one.path.rpartition("/")[0] or "/"
            if node is not None or parent not in self.nodes:
                raise Refused(f"{one}: it exists, or its parent does not")
            self.nodes[one.path] = _Node(one.data, self.zxid, 0)
            return
        if node is None:
            raise Refused(f"{one}: there is no such node")
        if one.version not in (ANY_VERSION, node.version):
            raise Refused(f"{one}: its version is {node.version}")
        if isinstance(one, Set):
            if one.data == node.data and one.version == ANY_VERSION:
                raise Refused(f"{one}: nothing would change, so it could not be proved")
            self.nodes[one.path] = node._replace(data=one.data, version=node.version + 1)
        elif isinstance(one, Delete):
            if self.children(one.path):
                raise Refused(f"{one}: it has children")
            del self.nodes[one.path]
        else:
            assert isinstance(one, Check)

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        rest = (one[len(prefix) :] for one in self.nodes if one.startswith(prefix))
        return sorted(one for one in rest if one and "/" not in one)

    def found(self) -> dict[str, NodeData]:
        """Everything, as a controller reads it."""
        return {path: NodeData(one.data, self._stat(path)) for path, one in self.nodes.items()}

    def _stat(self, path: str) -> NodeStat:
        one = self.nodes[path]
        czxid = Zxid(one.czxid)
        return NodeStat(
            czxid, czxid, 0, 0, one.version, 0, 0, SessionId(0), len(one.data), 0, czxid
        )


def apply(tree: NodeTree, plan: Plan[Any], *, groups: int | None = None) -> None:
    """Carry out the plan, or as many groups of it as the controller lived for."""
    for group in list(plan.groups)[:groups]:
        tree.multi(group)


def tree_of(cluster: ClusterImage) -> NodeTree:
    """The nodes of an image, versions included; without registrations."""
    tree = NodeTree()
    tree.multi([Create(path=one) for one in nodes.PERSISTENT])
    tree.multi([Create(path=nodes.CLUSTER_ID, data=nodes.encode_cluster_id(cluster.cluster_id))])
    for one in cluster.brokers.values():
        known = nodes.encode_known_broker(nodes.KnownBroker(one.epoch, one.rack, one.endpoints))
        tree.multi([Create(path=nodes.known_broker_path(one.broker_id), data=known)])
    for topic_image in cluster.topics.values():
        data = nodes.encode_topic(topic_image.topic_id, topic_image.partitions)
        tree.multi(
            [
                Create(
                    path=nodes.topic_configs_path(topic_image.name),
                    data=nodes.encode_configs(topic_image.configs),
                ),
                Create(path=nodes.topic_path(topic_image.name), data=data),
                Create(path=nodes.partitions_path(topic_image.name)),
            ]
        )
        for part in topic_image.partitions:
            path = nodes.state_path(topic_image.name, part.index)
            state = nodes.encode_state(part, controller_epoch=0)
            tree.multi([Create(path=nodes.partition_path(topic_image.name, part.index))])
            tree.multi([Create(path=path, data=state)])
            tree.nodes[path] = tree.nodes[path]._replace(version=part.partition_epoch)
    return tree
