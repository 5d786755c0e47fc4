"""The client's metadata cache: brokers, topics, leaders. Decides, and does no I/O.

Responses come from brokers that lag behind each other, so a newer response may have older metadata.
They are ordered by the leader epoch within one topic id (KIP-320, KIP-516): for the same id a
leader never goes back to an older epoch, and partitions never disappear. Another id under the same
name is another topic, whatever its epochs.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.client.errors import code_of
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from millstream.rpc.addresses import host_port
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_NO_ID: Final = 0


class Broker(NamedTuple):
    """One broker, with its advertised address."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return host_port(self.host, self.port)


class PartitionInfo(NamedTuple):
    """One partition of a metadata response."""

    partition: int
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    """-1 where the broker is too old to return it."""
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline: tuple[BrokerId, ...]
    error: ErrorCode


class TopicInfo(NamedTuple):
    """A topic that exists."""

    name: str
    topic_id: TopicId | None
    """None where the broker is too old for topic ids."""
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    """By index, without gaps."""

    @property
    def partition_count(self) -> int:
        return len(self.partitions)


class Leader(NamedTuple):
    """The leader of a partition, with what requests to it need."""

    broker: Broker
    leader_epoch: LeaderEpoch
    topic_id: TopicId | None


class LeaderHint(NamedTuple):
    """The current leader, from a Produce or Fetch response (KIP-951)."""

    leader_id: int
    leader_epoch: int
    endpoints: tuple[Broker, ...] = ()


class Recreation(NamedTuple):
    """A topic that was deleted and created again."""

    topic: str
    old_id: TopicId
    new_id: TopicId


class _Entry:
    """The cached state of one topic name."""

    __slots__ = ("error", "info", "is_stale", "updated_s", "used_s")

    def __init__(self, now_s: float) -> None:
        self.info: TopicInfo | None = None
        """The last one received; kept when the topic seems deleted, for its epochs and its id."""
        self.error = ErrorCode.NONE
        self.is_stale = True
        self.updated_s = float("-inf")
        self.used_s = now_s


