"""Which offsets go by themselves: those whose retention is over (KIP-211)."""

from collections.abc import Callable
from typing import NamedTuple

from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import is_expired
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
    expired, is_all = _over(offsets, group_id, rule, now)
    if not expired and not is_all:
        return Expiry((), False)
    # Only now, for it costs more: of most groups nothing expires most of the time.
    unseen = {key for key in offsets.keys_unseen() if key.group_id == group_id}
    gone = [key for key in expired if key not in unseen and not offsets.is_unstable(key)]
    is_all = is_all and len(gone) == len(expired)
    is_all = is_all and not unseen and not offsets.has_open_transaction(group_id)
    return Expiry(tuple(Entry(key, None) for key in gone), is_all)


def _over(
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
        over = [
            OffsetKey(group_id, topic, partition)
            for partition, packed in partitions.items()
            if is_expired(packed, base_ms=base_ms, wall_ms=wall_ms, retention_ms=retention_ms)
        ]
        is_all = is_all and len(over) == len(partitions)
        expired += over
    return expired, is_all
