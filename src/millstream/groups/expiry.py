"""Offsets that have expired, groups that nobody needs, offsets of topics that are gone.

All of it goes by tombstones. A sweep looks at every group once, some of them in each step, so that
requests are served in between (ADR 0016). What a step finds is written in one batch.
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
"""A few milliseconds, when each has some dozens of offsets."""


class Expiring:
    """The sweeps of one shard."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._left: list[GroupId] = []
        """What the sweep that is under way has not looked at."""

    def step(self) -> bool:
        """Look at some groups, in a sweep that begins if none is under way; True: go on."""
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
        if self._is_over(group, expiry):
            parts.counts.expired_groups += 1
            entries += kinds.tombstones(group)
        return entries

    def _is_over(self, group: Group, expiry: Expiry) -> bool:
        """Whether it goes with its last offsets, in one batch: one of them alone must not stay."""
        if not expiry.is_all or not kinds.is_empty(group):
            return False
        return len(expiry.entries) < TOMBSTONES_MAX and not kinds.is_awaited(group)

    def _write(self, entries: list[Entry]) -> None:
        for batch in chunks(entries):
            self._parts.outbox.write(Write(batch))

    def topics_deleted(self, names: Iterable[str]) -> None:
        """At once, and not with the next sweep: a topic of the same name may be made again.

        If it has been already, what was committed for it by its id stays.
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

    Those of a classic group last until it has been empty for long enough. Where consumers are at
    work, those of topics go that they have given up; of others than consumers it is not known what
    they use.
    """
    if not isinstance(group, ClassicGroup):
        return ExpiryRule(None, group.subscribed_topics().__contains__)
    if group.protocol_type is None:
        return ExpiryRule(None, _nothing)
    if kinds.is_empty(group):
        return ExpiryRule(group.state_since_ms, _nothing)
    is_known = group.is_consumer and group.subscribed_topics() is not None
    is_stable = group.state is GroupState.STABLE
    return ExpiryRule(None, group.is_subscribed_to) if is_known and is_stable else None


def _nothing(_topic: str) -> bool:
    return False
