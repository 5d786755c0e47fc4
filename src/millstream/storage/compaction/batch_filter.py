"""What is kept of a batch: the rules of compaction, one batch at a time.

A record is removed when the map holds a newer one of its key, when its transaction was aborted,
when it has no key, or when it is a tombstone whose delete horizon has passed. What does not change
is copied as it is.

Where we differ from Kafka, and why:
- The horizon is set only in batches that the map covers whole. Kafka also sets it behind the map's
  end; the tombstone could then be removed in the same cleaning as the value it deletes, and a slow
  reader that had seen the value would never see the deletion.
- A marker that is the only record of a producer's epoch is kept whole while the producer is known,
  not as an empty batch, from which a replay learns nothing (I-21).
- The last batch of every new segment stays, empty if need be, so that a segment ends where its
  inputs ended: an interrupted swap then finds all of them, and recovery finds no hole.
"""

from array import array
from collections.abc import Mapping
from typing import Final, NamedTuple

from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
)
from millstream.kernels.keymap import KeyMap
from millstream.model.ids import NO_OFFSET, Offset, ProducerEpoch, ProducerId, TimestampMs
from millstream.runtime.disk import ReadableBuffer
from millstream.storage.compaction import batch_edit
from millstream.storage.compaction.batch_edit import OpenBatch
from millstream.storage.compaction.transactions import TransactionTracker
from millstream.storage.producers.producer_log import read_marker
from millstream.storage.segments.batch_attributes import CODEC_MASK, CONTROL_BIT, INT64_MAX

# What `KeyMap.keep_flags` says of a record, turned into what is kept.
_OUTDATED: Final = 0
_NEWEST: Final = 1
_TOMBSTONE: Final = 3
_DROP_UNKEYED: Final = bytes((0, 1, 0, 3)) + bytes(252)
_DROP_UNKEYED_AND_TOMBSTONES: Final = bytes((0, 1, 0, 0)) + bytes(252)
_KEEP_ONE: Final = b"\1"


class LastRecord(NamedTuple):
    """What must stay of a producer that is still known."""

    last_offset: Offset
    """Of its newest data batch; NO_OFFSET when only a marker has its epoch."""
    epoch: ProducerEpoch


class FilterRules(NamedTuple):
    """The inputs of the rules."""

    now_ms: TimestampMs
    delete_retention_ms: int
    mapped_end: Offset
    """The map holds every newer record below this offset."""
    last_records: Mapping[ProducerId, LastRecord]
    decompressed_bytes_max: int
    compression_levels: Mapping[int, int]
    """By codec, where the topic sets one."""


class BatchFilter:
    """Applies the rules to batches in offset order."""

    def __init__(
        self, rules: FilterRules, key_map: KeyMap, transactions: TransactionTracker
    ) -> None:
        self._rules = rules
        self._key_map = key_map
        self._transactions = transactions
        horizon_ms = min(rules.now_ms + rules.delete_retention_ms, INT64_MAX)
        self._new_horizon_ms = TimestampMs(horizon_ms)

    def apply(
        self, view: memoryview, rows: "array[int]", row: int, *, is_last: bool
    ) -> ReadableBuffer | None:
        """The batch as it is (a memoryview), rewritten (bytes), or None when it is removed.

        With `is_last` at least the empty batch is kept. Raises MalformedRecords, InvalidRecords or
        CorruptRecords.
        """
        if rows[row + ATTRIBUTES] & CONTROL_BIT:
            return self._apply_to_marker(view, rows, row, is_last=is_last)
        is_aborted = self._transactions.on_batch(rows, row)
        raw = batch_edit.raw_batch(view, rows, row)
        if rows[row + BASE_OFFSET] >= self._rules.mapped_end:
            return raw
        must_stay = is_last or self._is_last_of_producer(rows, row)
        if not rows[row + RECORD_COUNT]:
            return raw if must_stay else None
        kept = None if is_aborted else self._newest_of(view, rows, row)
        if kept is None and must_stay:
            return batch_edit.empty_batch(view, rows, row)
        return kept

    def _newest_of(
        self, view: memoryview, rows: "array[int]", row: int
    ) -> memoryview | bytes | None:
        rules = self._rules
        batch = batch_edit.open_batch(view, rows, row, rules.decompressed_bytes_max)
        keep = self._key_map.keep_flags(batch.payload, batch.spans, rows[row + BASE_OFFSET])
        horizon_ms: int | None = None
        if rows[row + LAST_OFFSET] < rules.mapped_end:
            known_ms = batch_edit.delete_horizon(rows, row)
            is_over = known_ms is not None and known_ms <= rules.now_ms
            keep = keep.translate(_DROP_UNKEYED_AND_TOMBSTONES if is_over else _DROP_UNKEYED)
            if known_ms is None and _TOMBSTONE in keep:
                horizon_ms = self._horizon_for(rows, row, batch)
        gone_count = keep.count(_OUTDATED)
        if gone_count == len(keep):
            return None
        if not gone_count and horizon_ms is None:
            return batch_edit.raw_batch(view, rows, row)
        level = rules.compression_levels.get(rows[row + ATTRIBUTES] & CODEC_MASK)
        return batch_edit.thin_batch(
            view, rows, row, batch, keep, horizon_ms=horizon_ms, level=level
        )

    def _apply_to_marker(
        self, view: memoryview, rows: "array[int]", row: int, *, is_last: bool
    ) -> ReadableBuffer | None:
        rules = self._rules
        raw = batch_edit.raw_batch(view, rows, row)
        if not rows[row + RECORD_COUNT]:
            return raw if is_last else None
        marker = read_marker(view, rows, row)
        if marker is None:
            return raw  # another kind of control record, which must not be removed
        is_spent = self._transactions.on_marker(marker)
        if rows[row + LAST_OFFSET] >= rules.mapped_end or not is_spent:
            return raw
        if self._is_last_of_producer(rows, row):
            return raw
        horizon_ms = batch_edit.delete_horizon(rows, row)
        if horizon_ms is None:
            batch = batch_edit.open_batch(view, rows, row, rules.decompressed_bytes_max)
            horizon_ms = self._horizon_for(rows, row, batch)
            if horizon_ms is None:
                return raw
            keep = bytearray(_KEEP_ONE * rows[row + RECORD_COUNT])
            return batch_edit.thin_batch(view, rows, row, batch, keep, horizon_ms=horizon_ms)
        if horizon_ms > rules.now_ms:
            return raw
        return batch_edit.empty_batch(view, rows, row) if is_last else None

    def _horizon_for(self, rows: "array[int]", row: int, batch: OpenBatch) -> TimestampMs | None:
        """None where the records' own timestamps would be lost: those are kept forever."""
        horizon_ms = self._new_horizon_ms
        return horizon_ms if batch_edit.fits_horizon(horizon_ms, rows, row, batch) else None

    def _is_last_of_producer(self, rows: "array[int]", row: int) -> bool:
        """Whether the state of a known producer could not be rebuilt without this batch."""
        last = self._rules.last_records.get(ProducerId(rows[row + PRODUCER_ID]))
        if last is None:
            return False
        if last.last_offset != NO_OFFSET:
            return rows[row + LAST_OFFSET] == last.last_offset
        is_marker = bool(rows[row + ATTRIBUTES] & CONTROL_BIT)
        return is_marker and rows[row + PRODUCER_EPOCH] == last.epoch
