"""Removes expired offsets, groups without members and offsets, and offsets of deleted topics.

All of them are removed by tombstones. A sweep checks every group once, some of them in each step,
so that requests are served in between (ADR 0016). What a step finds is written in one batch.
"""

from collections.abc import Iterable
from typing import Final

from millstream.groups import kinds
from millstream.groups.admin import TOMBSTONES_MAX, chunks
from millstream.groups.classic.group import ClassicGroup, GroupState
from millstream.groups.offsets.expiry import Expiry, ExpiryRule, Now, expire
from millstream.groups.offsets.packed import topic_id_of
from millstream.groups.parts import Group, Parts
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import OffsetKey
from millstream.model.ids import GroupId
from millstream.shards.effects import Write

GROUPS_PER_STEP: Final = 256
"""A few milliseconds if each has some dozens of offsets."""


class ExpirySweep:
    """The sweeps of one shard."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._left: list[GroupId] = []
        """Groups that the current sweep has not checked yet."""

    def step(self) -> bool:
        """Check some groups, in a new sweep if none is under way; True: there are more."""
        parts = self._parts
        if not self._left:
            self._left = list(parts.groups)
        found: list[Entry] = []
        for _ in range(GROUPS_PER_STEP):
            if not self._left or len(found) >= TOMBSTONES_MAX:
                break
            group = parts.groups.get(self._left.pop())
            if group is None:
                continue
            entries = self._expired(group)
            if len(found) + len(entries) > TOMBSTONES_MAX:
                self._write(found)
                found = []
            found += entries
        self._write(found)
        return bool(self._left)

    def _expired(self, group: Group) -> list[Entry]:
        parts = self._parts
        now = Now(parts.wall_ms, parts.settings.offsets_retention_ms)
        expiry = expire(parts.offsets, group.group_id, rule_of(group), now)
        parts.counts.offset_expirations += len(expiry.entries)
        entries = list(expiry.entries)
        if self._is_removable(group, expiry):
            parts.counts.expired_groups += 1
            entries += kinds.tombstones(group)
        return entries

    def _is_removable(self, group: Group, expiry: Expiry) -> bool:
        """Whether it is removed with its last offsets, in one batch: neither may stay behind."""
        if not expiry.is_all or not kinds.is_empty(group):
            return False
        return len(expiry.entries) < TOMBSTONES_MAX and not kinds.has_pending_members(group)

    def _write(self, entries: list[Entry]) -> None:
        for batch in chunks(entries):
            self._parts.outbox.write(Write(batch))

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Remove their offsets at once, not in the next sweep: a topic may be created again.

        If it has been already, offsets that were committed for it by its id stay.
        """
        alive = {name: self._parts.topics.by_name(name) for name in names}
        ids = {name: facts.topic_id.bytes for name, facts in alive.items() if facts is not None}
        gone: set[OffsetKey] = set()
        kept: set[OffsetKey] = set()
        for key, packed in self._parts.offsets.of_topics(alive):
            (kept if topic_id_of(packed) == ids.get(key.topic) else gone).add(key)
        entries = [Entry(key, None) for key in sorted(gone - kept)]
        self._parts.counts.offset_deletions += len(entries)
        self._write(entries)


def rule_of(group: Group) -> ExpiryRule | None:
    """How the group's offsets expire (KIP-211); None: they do not.

    Offsets of a classic group are kept until it has been empty for the retention time. While a
    group has consumers, offsets of topics that they do not subscribe to expire; the topics of
    members that are not consumers are unknown.
    """
    if not isinstance(group, ClassicGroup):
        return ExpiryRule(None, group.subscribed_topics().__contains__)
    if group.protocol_type is None:
        return ExpiryRule(None, _never)
    if kinds.is_empty(group):
        return ExpiryRule(group.state_since_ms, _never)
    is_known = group.is_consumer and group.subscribed_topics() is not None
    is_stable = group.state is GroupState.STABLE
    return ExpiryRule(None, group.is_subscribed_to) if is_known and is_stable else None


def _never(_topic: str) -> bool:
    return False
