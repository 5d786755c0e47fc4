"""A plan under construction: what is to be written, and the resulting image.

Partition states are the bulk of it. Each is a group of its own, so that the shell can distribute
them over multis as it likes. Where the replicas change too, the topic's node and the states must be
written together: a state's version is the partition's epoch, and brokers apply only what is newer.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from millstream.controller.cluster import nodes
from millstream.controller.cluster.plans import Group, Plan, Policy
from millstream.controller.image import (
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    ImageChange,
    MovedPartition,
    PartitionImage,
    TopicImage,
)
from millstream.coordination.port import (
    ANY_VERSION,
    MULTI_BYTES_MAX,
    MULTI_OPERATIONS_MAX,
    Operation,
    Set,
)
from millstream.model.ids import BrokerId, LeaderEpoch
from millstream.model.invariant import invariant
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

T = TypeVar("T")

GROUP_OPERATIONS_MAX: Final = MULTI_OPERATIONS_MAX - 10
GROUP_BYTES_MAX: Final = MULTI_BYTES_MAX - 16 * 1024
"""Limits of a group, so that the fence fits into the same multi."""
TOPICS_PER_TURN: Final = 1000
"""Topics per step: a few milliseconds."""
OPERATION_BYTES: Final = 64
"""An upper bound of what an operation takes beside its path and data."""
TOPIC_NODE_BYTES_MAX: Final = GROUP_BYTES_MAX - 64 * 1024
"""Some states must fit into a group beside a topic's node."""