class MetadataCache:
    """Times are passed in, all of one clock."""

    def __init__(self, *, max_age_s: float, max_idle_s: float) -> None:
        self._max_age_s = max_age_s
        self._max_idle_s = max_idle_s
        self._entries: dict[str, _Entry] = {}
        self._names: dict[TopicId, str] = {}
        self._brokers: dict[BrokerId, Broker] = {}
        self._controller: BrokerId | None = None
        self.cluster_id: str | None = None

    # -- what is known

    @property
    def brokers(self) -> list[Broker]:
        return list(self._brokers.values())

    def broker(self, broker_id: int) -> Broker | None:
        return self._brokers.get(BrokerId(broker_id))

    @property
    def controller(self) -> Broker | None:
        """None when there is no controller at the moment."""
        return self._brokers.get(self._controller) if self._controller is not None else None

    @property
    def topic_names(self) -> list[str]:
        """Topics that are cached, or were requested."""
        return list(self._entries)

    def topic(self, name: str) -> TopicInfo | None:
        """None when it is not cached, or its last response had an error."""
        entry = self._entries.get(name)
        return entry.info if entry is not None and entry.error is ErrorCode.NONE else None

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None:
        name = self._names.get(topic_id)
        return self.topic(name) if name is not None else None

    def error_of(self, name: str) -> ErrorCode:
        """The error of the topic in the last response; NONE also when it was never requested."""
        entry = self._entries.get(name)
        return entry.error if entry is not None else ErrorCode.NONE

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        """None when unknown, or when there is no leader with a known address."""
        topic = self.topic(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        info = topic.partitions[partition.partition]
        broker = self._brokers.get(info.leader) if info.leader is not None else None
        if broker is None:
            return None
        return Leader(broker, info.leader_epoch, topic.topic_id)

    # -- when to refresh

    def use(self, name: str, now_s: float) -> None:
        """Mark the topic as used: it is refreshed, and kept while it is used."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(now_s)
        entry.used_s = now_s

    def is_fresh(self, name: str, now_s: float) -> bool:
        """Whether the cached topic may be used without a refresh."""
        entry = self._entries.get(name)
        if entry is None or entry.is_stale or entry.error is not ErrorCode.NONE:
            return False
        return now_s - entry.updated_s < self._max_age_s

    def to_refresh(self, now_s: float) -> list[str]:
        """Topics in use that are due for a refresh; those unused for long are dropped."""
        idle = [
            name for name, entry in self._entries.items() if now_s - entry.used_s > self._max_idle_s
        ]
        for name in idle:
            self._forget(name)
        return [name for name in self._entries if not self.is_fresh(name, now_s)]

    def invalidate(self, name: str) -> None:
        """Mark the topic as stale: cached metadata turned out to be wrong."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.is_stale = True

    def forget_brokers(self) -> None:
        """Drop all brokers: the next request goes to a bootstrap address."""
        self._brokers.clear()
        self._controller = None

    def _forget(self, name: str) -> None:
        entry = self._entries.pop(name)
        if entry.info is not None and entry.info.topic_id is not None:
            self._names.pop(entry.info.topic_id, None)

    # -- answers

    def update(
        self, response: MetadataResponse, *, names: Iterable[str], now_s: float
    ) -> list[Recreation]:
        """Apply a response about `names`; other topics of the response are ignored.

        A response without brokers is ignored.
        """
        if not response.brokers:
            return []
        self._brokers = {
            BrokerId(one.node_id): Broker(BrokerId(one.node_id), one.host, one.port, one.rack)
            for one in response.brokers
        }
        self._controller = BrokerId(response.controller_id)
        self.cluster_id = response.cluster_id
        topics = {one.name: one for one in response.topics if one.name is not None}
        recreations = []
        for name in dict.fromkeys(names):
            self.use(name, now_s)
            found = self._take(self._entries[name], name, topics.get(name), now_s)
            if found is not None:
                recreations.append(found)
        return recreations

    def _take(
        self, entry: _Entry, name: str, found: MetadataResponseTopic | None, now_s: float
    ) -> Recreation | None:
        entry.updated_s, entry.is_stale = now_s, False
        if found is None:
            entry.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return None
        entry.error = code_of(found.error_code)
        if entry.error is not ErrorCode.NONE:
            return None
        known, fresh = entry.info, topic_info(found)
        old_id, new_id = known.topic_id if known is not None else None, fresh.topic_id
        is_other = old_id is not None and new_id is not None and old_id != new_id
        entry.info = fresh if known is None or is_other else _merged(known, fresh)
        if new_id is not None:
            self._names[new_id] = name
        if not is_other or old_id is None or new_id is None:
            return None
        self._names.pop(old_id, None)
        return Recreation(name, old_id, new_id)

    def partition_failed(self, partition: TopicPartition, hint: LeaderHint | None = None) -> bool:
        """The cached leader did not serve; True when the hint names a newer one.

        Otherwise the topic has to be refreshed.
        """
        if hint is not None and self._take_hint(partition, hint):
            return True
        self.invalidate(partition.topic)
        return False

    def _take_hint(self, partition: TopicPartition, hint: LeaderHint) -> bool:
        entry = self._entries.get(partition.topic)
        index = partition.partition
        if entry is None or entry.info is None or index >= len(entry.info.partitions):
            return False
        known = entry.info.partitions[index]
        if hint.leader_id < 0 or hint.leader_epoch <= known.leader_epoch:
            return False
        leader = BrokerId(hint.leader_id)
        named = {one.broker_id: one for one in hint.endpoints}
        if leader in named:
            self._brokers[leader] = named[leader]
        elif leader not in self._brokers:
            return False
        fresh = known._replace(
            leader=leader, leader_epoch=LeaderEpoch(hint.leader_epoch), error=ErrorCode.NONE
        )
        partitions = entry.info.partitions
        partitions = (*partitions[:index], fresh, *partitions[index + 1 :])
        entry.info = entry.info._replace(partitions=partitions)
        return True


def _merged(known: TopicInfo, fresh: TopicInfo) -> TopicInfo:
    """Merge a response about the same topic id, from a broker that may lag behind."""
    partitions = [
        before if after.leader_epoch < before.leader_epoch and after.leader_epoch >= 0 else after
        for before, after in zip(known.partitions, fresh.partitions, strict=False)
    ]
    count = len(partitions)
    partitions += fresh.partitions[count:]
    if fresh.topic_id is not None:
        partitions += known.partitions[count:]
    topic_id = fresh.topic_id if fresh.topic_id is not None else known.topic_id
    return fresh._replace(partitions=tuple(partitions), topic_id=topic_id)


def topic_info(found: MetadataResponseTopic) -> TopicInfo:
    """The topic of a metadata response."""
    by_index = {one.partition_index: one for one in found.partitions}
    count = 0
    while count in by_index:
        count += 1
    return TopicInfo(
        name=found.name or "",
        topic_id=TopicId(found.topic_id) if found.topic_id.int != _NO_ID else None,
        is_internal=found.is_internal,
        partitions=tuple(_partition_info(by_index[index]) for index in range(count)),
    )


def _partition_info(found: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        partition=found.partition_index,
        leader=BrokerId(found.leader_id) if found.leader_id >= 0 else None,
        leader_epoch=LeaderEpoch(found.leader_epoch),
        replicas=tuple(map(BrokerId, found.replica_nodes)),
        isr=tuple(map(BrokerId, found.isr_nodes)),
        offline=tuple(map(BrokerId, found.offline_replicas)),
        error=code_of(found.error_code),
    )
