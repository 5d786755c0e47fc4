"""The parts of the cluster's metadata that replication needs.

The controller's image has these shapes; that package is a sibling and must not be imported here.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from millstream.model.ids import BrokerId, LeaderEpoch, TopicId
from millstream.storage.config import LogConfig


class PartitionFacts(Protocol):
    """One partition's replicas and leader."""

    @property
    def index(self) -> int: ...

    @property
    def replicas(self) -> Sequence[BrokerId]: ...

    @property
    def isr(self) -> Sequence[BrokerId]: ...

    @property
    def leader(self) -> BrokerId: ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def partition_epoch(self) -> int: ...

    @property
    def lost(self) -> Sequence[BrokerId]: ...

    @property
    def full(self) -> Sequence[BrokerId]: ...


class TopicFacts(Protocol):
    """One topic."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> TopicId: ...

    @property
    def partitions(self) -> Sequence[PartitionFacts]: ...

    @property
    def configs(self) -> Mapping[str, str]: ...


class GrowthFacts(Protocol):
    """A topic that got more partitions, as it is now."""

    @property
    def topic(self) -> TopicFacts: ...

    @property
    def first_new_partition(self) -> int: ...


class MoveFacts(Protocol):
    """A partition whose leader, in-sync set or replicas changed, as it is now."""

    @property
    def topic(self) -> TopicFacts: ...

    @property
    def partition(self) -> PartitionFacts: ...


class ChangeFacts(Protocol):
    """What differs between two images."""

    @property
    def created(self) -> Sequence[TopicFacts]: ...

    @property
    def deleted(self) -> Sequence[TopicFacts]: ...

    @property
    def grown(self) -> Sequence[GrowthFacts]: ...

    @property
    def reconfigured(self) -> Sequence[TopicFacts]: ...

    @property
    def brokers_reconfigured(self) -> bool: ...

    @property
    def moved(self) -> Sequence[MoveFacts]: ...


class ImageFacts(Protocol):
    """The cluster at one moment."""

    @property
    def topics(self) -> Mapping[str, TopicFacts]: ...


class TopicSettings(Protocol):
    """The effective settings of topics: their own, over the broker's defaults."""

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig: ...

    def topic_text(self, topic_configs: Mapping[str, str], name: str) -> str: ...