class Draft:
    """Collects changes to partitions that exist. Later ones build on the earlier."""

    def __init__(self, image: ClusterImage, policy: Policy) -> None:
        self.image = image
        self.groups: list[Group] = []
        self._controller_epoch = policy.controller_epoch
        self._partitions: dict[str, list[PartitionImage]] = {}
        """All partitions of the changed topics, as they will be."""
        self._moved: dict[str, set[int]] = {}
        self._reassigned: dict[str, list[PartitionImage]] = {}
        """Decided, but not in the groups yet."""
        self._configs: dict[str, Mapping[str, str]] = {}

    def partitions(self, topic: TopicImage) -> Sequence[PartitionImage]:
        """The topic's partitions as they will be."""
        return self._partitions.get(topic.name, topic.partitions)

    def put(self, topic: TopicImage, after: PartitionImage) -> PartitionImage:
        """Change one partition, given with its current epoch; returns it with the new one."""
        partitions = self._partitions.get(topic.name)
        if partitions is None:
            partitions = self._partitions[topic.name] = list(topic.partitions)
            self._moved[topic.name] = set()
        before = partitions[after.index]
        if is_replica_removed(before, after) and after.leader_epoch == before.leader_epoch:
            # As in Kafka: a fetch sent before must not be credited to the same broker when it
            # becomes a replica again, with a new log (I-13).
            after = after._replace(leader_epoch=LeaderEpoch(before.leader_epoch + 1))
        if not set(after.lost).issubset(after.replicas):
            after = after._replace(lost=tuple([o for o in after.lost if o in after.replicas]))
        if not set(after.full).issubset(after.replicas):
            after = after._replace(full=tuple([o for o in after.full if o in after.replicas]))
        check_state(topic, before, after)
        following = after._replace(partition_epoch=before.partition_epoch + 1)
        partitions[after.index] = following
        self._moved[topic.name].add(after.index)
        if before[1] == after[1] and before[8:10] == after[8:10]:
            self.groups.append([self._state_set(topic, following)])
        else:
            self._reassigned.setdefault(topic.name, []).append(following)
        return following

    def _state_set(self, topic: TopicImage, partition: PartitionImage) -> Set:
        return Set(
            path=nodes.state_path(topic.name, partition.index),
            data=nodes.encode_state(partition, controller_epoch=self._controller_epoch),
            version=partition.partition_epoch - 1,
        )

    def configure(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings."""
        path, data = nodes.topic_configs_path(topic.name), nodes.encode_configs(configs)
        self._configs[topic.name] = configs
        self.groups.append([Set(path=path, data=data, version=ANY_VERSION)])

    def flush_steps(self) -> StepGenerator[None]:
        """Add changed replicas to the groups: what follows may rely on them."""
        pace = YieldCounter(TOPICS_PER_TURN)
        for name, changed in self._reassigned.items():
            topic = self.image.topics[name]
            written = list(self._partitions[name])
            for one in changed:
                written[one.index] = topic.partitions[one.index]
            room = GROUP_BYTES_MAX - self._topic_bytes_max(topic)
            while changed:
                changed = self._write_some(topic, written, changed, room)
                if pace.is_due(len(written)):
                    yield None
        self._reassigned.clear()

    def _topic_bytes_max(self, topic: TopicImage) -> int:
        """The largest size of the node between the old and the new state."""
        before = len(nodes.encode_topic(topic.topic_id, topic.partitions))
        after = len(nodes.encode_topic(topic.topic_id, self._partitions[topic.name]))
        return max(before, after)

    def _write_some(
        self,
        topic: TopicImage,
        written: list[PartitionImage],
        changed: list[PartitionImage],
        room: int,
    ) -> list[PartitionImage]:
        """Add one group with the topic's node and as many states as fit; returns the remaining
        ones.
        """
        states: list[Operation] = []
        for one in changed[: GROUP_OPERATIONS_MAX - 1]:
            state = self._state_set(topic, one)
            room -= len(state.path) + len(state.data) + OPERATION_BYTES
            if states and room < 0:
                break
            states.append(state)
            written[one.index] = one
        data = nodes.encode_topic(topic.topic_id, written)
        path = nodes.topic_path(topic.name)
        self.groups.append([Set(path=path, data=data, version=ANY_VERSION), *states])
        return changed[len(states) :]

    def plan(
        self,
        result: T,
        *,
        brokers: Mapping[BrokerId, BrokerImage] | None = None,
        broker_configs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Plan[T]:
        """The plan with all changes so far; without any the image stays the same object."""
        return run_blocking(self.plan_steps(result, brokers=brokers, broker_configs=broker_configs))

    def plan_steps(
        self,
        result: T,
        *,
        brokers: Mapping[BrokerId, BrokerImage] | None = None,
        broker_configs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> StepGenerator[Plan[T]]:
        """`plan` in steps."""
        yield from self.flush_steps()
        is_same = brokers is None or brokers == self.image.brokers
        if not self.groups and is_same:
            return Plan(result, self.image)
        put, moved = yield from self._change_topics_steps()
        image = self.image.changed(
            put=put, brokers=None if is_same else brokers, broker_configs=broker_configs
        )
        change = ImageChange(
            moved=moved,
            reconfigured=[one for one in put if one.name in self._configs],
            brokers_changed=not is_same,
            brokers_reconfigured=broker_configs is not None,
        )
        return Plan(result, image, self.groups, change)

    def _change_topics_steps(self) -> StepGenerator[tuple[list[TopicImage], list[MovedPartition]]]:
        """The topics as they will be, and their changed partitions."""
        put: list[TopicImage] = []
        moved: list[MovedPartition] = []
        pace = YieldCounter(TOPICS_PER_TURN)
        for name in {**self._partitions, **self._configs}:
            old = self.image.topics[name]
            topic = old._replace(
                partitions=tuple(self.partitions(old)), configs=self._configs.get(name, old.configs)
            )
            put.append(topic)
            indexes = sorted(self._moved.get(name, ()))
            moved += [MovedPartition(topic, topic.partitions[one]) for one in indexes]
            if pace.is_due():
                yield None
        return put, moved


def is_replica_removed(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether a broker is no longer a replica of the partition."""
    return not set(before.replicas).issubset(after.replicas)


def check_state(topic: TopicImage, before: PartitionImage, after: PartitionImage) -> None:
    """Check the invariants of every state that is written."""
    is_known = after.leader in after.isr or after.leader == NO_LEADER
    invariant(is_known, "I-14 the leader is not in the ISR", topic=topic.name, after=after)
    rises = after.leader_epoch - before.leader_epoch
    invariant(
        rises == (before.leader != after.leader or is_replica_removed(before, after)),
        "I-15 the leader epoch grows when the leader changes or a replica goes, and only then",
        topic=topic.name,
        before=before,
        after=after,
    )
    members = {*after.isr, *after.elr, *after.adding, *after.removing, *after.lost, *after.full}
    invariant(
        members.issubset(after.replicas) and set(after.isr).isdisjoint(after.elr),
        "I-14 in sync or eligible without being a replica, or both",
        topic=topic.name,
        after=after,
    )
    invariant(
        {*after.isr, *after.elr}.isdisjoint(after.lost),
        "I-14 in sync or eligible with a log that is lost",
        topic=topic.name,
        after=after,
    )
