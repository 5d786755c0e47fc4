"""Loads the image from the nodes after an election, and plans the recovery.

The previous controller may have died between any two groups of a plan. What it left is finished
here: started deletions, topics with missing partitions, completed reassignments; and brokers that
joined or left while there was no controller.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.controller.cluster import nodes
from millstream.controller.cluster.brokers import BrokerChanges, plan_brokers_steps
from millstream.controller.cluster.differences import difference
from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.elections import AllRules, Electorate, elect
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.nodes import Assignment, Registration
from millstream.controller.cluster.plans import Group, Plan, Policy
from millstream.controller.cluster.targets import completed, is_reassigning
from millstream.controller.cluster.topics_plans import creation_of_state
from millstream.controller.image import (
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from millstream.coordination.port import Create, Delete, NodeData, Operation
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition
from millstream.model.invariant import invariant
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

Found = Mapping[str, NodeData]

ROOTS: Final = (
    nodes.CLUSTER_ID,
    nodes.BROKER_IDS,
    nodes.KNOWN_BROKERS,
    nodes.TOPICS,
    nodes.TOPIC_CONFIGS,
    nodes.BROKER_CONFIGS,
    nodes.DELETIONS,
)
"""What a controller reads: these nodes, and everything below them."""
PATHS_PER_TURN: Final = 5000
"""Paths per step: a few milliseconds."""


class _Unfinished(NamedTuple):
    """A topic with missing partition states."""

    topic: TopicImage
    """With the partitions before the first that is missing."""
    assignments: Sequence[Assignment]
    made: frozenset[str]
    """Names of the partitions that have a node, with or without a state."""


class Loaded(NamedTuple):
    """The result of loading."""

    image: ClusterImage
    """Its live brokers are those registered with their recorded epoch."""
    registered: dict[BrokerId, Registration]
    unfinished: list[_Unfinished]
    leftovers: list[Group]
    """Groups that must be written before anything else."""


def load(found: Found, *, controller_id: BrokerId) -> Loaded:
    """Raises DamagedNode: a controller that cannot read everything decides nothing."""
    return run_blocking(load_image_steps(found, controller_id=controller_id))


def load_image_steps(found: Found, *, controller_id: BrokerId) -> StepGenerator[Loaded]:
    """`load` in steps."""
    tree = _Tree(found)
    yield from tree.index_steps()
    registered = _registered(tree)
    deletions = set(tree.children(nodes.DELETIONS))
    leftovers = [group for name in sorted(deletions) for group in _removal(tree, name)]
    topics: dict[str, TopicImage] = {}
    unfinished: list[_Unfinished] = []
    pace = YieldCounter()
    for name in tree.children(nodes.TOPICS):
        if name in deletions:
            continue
        topic, assignments = yield from _topic_steps(tree, name, pace)
        leftovers += _missing_parents(tree, name)
        if len(topic.partitions) < len(assignments):
            made = frozenset(tree.children(nodes.partitions_path(name)))
            unfinished.append(_Unfinished(topic, assignments, made))
        if topic.partitions:
            topics[name] = topic
    leftovers += _orphans(tree, deletions)
    image = ClusterImage(
        cluster_id=nodes.decode_cluster_id(tree.data(nodes.CLUSTER_ID)),
        controller_id=controller_id,
        brokers=_brokers(tree, registered),
        topics=topics,
        broker_configs=_broker_configs(tree),
    )
    return Loaded(image, registered, unfinished, leftovers)


class _Tree:
    """The nodes that were read, with their children."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self._children: dict[str, list[str]] = {}

    def index_steps(self) -> StepGenerator[None]:
        """Build the lists of children."""
        pace = YieldCounter(PATHS_PER_TURN)
        for path in self.found:
            parent, _, name = path.rpartition("/")
            self._children.setdefault(parent, []).append(name)
            if pace.is_due():
                yield None

    def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def data(self, path: str) -> bytes:
        node = self.found.get(path)
        if node is None:
            raise DamagedNode(path, "it is missing")
        return node.data


