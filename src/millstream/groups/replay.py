"""Applies entries of the log to a shard, in the same way when they are written and when read.

A group exists while it has a record or an offset. Offsets without a group record belong to a simple
group: an empty classic one, which is created when they are written, or at the end of loading.
Records of one type of group replace a group of the other type: the log has the newer one last, and
compaction may have removed the tombstones between them.
"""

from collections.abc import Iterable

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.parts import Parts
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import ClassicGroupKey, ConsumerGroupKey, OffsetKey
from millstream.groups.records.values import (
    ConsumerGroupMetadataValue,
    GroupMetadataValue,
    OffsetCommitValue,
)
from millstream.model.ids import NO_PRODUCER_ID, GroupId, Offset, ProducerId
from millstream.model.invariant import invariant


def apply_offset(
    parts: Parts, entry: Entry, at: Offset, *, producer_id: ProducerId = NO_PRODUCER_ID
) -> None:
    """An offset is in the log; it is committed when the high watermark has passed it."""
    key, value = entry
    if isinstance(key, OffsetKey) and (value is None or isinstance(value, OffsetCommitValue)):
        parts.offsets.append(key, value, at, producer_id=producer_id)
    else:
        invariant(False, "I-29 not the entry of an offset", entry=entry)


def add_simple(parts: Parts, group_id: GroupId) -> None:
    """Add a group that has offsets and no record of its own."""
    if group_id not in parts.groups:
        parts.groups[group_id] = parts.new_classic(group_id)


def apply_group(parts: Parts, entry: Entry) -> None:
    """Apply a record of a group of either type."""
    if isinstance(entry.key, ClassicGroupKey):
        _apply_classic(parts, entry.key.group_id, entry)
    else:
        _apply_consumer(parts, entry.key.group_id, entry)


def apply_written(parts: Parts, entries: Iterable[Entry], now_ms: int) -> None:
    """Apply entries that were just written: sessions of a new group start.

    A classic group that follows a consumer group in the same batch was converted from it; its
    members rejoin if they have to.
    """
    ended: dict[GroupId, ConsumerGroup] = {}
    for entry in entries:
        group_id = entry.key.group_id
        before = parts.groups.get(group_id)
        apply_group(parts, entry)
        group = parts.groups.get(group_id)
        if isinstance(before, ConsumerGroup) and group is None:
            ended[group_id] = before
        if group is None or group is before:
            continue
        group.on_loaded(now_ms)
        was = ended.get(group_id)
        if isinstance(group, ClassicGroup) and was is not None and was.downgrade_rebalances:
            group.start_rebalance("the last member of the consumer protocol has left", now_ms)


def _apply_classic(parts: Parts, group_id: GroupId, entry: Entry) -> None:
    group = parts.groups.get(group_id)
    if not isinstance(entry.value, GroupMetadataValue):
        if isinstance(group, ClassicGroup):
            if group_id in parts.unwritten_groups:
                group.request_rejoin()
            remove(parts, group)
        return
    if not isinstance(group, ClassicGroup):
        group = parts.groups[group_id] = parts.new_classic(group_id)
    group.apply_metadata(entry.value)


def _apply_consumer(parts: Parts, group_id: GroupId, entry: Entry) -> None:
    group = parts.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        if entry.value is None:
            return
        if isinstance(group, ClassicGroup):
            remove(parts, group)
        group = parts.groups[group_id] = parts.claim_consumer(group_id)
    if isinstance(entry.value, ConsumerGroupMetadataValue) and entry.value.epoch > group.epoch:
        parts.counts.consumer_rebalances += 1
    group.apply(entry)
    if isinstance(entry.key, ConsumerGroupKey) and entry.value is None:
        remove(parts, group)


def remove(parts: Parts, group: ClassicGroup | ConsumerGroup) -> None:
    """Remove the group; its waiting requests are answered."""
    del parts.groups[group.group_id]
    group.on_removed()
