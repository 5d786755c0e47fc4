"""Which offsets expire: those whose retention is over (KIP-211)."""

from collections.abc import Callable
from typing import NamedTuple

from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import is_expired
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import OffsetKey
from millstream.model.ids import GroupId


class ExpiryRule(NamedTuple):
    """How the offsets of a group expire, which depends on its state.

    - A group without members: from when it became empty (`base_ms`; None if its record is from
      before Kafka noted that), for all topics.
    - A classic group of consumers that is stable, and a consumer group: from the commit of
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
    """Nothing is left then, not even in a transaction: an empty group may be removed with it."""


class Now(NamedTuple):
    """The time, and how long offsets are kept."""

    wall_ms: int
    retention_ms: int


def expire(offsets: Offsets, group_id: GroupId, rule: ExpiryRule | None, now: Now) -> Expiry:
    """Tombstones for what has expired.

    An offset that a transaction or an uncommitted record will change does not expire.
    """
    expired, is_all = _expired_keys(offsets, group_id, rule, now)
    if not expired and not is_all:
        return Expiry((), False)
    # Only now, for it costs more: mostly nothing of a group has expired.
    uncommitted = {key for key in offsets.uncommitted_keys() if key.group_id == group_id}
    gone = [key for key in expired if key not in uncommitted and not offsets.is_unstable(key)]
    is_all = is_all and len(gone) == len(expired)
    is_all = is_all and not uncommitted and not offsets.has_open_transaction(group_id)
    return Expiry(tuple(Entry(key, None) for key in gone), is_all)


def _expired_keys(
    offsets: Offsets, group_id: GroupId, rule: ExpiryRule | None, now: Now
) -> tuple[list[OffsetKey], bool]:
    """Offsets whose retention is over, and whether these are all that the group has."""
    topics = offsets.topics_of(group_id)
    expired: list[OffsetKey] = []
    is_all = True
    for topic, partitions in topics.items():
        if rule is None or rule.is_subscribed(topic):
            is_all = False
            continue
        base_ms, (wall_ms, retention_ms) = rule.base_ms, now
        expired_here = [
            OffsetKey(group_id, topic, partition)
            for partition, packed in partitions.items()
            if is_expired(packed, base_ms=base_ms, wall_ms=wall_ms, retention_ms=retention_ms)
        ]
        is_all = is_all and len(expired_here) == len(partitions)
        expired += expired_here
    return expired, is_all