# -- brokers -----------------------------------------------------------------------------------


def _registered(tree: _Tree) -> dict[BrokerId, Registration]:
    registered = {}
    for name in tree.children(nodes.BROKER_IDS):
        broker_id = nodes.parse_broker_id(nodes.BROKER_IDS, name)
        node = tree.found[nodes.broker_path(broker_id)]
        epoch = BrokerEpoch(node.stat.czxid)
        registered[broker_id] = nodes.decode_registration(broker_id, node.data, epoch=epoch)
    return registered


def _brokers(
    tree: _Tree, registered: Mapping[BrokerId, Registration]
) -> dict[BrokerId, BrokerImage]:
    brokers = {}
    for name in tree.children(nodes.KNOWN_BROKERS):
        broker_id = nodes.parse_broker_id(nodes.KNOWN_BROKERS, name)
        data = tree.data(nodes.known_broker_path(broker_id))
        known = nodes.decode_known_broker(broker_id, data)
        registration = registered.get(broker_id)
        if registration is not None and registration.epoch == known.epoch:
            brokers[broker_id] = BrokerImage(
                broker_id, registration.endpoints, registration.rack, epoch=registration.epoch
            )
        else:
            brokers[broker_id] = BrokerImage(
                broker_id, known.endpoints, known.rack, is_fenced=True, epoch=known.epoch
            )
    return dict(sorted(brokers.items()))


def _broker_configs(tree: _Tree) -> dict[str, dict[str, str]]:
    configs = {}
    for name in tree.children(nodes.BROKER_CONFIGS):
        path = f"{nodes.BROKER_CONFIGS}/{name}"
        configs[nodes.config_name(name)] = nodes.decode_configs(path, tree.data(path))
    return configs


# -- topics ------------------------------------------------------------------------------------


def _topic_steps(
    tree: _Tree, name: str, pace: YieldCounter
) -> StepGenerator[tuple[TopicImage, list[Assignment]]]:
    """The topic with its partitions before the first whose state is missing."""
    topic_node = nodes.decode_topic(name, tree.data(nodes.topic_path(name)))
    if topic_node.topic_id is None:
        raise DamagedNode(
            nodes.topic_path(name), "it has no topic id, as Kafka gave them from 2.8 on"
        )
    configs_path = nodes.topic_configs_path(name)
    there = tree.found.get(configs_path)
    configs = nodes.decode_configs(configs_path, there.data) if there is not None else {}
    partitions: list[PartitionImage] = []
    for index, assignment in enumerate(topic_node.assignments):
        node = tree.found.get(nodes.state_path(name, index))
        if node is None:
            break
        partitions.append(
            nodes.decode_state(
                TopicPartition(name, index), node.data, assignment, version=node.stat.version
            )
        )
        if pace.is_due():
            yield None
    _check_no_gap(tree, name, len(partitions), len(topic_node.assignments))
    topic = TopicImage(name, TopicId(topic_node.topic_id), tuple(partitions), configs)
    return topic, topic_node.assignments


def _check_no_gap(tree: _Tree, name: str, first_missing: int, count: int) -> None:
    """Partitions are created in order, so a gap means that something else deleted a node."""
    for index in range(first_missing, count):
        if nodes.state_path(name, index) in tree.found:
            raise DamagedNode(nodes.state_path(name, first_missing), "it is missing")


def _missing_parents(tree: _Tree, name: str) -> list[Group]:
    """Kafka created these nodes one by one."""
    missing: list[Operation] = []
    if nodes.topic_configs_path(name) not in tree.found:
        missing.append(Create(path=nodes.topic_configs_path(name), data=nodes.encode_configs({})))
    if nodes.partitions_path(name) not in tree.found:
        missing.append(Create(path=nodes.partitions_path(name)))
    return [missing] if missing else []


