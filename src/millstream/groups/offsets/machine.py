"""The offsets of one partition of the offsets topic: what was written, and what is committed.

An appended record waits until the high watermark has passed it, and is applied then, in the order
of the log (I-29): a response never has an offset that a failover could revert. Offsets of a
transaction wait a second time, for its marker.

After a failover the high watermark may at first be behind what the previous coordinator had already
returned. So a loaded shard must not respond before `uncommitted_count` was 0 once.
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
    """An offset was written, or deleted if `packed` is None."""

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
    """The offsets of all groups of a shard. Readers see only what the high watermark has passed."""

    __slots__ = (
        "_high_watermark",
        "_last",
        "_pending",
        "_store",
        "_uncommitted",
        "_uncommitted_pending",
    )

    def __init__(self) -> None:
        self._store = OffsetStore()
        self._pending = PendingOffsets()
        self._uncommitted: deque[_Change | _End] = deque()
        self._uncommitted_pending: dict[OffsetKey, int] = {}
        """For each key, uncommitted records that transactions have written."""
        self._high_watermark = 0
        self._last = -1
        """The offset of the last record appended."""

    # -- records of the log ----------------------------------------------------------------------

    def append(
        self,
        key: OffsetKey,
        value: OffsetCommitValue | None,
        at: Offset,
        *,
        producer_id: ProducerId = NO_PRODUCER_ID,
    ) -> None:
        """The entry is in the log at that offset; with a producer, in its transaction."""
        self.append_packed(key, None if value is None else pack(at, value), at, producer_id)

    def append_packed(
        self, key: OffsetKey, packed: Packed | None, at: int, producer_id: ProducerId
    ) -> None:
        """The same, for readers of the log."""
        if at <= self._last:  # a call for each of a million records that are loaded is a second
            self._refuse_order(at)
        self._last = at
        if at < self._high_watermark and not self._uncommitted:
            self._change(key, packed, producer_id)
            return
        if producer_id != NO_PRODUCER_ID and packed is not None:
            self._uncommitted_pending[key] = self._uncommitted_pending.get(key, 0) + 1
        self._uncommitted.append(_Change(at, key, packed, producer_id))

    def end_transaction(self, producer_id: ProducerId, at: Offset, *, is_commit: bool) -> None:
        """The log has the marker that ends the producer's transaction."""
        if at <= self._last:
            self._refuse_order(at)
        self._last = at
        self._uncommitted.append(_End(at, producer_id, is_commit))
        self._apply_committed()

    def on_high_watermark(self, high_watermark: Offset) -> None:
        """Everything before it is committed. It never decreases; a smaller one is ignored."""
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            self._apply_committed()

    @property
    def uncommitted_count(self) -> int:
        """Records that were appended and are not committed yet."""
        return len(self._uncommitted)

    def _refuse_order(self, at: int) -> None:
        invariant(False, "I-29 offsets out of the log's order", at=at, last=self._last)

    def _apply_committed(self) -> None:
        uncommitted, high_watermark = self._uncommitted, self._high_watermark
        while uncommitted and uncommitted[0].at < high_watermark:
            change = uncommitted.popleft()
            if isinstance(change, _End):
                self._end(change)
                continue
            _, key, packed, producer_id = change
            if producer_id != NO_PRODUCER_ID and packed is not None:
                self._forget_uncommitted(key)
            self._change(key, packed, producer_id)

    def _forget_uncommitted(self, key: OffsetKey) -> None:
        left = self._uncommitted_pending[key] - 1
        invariant(left >= 0, "I-29 more pending offsets seen than written", key=key)
        if left:
            self._uncommitted_pending[key] = left
        else:
            del self._uncommitted_pending[key]

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
            # The position of the commit in the log decides, not that of the marker: compaction may
            # have removed what was committed in between, but keeps the last commit itself.
            if end.is_commit and (
                before is None or record_offset_of(packed) > record_offset_of(before)
            ):
                self._store.put(key, packed)

    # -- what is committed -----------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Committed offsets."""
        return self._store.count

    def get(self, key: OffsetKey) -> Packed | None:
        """The last committed offset."""
        return self._store.get(key)

    def topics_of(self, group_id: GroupId) -> Topics:
        """All committed offsets of a group."""
        return self._store.topics_of(group_id)

    def group_ids(self) -> set[GroupId]:
        """Groups that have offsets, or will have: of transactions, or not yet committed."""
        uncommitted = (one.key.group_id for one in self._uncommitted_puts())
        return {*self._store.group_ids(), *self._pending.group_ids(), *uncommitted}

    def in_batches(self, size: int) -> Iterator[list[tuple[OffsetKey, Packed]]]:
        """All committed offsets, in batches; they may change between two batches."""
        return self._store.in_batches(size)

    # -- what was written, committed or not: for decisions about the next record -----------------

    def is_unstable(self, key: OffsetKey) -> bool:
        """An open transaction has written it, or one whose end is not committed yet."""
        return self._pending.has(key) or key in self._uncommitted_pending

    def has_open_transaction(self, group_id: GroupId) -> bool:
        """Some transaction has written offsets of the group."""
        return bool(self._pending.keys_of(group_id)) or any(
            key.group_id == group_id for key in self._uncommitted_pending
        )

    def keys_of(self, group_id: GroupId) -> set[OffsetKey]:
        """All keys that a group has, or may have once all that was written is committed.

        A deletion must delete all of them: an uncommitted record would bring its offset back.
        """
        topics = self._store.topics_of(group_id).items()
        keys = {OffsetKey(group_id, topic, one) for topic, those in topics for one in those}
        keys.update(self._pending.keys_of(group_id))
        keys.update(one.key for one in self._uncommitted_puts() if one.key.group_id == group_id)
        return keys

    def known(self, keys: Iterable[OffsetKey]) -> set[OffsetKey]:
        """Those of `keys` that are among the `keys_of` their groups."""
        uncommitted = {one.key for one in self._uncommitted_puts()}
        return {
            key
            for key in keys
            if self._store.get(key) is not None or self.is_unstable(key) or key in uncommitted
        }

    def uncommitted_keys(self) -> set[OffsetKey]:
        """Keys that uncommitted records will change."""
        return {one.key for one in self._uncommitted if isinstance(one, _Change)}

    def topics_written(self, group_id: GroupId) -> Topics:
        """All offsets of a group once all that was written is committed, without transactions."""
        topics = self._store.topics_of(group_id)
        if not self._uncommitted:
            return topics
        written = {name: dict(partitions) for name, partitions in topics.items()}
        for one in self._uncommitted:
            if not isinstance(one, _Change) or one.key.group_id != group_id:
                continue
            _, name, partition = one.key
            if one.packed is None:
                written.get(name, {}).pop(partition, None)
            elif one.producer_id == NO_PRODUCER_ID:
                written.setdefault(name, {})[partition] = one.packed
        return {name: partitions for name, partitions in written.items() if partitions}

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[OffsetKey, Packed]]:
        """Every version of the offsets in these topics, of all groups."""
        names = set(topics)
        for group_id in self._store.group_ids():
            mine = self._store.topics_of(group_id)
            for topic in names & mine.keys():
                for partition, packed in mine[topic].items():
                    yield OffsetKey(group_id, topic, partition), packed
        yield from (pair for pair in self._pending if pair[0].topic in names)
        for one in self._uncommitted_puts():
            if one.packed is not None and one.key.topic in names:
                yield one.key, one.packed

    def _uncommitted_puts(self) -> Iterator[_Change]:
        for one in self._uncommitted:
            if isinstance(one, _Change) and one.packed is not None:
                yield one
