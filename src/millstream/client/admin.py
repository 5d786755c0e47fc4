"""Administration of topics, settings and records of a cluster.

Methods that take many items return a mapping in which each has its result or a ClientError: one
topic that cannot be created does not keep the others from being created. `or_raise` turns an
outcome into a result. Retriable errors are retried until the deadline.
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
from millstream.client.errors import ClientError
from millstream.client.keyed_api import call_each
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
"""For `delete_records`: everything that consumers can read."""


class ClusterInfo(NamedTuple):
    """The brokers of a cluster, and its controller."""

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
        """By name. The topics exist when this returns; brokers may learn of them a moment later."""
        api = CreateTopics(self._cluster, validates_only=validates_only)
        items = {one.name: one for one in topics}
        return await call_each(api, items, self._cluster.deadline("create topics", timeout_s))

    async def delete_topics(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, bool | ClientError]:
        """True where it was deleted."""
        items: dict[str, None] = dict.fromkeys(names)
        deadline = self._cluster.deadline("delete topics", timeout_s)
        gone = await call_each(DeleteTopics(self._cluster), items, deadline)
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
        """Raise the number of partitions of each topic to these totals."""
        items = {
            name: one if isinstance(one, NewPartitions) else NewPartitions(one)
            for name, one in totals.items()
        }
        api = CreatePartitions(self._cluster, validates_only=validates_only)
        deadline = self._cluster.deadline("create partitions", timeout_s)
        made = await call_each(api, items, deadline)
        for name in items:
            self._cluster.metadata.invalidate(name)
        return made

    async def describe_topics(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, TopicInfo | ClientError]:
        """Ids, partitions, leaders, replicas, from a broker's current metadata."""
        deadline = self._cluster.deadline("describe topics", timeout_s)
        return await self._cluster.topics_each(names, deadline=deadline, unknown_grace_s=0.0)

    async def list_topics(
        self, *, includes_internal: bool = False, timeout_s: float | None = None
    ) -> dict[str, TopicInfo]:
        """All topics by name; internal ones are those that brokers create for themselves."""
        deadline = self._cluster.deadline("list topics", timeout_s)
        found = await self._cluster.topics(deadline=deadline)
        return {
            name: one for name, one in found.items() if includes_internal or not one.is_internal
        }

    async def delete_records(
        self, before: Mapping[TopicPartition, Offset], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, Offset | ClientError]:
        """Delete the records below each offset; returns the new log start offsets."""
        deadline = self._cluster.deadline("delete records", timeout_s)
        return await call_each(DeleteRecords(self._cluster), before, deadline)

    # -- settings

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Collection[str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | ClientError]:
        """All settings of each resource, or those with these names."""
        items: dict[ConfigResource, None] = dict.fromkeys(resources)
        deadline = self._cluster.deadline("describe settings", timeout_s)
        return await call_each(DescribeConfigs(self._cluster, names), items, deadline)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Collection[ConfigChange]],
        *,
        validates_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[ConfigResource, bool | ClientError]:
        """Change the given settings only; for each resource all changes are made, or none."""
        api = AlterConfigs(self._cluster, validates_only=validates_only)
        deadline = self._cluster.deadline("alter settings", timeout_s)
        return await call_each(api, changes, deadline)

    # -- cluster

    async def describe_cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Its id, its brokers, and the controller."""
        deadline = self._cluster.deadline("describe the cluster", timeout_s)
        response: DescribeClusterResponse = await self._cluster.call(
            DescribeClusterRequest(), deadline=deadline
        )
        return ClusterInfo(
            cluster_id=response.cluster_id,
            controller_id=BrokerId(response.controller_id) if response.controller_id >= 0 else None,
            brokers=tuple(
                Broker(BrokerId(one.broker_id), one.host, one.port, one.rack)
                for one in response.brokers
            ),
        )