def _removal(tree: _Tree, name: str) -> list[Group]:
    """Delete what is left of a topic whose deletion has begun."""
    groups: list[Group] = []
    for index in tree.children(nodes.partitions_path(name)):
        path = f"{nodes.partitions_path(name)}/{index}"
        groups.append([*_deletes(tree, f"{path}/state"), *_deletes(tree, path)])
    last = (
        nodes.partitions_path(name),
        nodes.topic_path(name),
        nodes.topic_configs_path(name),
        nodes.deletion_path(name),
    )
    groups.append([one for path in last for one in _deletes(tree, path)])
    return groups


def _deletes(tree: _Tree, path: str) -> list[Operation]:
    node = tree.found.get(path)
    return [] if node is None else [Delete(path=path, version=node.stat.version)]


def _orphans(tree: _Tree, deletions: Collection[str]) -> list[Group]:
    """Settings of topics that do not exist: Kafka wrote them before the topic."""
    there = {*tree.children(nodes.TOPICS), *deletions}
    names = [one for one in tree.children(nodes.TOPIC_CONFIGS) if one not in there]
    return [_deletes(tree, nodes.topic_configs_path(one)) for one in names]


# -- recovery ----------------------------------------------------------------------------------


def recovery(loaded: Loaded, policy: Policy) -> Plan[BrokerChanges]:
    """The first plan of a new controller; further decisions build on its image."""
    return run_blocking(recover_steps(loaded, policy))


def recover_steps(loaded: Loaded, policy: Policy) -> StepGenerator[Plan[BrokerChanges]]:
    """`recovery` in steps."""
    before = loaded.image
    groups: list[Group] = list(loaded.leftovers)
    first = yield from plan_brokers_steps(before, loaded.registered, policy)
    groups += first.groups
    image = first.image
    put: list[TopicImage] = []
    for one in loaded.unfinished:
        topic, added = yield from _complete_topic_steps(one, image, policy)
        put.append(topic)
        groups += added
    if put:
        image = image.changed(put=put)
    last = yield from _complete_reassignments_steps(image, policy)
    groups += last.groups
    return Plan(first.result, last.image, groups, difference(before, last.image))


def _complete_topic_steps(
    one: _Unfinished, image: ClusterImage, policy: Policy
) -> StepGenerator[tuple[TopicImage, list[Group]]]:
    """The topic with all its partitions; nothing was ever written to the missing ones."""
    topic = image.topics.get(one.topic.name, one.topic)
    invariant(topic.topic_id == one.topic.topic_id, "another topic", topic=topic.name)
    electorate = Electorate.of(image.brokers)
    partitions = list(topic.partitions)
    groups: list[Group] = []
    pace = YieldCounter()
    for index in range(len(partitions), len(one.assignments)):
        new = _fresh(index, one.assignments[index], electorate)
        partitions.append(new)
        group = creation_of_state(topic, new, policy)
        groups.append(group[1:] if str(index) in one.made else group)
        if pace.is_due():
            yield None
    return topic._replace(partitions=tuple(partitions)), groups


def _fresh(index: int, assignment: Assignment, electorate: Electorate) -> PartitionImage:
    """A partition that never had a leader: any replica may become it."""
    isr = tuple(one for one in assignment.replicas if one in electorate.staying)
    return PartitionImage(
        index=index,
        replicas=assignment.replicas,
        isr=isr,
        leader=isr[0] if isr else NO_LEADER,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
        elr=() if isr else assignment.replicas,
        last_known_leader=NO_LEADER if isr else assignment.replicas[0],
        adding=assignment.adding,
        removing=assignment.removing,
    )


def _complete_reassignments_steps(image: ClusterImage, policy: Policy) -> StepGenerator[Plan[None]]:
    draft = Draft(image, policy)
    rules = AllRules(policy)
    electorate = Electorate.of(image.brokers)
    pace = YieldCounter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            if not is_reassigning(partition):
                continue
            after, isr = completed(partition, partition.isr)
            if after is not partition:
                draft.put(topic, elect(after, rules.of(topic), electorate, isr=isr).partition)
            if pace.is_due():
                yield None
    return (yield from draft.plan_steps(None))
