"""Which offsets go by themselves: their retention is over (KIP-211), or their topic is gone."""

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import is_expired, topic_id_of
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import OffsetKey
from millstream.model.ids import GroupId


class ExpiryRule(NamedTuple):
    """How the offsets of a group expire, which depends on its state.

    - A group without members: from when it became empty (`base_ms`; None where its record is from
      before Kafka noted that), for all topics.
    - A classic group of consumers that is stable, and a next-generation group: from the commit of
      each offset, for topics that it does not subscribe to.
    - Offsets of consumers that never joined: from the commit of each.
    - Any other state: there is no rule, and nothing expires.
    """

    base_ms: int | None
    is_subscribed: Callable[[str], bool]


class Expiry(NamedTuple):
    """What to delete of a group."""

    entries: tuple[Entry, ...]
    is_all: bool
    """Nothing is left then, not even in a transaction: an empty group may go with it."""


class Now(NamedTuple):
    """When it is, and how long offsets are kept."""

    wall_ms: int
    retention_ms: int


def expire(offsets: Offsets, group_id: GroupId, rule: ExpiryRule | None, now: Now) -> Expiry:
    """Tombstones for what has expired.

    An offset that a transaction or a record on its way will change does not expire.
    """
    topics = offsets.topics_of(group_id)
    unseen = offsets.keys_unseen()
    is_all = not offsets.has_open_transaction(group_id) and all(
        one.group_id != group_id for one in unseen
    )
    if rule is None:
        return Expiry((), is_all and not topics)
    entries: list[Entry] = []
    for topic, partitions in topics.items():
        if rule.is_subscribed(topic):
            is_all = False
            continue
        for partition, packed in partitions.items():
            if not is_expired(
                packed,
                base_ms=rule.base_ms,
                wall_ms=now.wall_ms,
                retention_ms=now.retention_ms,
            ):
                is_all = False
                continue
            key = OffsetKey(group_id, topic, partition)
            if key in unseen or offsets.is_unstable(key):
                is_all = False
            else:
                entries.append(Entry(key, None))
    return Expiry(tuple(entries), is_all)


def delete_topics(offsets: Offsets, topics: Mapping[str, UUID]) -> tuple[Entry, ...]:
    """Tombstones for the offsets of topics that were deleted, also of open transactions.

    What was committed by id for another topic of the same name stays, also where it is still on
    its way: a tombstone behind it would take it along.
    """
    gone: set[OffsetKey] = set()
    kept: set[OffsetKey] = set()
    for key, packed in offsets.of_topics(topics):
        is_gone = topic_id_of(packed) in (b"", topics[key.topic].bytes)
        (gone if is_gone else kept).add(key)
    return tuple(Entry(key, None) for key in sorted(gone - kept))
