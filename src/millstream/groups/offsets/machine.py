"""The offsets of one partition of the offsets topic: what was written, and what of it counts.

Whatever is appended waits until the high watermark has passed it, and is applied then, in the order
of the log (I-29): an answer never tells of an offset that a failover could take back. Offsets
of a transaction wait a second time, for its marker.

After a failover the high watermark may at first be behind what the coordinator before had already
answered with. So a shard that was loaded must not answer before `unseen_count` was 0 once.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.groups.offsets.packed import Packed, pack, record_offset_of
from millstream.groups.offsets.pending_transactions import PendingOffsets
from millstream.groups.offsets.store import OffsetStore, Topics
from millstream.groups.records.keys import OffsetKey
from millstream.groups.records.values import OffsetCommitValue
from millstream.model.ids import NO_PRODUCER_ID, GroupId, Offset, ProducerId
from millstream.model.invariant import invariant


class _Change(NamedTuple):
    """An offset was written, or deleted where there is none."""

    at: int
    key: OffsetKey
    packed: Packed | None
    producer_id: ProducerId


class _End(NamedTuple):
    """A transaction has ended."""

    at: int
    producer_id: ProducerId
    is_commit: bool


class Offsets:
    """Of all groups of a shard. Readers see only what the high watermark has passed."""

    __slots__ = ("_high_watermark", "_last", "_pending", "_pending_unseen", "_store", "_unseen")

    def __init__(self) -> None:
        self._store = OffsetStore()
        self._pending = PendingOffsets()
        self._unseen: deque[_Change | _End] = deque()
        self._pending_unseen: dict[OffsetKey, int] = {}
        """How often a transaction has written a key that the high watermark has not passed."""
        self._high_watermark = 0
        self._last = -1
        """The last record that we were told of."""

    # -- what the log has ------------------------------------------------------------------------

    def appended(
        self,
        key: OffsetKey,
        value: OffsetCommitValue | None,
        at: Offset,
        *,
        producer_id: ProducerId = NO_PRODUCER_ID,
    ) -> None:
        """The log has taken the entry at that offset; with a producer, in its transaction."""
        self.append_packed(key, None if value is None else pack(at, value), at, producer_id)

    def append_packed(
        self, key: OffsetKey, packed: Packed | None, at: int, producer_id: ProducerId
    ) -> None:
        """The same, for those who read the log."""
        if at <= self._last:  # a call for each of a million records that are loaded is a second
            self._refuse_order(at)
        self._last = at
        if at < self._high_watermark and not self._unseen:
            self._change(key, packed, producer_id)
            return
        if producer_id != NO_PRODUCER_ID and packed is not None:
            self._pending_unseen[key] = self._pending_unseen.get(key, 0) + 1
        self._unseen.append(_Change(at, key, packed, producer_id))

    def ended(self, producer_id: ProducerId, at: Offset, *, is_commit: bool) -> None:
        """The log has the marker that ends the producer's transaction."""
        if at <= self._last:
            self._refuse_order(at)
        self._last = at
        self._unseen.append(_End(at, producer_id, is_commit))
        self._apply_seen()

    def committed(self, high_watermark: Offset) -> None:
        """Everything before it counts. It never goes back; a smaller one says nothing new."""
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            self._apply_seen()

    @property
    def unseen_count(self) -> int:
        """Records that were appended and do not count yet."""
        return len(self._unseen)

    def _refuse_order(self, at: int) -> None:
        invariant(False, "I-29 offsets out of the log's order", at=at, last=self._last)

    def _apply_seen(self) -> None:
        unseen, high_watermark = self._unseen, self._high_watermark
        while unseen and unseen[0].at < high_watermark:
            change = unseen.popleft()
            if isinstance(change, _End):
                self._end(change)
                continue
            _, key, packed, producer_id = change
            if producer_id != NO_PRODUCER_ID and packed is not None:
                self._forget_unseen(key)
            self._change(key, packed, producer_id)

    def _forget_unseen(self, key: OffsetKey) -> None:
        left = self._pending_unseen[key] - 1
        invariant(left >= 0, "I-29 more pending offsets seen than written", key=key)
        if left:
            self._pending_unseen[key] = left
        else:
            del self._pending_unseen[key]

    def _change(self, key: OffsetKey, packed: Packed | None, producer_id: ProducerId) -> None:
        if packed is None:
            self._store.remove(key)
            self._pending.remove(key)
        elif producer_id == NO_PRODUCER_ID:
            self._store.put(key, packed)
        else:
            self._pending.put(producer_id, key, packed)

    def _end(self, end: _End) -> None:
        for key, packed in self._pending.end(end.producer_id).items():
            before = self._store.get(key)
            # The place in the log of the commit counts, not that of the marker: compaction may have
            # removed whatever was committed in between, but keeps the last commit itself.
            if end.is_commit and (
                before is None or record_offset_of(packed) > record_offset_of(before)
            ):
                self._store.put(key, packed)

    # -- what counts -----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Offsets that count."""
        return self._store.count

    def get(self, key: OffsetKey) -> Packed | None:
        """What was committed last there."""
        return self._store.get(key)

    def topics_of(self, group_id: GroupId) -> Topics:
        """Everything of a group that counts."""
        return self._store.topics_of(group_id)

    def group_ids(self) -> set[GroupId]:
        """Groups that have offsets, or will have: of transactions, or not yet seen."""
        unseen = (one.key.group_id for one in self._unseen_puts())
        return {*self._store.group_ids(), *self._pending.group_ids(), *unseen}

    def in_batches(self, size: int) -> Iterator[list[tuple[OffsetKey, Packed]]]:
        """Everything that counts, so many at once; it may be changed between two batches."""
        return self._store.in_batches(size)

    # -- what was written, whether it counts or not: for decisions about the next record ---------

    def is_unstable(self, key: OffsetKey) -> bool:
        """An open transaction has written it, or one whose end does not count yet."""
        return self._pending.has(key) or key in self._pending_unseen

    def has_open_transaction(self, group_id: GroupId) -> bool:
        """Some transaction has written offsets of the group."""
        return bool(self._pending.keys_of(group_id)) or any(
            key.group_id == group_id for key in self._pending_unseen
        )

    def keys_of(self, group_id: GroupId) -> set[OffsetKey]:
        """Whatever a group has, or may have once all that was written counts.

        Who deletes must delete all of it: a record that is still on its way would bring it back.
        """
        topics = self._store.topics_of(group_id).items()
        keys = {OffsetKey(group_id, topic, one) for topic, those in topics for one in those}
        keys.update(self._pending.keys_of(group_id))
        keys.update(one.key for one in self._unseen_puts() if one.key.group_id == group_id)
        return keys

    def known(self, keys: Iterable[OffsetKey]) -> set[OffsetKey]:
        """Those that are among `keys_of` their groups."""
        unseen = {one.key for one in self._unseen_puts()}
        return {
            key
            for key in keys
            if self._store.get(key) is not None or self.is_unstable(key) or key in unseen
        }

    def keys_unseen(self) -> set[OffsetKey]:
        """Keys that a record on its way will change."""
        return {one.key for one in self._unseen if isinstance(one, _Change)}

    def topics_written(self, group_id: GroupId) -> Topics:
        """Everything of a group once all that was written counts, but for transactions."""
        topics = self._store.topics_of(group_id)
        if not self._unseen:
            return topics
        written = {name: dict(partitions) for name, partitions in topics.items()}
        for one in self._unseen:
            if not isinstance(one, _Change) or one.key.group_id != group_id:
                continue
            _, name, partition = one.key
            if one.packed is None:
                written.get(name, {}).pop(partition, None)
            elif one.producer_id == NO_PRODUCER_ID:
                written.setdefault(name, {})[partition] = one.packed
        return {name: partitions for name, partitions in written.items() if partitions}

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[OffsetKey, Packed]]:
        """Every version that there is of the offsets in these topics, of all groups."""
        names = set(topics)
        for group_id in self._store.group_ids():
            mine = self._store.topics_of(group_id)
            for topic in names & mine.keys():
                for partition, packed in mine[topic].items():
                    yield OffsetKey(group_id, topic, partition), packed
        yield from (pair for pair in self._pending if pair[0].topic in names)
        for one in self._unseen_puts():
            if one.packed is not None and one.key.topic in names:
                yield one.key, one.packed

    def _unseen_puts(self) -> Iterator[_Change]:
        for one in self._unseen:
            if isinstance(one, _Change) and one.packed is not None:
                yield one
