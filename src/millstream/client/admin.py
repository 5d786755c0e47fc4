"""Looking after topics, settings and records of a cluster; each thing has an outcome of its own.

Methods about many things give a mapping in which each has its result or a ClientError: one topic
that cannot be made does not keep the others from being made. `or_raise` turns an outcome into a
result. What can be tried again is, until the deadline.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from millstream.client.admin_configs import (
    AlterConfigs,
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    DescribeConfigs,
)
from millstream.client.admin_topics import (
    BROKERS_CHOICE,
    CreatedTopic,
    CreatePartitions,
    CreateTopics,
    DeleteRecords,
    DeleteTopics,
    NewPartitions,
    NewTopic,
)
from millstream.client.cluster import Cluster, or_raise
from millstream.client.each import ask_each
from millstream.client.errors import ClientError
from millstream.client.metadata import Broker, TopicInfo
from millstream.model.ids import BrokerId, Offset, TopicPartition
from millstream.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

__all__ = [
    "BROKERS_CHOICE",
    "HIGH_WATERMARK",
    "Admin",
    "ClusterInfo",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSource",
    "CreatedTopic",
    "NewPartitions",
    "NewTopic",
    "or_raise",
]

HIGH_WATERMARK: Final = Offset(-1)
"""For `delete_records`: everything that readers can see."""


class ClusterInfo(NamedTuple):
    """Who is there."""

    cluster_id: str
    controller_id: BrokerId | None
    brokers: tuple[Broker, ...]


class Admin:
    """`timeout_s` of each method is `default.api.timeout.ms` unless given."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # -- topics

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validates_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, CreatedTopic | ClientError]:
        """By name. A topic is there when this ends; a broker may need a moment to hear of it."""
        question = CreateTopics(self._cluster, validates_only=validates_only)
        items = {one.name: one for one in topics}
        return await ask_each(question, items, self._cluster.deadline("create topics", timeout_s))

    async def delete_topics(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, bool | ClientError]:
        """True where it was deleted."""
        items: dict[str, None] = dict.fromkeys(names)
        deadline = self._cluster.deadline("delete topics", timeout_s)
        gone = await ask_each(DeleteTopics(self._cluster), items, deadline)
        for name in items:
            self._cluster.metadata.invalidate(name)
        return gone

    async def create_partitions(
        self,
        totals: Mapping[str, int | NewPartitions],
        *,
        validates_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, bool | ClientError]:
        """How many partitions each topic shall have in all; only more is possible."""
        items = {
            name: one if isinstance(one, NewPartitions) else NewPartitions(one)
            for name, one in totals.items()
        }
        question = CreatePartitions(self._cluster, validates_only=validates_only)
        deadline = self._cluster.deadline("create partitions", timeout_s)
        made = await ask_each(question, items, deadline)
        for name in items:
            self._cluster.metadata.invalidate(name)
        return made

    async def describe_topics(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, TopicInfo | ClientError]:
        """Ids, partitions, leaders, replicas, as a broker tells now."""
        deadline = self._cluster.deadline("describe topics", timeout_s)
        return await self._cluster.topics_each(names, deadline=deadline, unknown_grace_s=0.0)

    async def list_topics(
        self, *, includes_internal: bool = False, timeout_s: float | None = None
    ) -> dict[str, TopicInfo]:
        """All of them by name; internal ones are those that brokers keep for themselves."""
        deadline = self._cluster.deadline("list topics", timeout_s)
        found = await self._cluster.topics(deadline=deadline)
        return {
            name: one for name, one in found.items() if includes_internal or not one.is_internal
        }

    async def delete_records(
        self, before: Mapping[TopicPartition, Offset], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, Offset | ClientError]:
        """Remove what is below each offset; tells where each log begins now."""
        deadline = self._cluster.deadline("delete records", timeout_s)
        return await ask_each(DeleteRecords(self._cluster), before, deadline)

    # -- settings

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Collection[str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | ClientError]:
        """All settings of each, or those of these names."""
        items: dict[ConfigResource, None] = dict.fromkeys(resources)
        deadline = self._cluster.deadline("describe settings", timeout_s)
        return await ask_each(DescribeConfigs(self._cluster, names), items, deadline)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Collection[ConfigChange]],
        *,
        validates_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[ConfigResource, bool | ClientError]:
        """Change what is named and leave the rest; of one thing all changes are made, or none."""
        question = AlterConfigs(self._cluster, validates_only=validates_only)
        deadline = self._cluster.deadline("alter settings", timeout_s)
        return await ask_each(question, changes, deadline)

    # -- cluster

    async def describe_cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Its id, its brokers, and who takes changes."""
        deadline = self._cluster.deadline("describe the cluster", timeout_s)
        told: DescribeClusterResponse = await self._cluster.call(
            DescribeClusterRequest(), deadline=deadline
        )
        return ClusterInfo(
            cluster_id=told.cluster_id,
            controller_id=BrokerId(told.controller_id) if told.controller_id >= 0 else None,
            brokers=tuple(
                Broker(BrokerId(one.broker_id), one.host, one.port, one.rack)
                for one in told.brokers
            ),
        )
