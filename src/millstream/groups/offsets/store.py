"""Offsets by group, topic and partition. `machine.py` decides which of them are committed."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from millstream.groups.offsets.packed import Packed
from millstream.groups.records.keys import OffsetKey
from millstream.model.ids import GroupId

Partitions = Mapping[int, Packed]
Topics = Mapping[str, Partitions]

_NO_TOPICS: Final[Topics] = MappingProxyType({})


class OffsetStore:
    """A dict of dicts: groups, topics, partitions. None of them is ever empty."""

    __slots__ = ("_groups", "count")

    def __init__(self) -> None:
        self._groups: dict[GroupId, dict[str, dict[int, Packed]]] = {}
        self.count = 0
        """All offsets of all groups."""

    def get(self, key: OffsetKey) -> Packed | None:
        """The offset, if there is one."""
        group_id, topic, partition = key
        return self.topics_of(group_id).get(topic, {}).get(partition)

    def put(self, key: OffsetKey, packed: Packed) -> None:
        """Set or replace it."""
        group_id, topic, partition = key
        topics = self._groups.get(group_id)
        if topics is None:
            topics = self._groups[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        if partition not in partitions:
            self.count += 1
        partitions[partition] = packed

    def remove(self, key: OffsetKey) -> None:
        """Remove it, if it exists."""
        group_id, topic, partition = key
        topics = self._groups.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is None:
            return
        self.count -= 1
        if not partitions:
            del topics[topic]
        if not topics:
            del self._groups[group_id]

    def topics_of(self, group_id: GroupId) -> Topics:
        """All offsets of a group, read-only; empty for a group that has none."""
        return self._groups.get(group_id, _NO_TOPICS)

    def group_ids(self) -> Iterator[GroupId]:
        """Groups that have offsets."""
        return iter(self._groups)

    def in_batches(self, size: int) -> Iterator[list[tuple[OffsetKey, Packed]]]:
        """All offsets, in batches; they may change between two batches."""
        batch: list[tuple[OffsetKey, Packed]] = []
        for group_id in list(self._groups):
            for topic, partitions in list(self.topics_of(group_id).items()):
                for partition, packed in list(partitions.items()):
                    batch.append((OffsetKey(group_id, topic, partition), packed))
                    if len(batch) >= size:
                        yield batch
                        batch = []
        if batch:
            yield batch
