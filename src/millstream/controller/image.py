"""The metadata of the cluster at one version, as immutable values.

A change makes a new image; a holder of the old one keeps a consistent view.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.model.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from millstream.model.invariant import invariant


class Endpoint(NamedTuple):
    """Where clients reach a broker on one listener."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerImage(NamedTuple):
    """One registered broker."""

    broker_id: BrokerId
    endpoints: tuple[Endpoint, ...] = ()
    """Of a fenced broker: those that it had when it was last alive."""
    rack: str | None = None
    is_fenced: bool = False
    """Known but not to be used: it is not alive, or not ready."""
    epoch: BrokerEpoch = NO_BROKER_EPOCH
    """Of its registration; a restarted broker has a larger one (I-17)."""
    is_leaving: bool = False
    """In controlled shutdown: it keeps serving what no other broker can, and gets nothing new."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its address on the listener."""
        for one in self.endpoints:
            if one.listener == listener:
                return one
        return None

    def live_endpoint(self, listener: str) -> Endpoint | None:
        """Its address on the listener, unless it is fenced."""
        return None if self.is_fenced else self.endpoint(listener)


NO_LEADER = BrokerId(-1)

GROUP_CONFIGS = "group:"
"""Prefix of the names under which the settings of groups are stored, beside those of brokers."""


def is_config_name(name: str) -> bool:
    """Whether dynamic settings can be stored under the name: it becomes a file or node name."""
    if name.startswith(GROUP_CONFIGS):
        return len(name) > len(GROUP_CONFIGS)
    return not name or (name.isascii() and name.isdigit())


class PartitionImage(NamedTuple):
    """One partition's replicas and leader."""

    index: int  # type: ignore[assignment]
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    """Incremented by every change of this partition; a change based on an older one is refused."""
    elr: tuple[BrokerId, ...] = ()
    """No longer in sync, but with everything below the high watermark (KIP-966)."""
    last_known_leader: BrokerId = NO_LEADER
    """The last leader of a leaderless partition; elected when both `isr` and `elr` are empty."""
    adding: tuple[BrokerId, ...] = ()
    """Of `replicas`, those that a reassignment adds."""
    removing: tuple[BrokerId, ...] = ()
    """Of `replicas`, those that are removed when the reassignment is done."""
    lost: tuple[BrokerId, ...] = ()
    """Of `replicas`, those whose log has failed, as their brokers reported. They can neither lead
    nor join the ISR until their brokers have registered again, or report that they have begun
    from the beginning."""
    full: tuple[BrokerId, ...] = ()
    """Of `replicas`, those that cannot grow because their disk is full, as their brokers reported.
    They only lead, or are in the ISR, where no other replica can be."""


class TopicImage(NamedTuple):
    """One topic. `partitions[i].index` is `i`."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]
    """What was set for this topic; everything else is the broker's default."""

    def names_of_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, one.index) for one in self.partitions]


class GrownTopic(NamedTuple):
    """A topic, as it is now, and the first of its partitions that is new."""

    topic: TopicImage
    first_new_partition: int


class MovedPartition(NamedTuple):
    """A partition, as it is now, whose leader, in-sync set or replicas changed."""

    topic: TopicImage
    partition: PartitionImage


@dataclass(frozen=True, slots=True)
class ImageChange:
    """What differs between two images; `deleted` are the topics as they were.

    New partitions of a created or grown topic are not listed under `moved`. A topic that was
    deleted and created again between two images is in both lists, with different ids.
    """

    created: list[TopicImage] = field(default_factory=list)
    deleted: list[TopicImage] = field(default_factory=list)
    grown: list[GrownTopic] = field(default_factory=list)
    reconfigured: list[TopicImage] = field(default_factory=list)
    brokers_reconfigured: bool = False
    moved: list[MovedPartition] = field(default_factory=list)
    brokers_changed: bool = False
    """Brokers joined, left or changed their addresses."""


class ClusterImage:
    """The cluster at one version. Never modified: see `changed`."""

    __slots__ = (
        "broker_configs",
        "brokers",
        "cluster_id",
        "controller_id",
        "topics",
        "topics_by_id",
        "version",
    )

    def __init__(
        self,
        *,
        cluster_id: str,
        controller_id: BrokerId,
        brokers: Mapping[BrokerId, BrokerImage],
        topics: Mapping[str, TopicImage],
        broker_configs: Mapping[str, Mapping[str, str]],
        version: int = 0,
        topics_by_id: Mapping[TopicId, TopicImage] | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.brokers = brokers
        self.topics = topics
        if topics_by_id is None:
            topics_by_id = {topic.topic_id: topic for topic in topics.values()}
        self.topics_by_id = topics_by_id
        self.broker_configs = broker_configs
        """Dynamic settings by broker id as text; "" has those for all brokers, and names that begin
        with `GROUP_CONFIGS` those of groups.
        """
        self.version = version
        invariant(
            len(self.topics_by_id) == len(topics), "two topics have one id", count=len(topics)
        )

    def changed(
        self,
        *,
        put: Collection[TopicImage] = (),
        drop: Collection[TopicImage] = (),
        brokers: Mapping[BrokerId, BrokerImage] | None = None,
        broker_configs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> "ClusterImage":
        """The next image."""
        topics, by_id = dict(self.topics), dict(self.topics_by_id)
        for topic in drop:
            del topics[topic.name], by_id[topic.topic_id]
        for topic in put:
            topics[topic.name] = by_id[topic.topic_id] = topic
        return ClusterImage(
            cluster_id=self.cluster_id,
            controller_id=self.controller_id,
            brokers=self.brokers if brokers is None else brokers,
            topics=topics,
            broker_configs=self.broker_configs if broker_configs is None else broker_configs,
            version=self.version + 1,
            topics_by_id=by_id,
        )

    def alive_brokers(self) -> list[BrokerImage]:
        """Brokers that may lead and serve, by id."""
        return [one for _, one in sorted(self.brokers.items()) if not one.is_fenced]
