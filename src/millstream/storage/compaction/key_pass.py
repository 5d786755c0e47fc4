"""The first pass: the newest offset of every key in the dirty part, as far as memory goes."""

from array import array
from collections.abc import Sequence

from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET,
    RECORD_COUNT,
    ROW_FIELDS,
)
from millstream.kernels.keymap import KeyMap
from millstream.kernels.records import OFFSET_DELTA, SPAN_FIELDS
from millstream.model.ids import Offset
from millstream.runtime.disk import Disk
from millstream.storage.compaction.batch_edit import OpenBatch, open_batch
from millstream.storage.compaction.source import Pacing, Source, walk
from millstream.storage.compaction.transactions import TransactionTracker
from millstream.storage.producers.producer_log import read_marker
from millstream.storage.segments.batch_attributes import CONTROL_BIT
from millstream.storage.segments.file_walk import WalkStep


class KeyPass:
    """Fills a map from the dirty part of a log, which begins at `first_dirty_offset`."""

    def __init__(
        self,
        key_map: KeyMap,
        transactions: TransactionTracker,
        *,
        first_dirty_offset: Offset,
        decompressed_bytes_max: int,
    ) -> None:
        self._key_map = key_map
        self._transactions = transactions
        self._first_dirty_offset = first_dirty_offset
        self._size_max = decompressed_bytes_max

    def run(self, disk: Disk, sources: Sequence[Source], pacing: Pacing) -> Offset:
        """The offset up to which every record is in the map: the first one that did not fit.

        It may lie inside a batch, so even a map of one entry makes progress.
        """
        for source in sources:
            for step in walk(disk, source, pacing):
                full_at = self._add_step(step)
                if full_at is not None:
                    return full_at
        return sources[-1].end_offset

    def _add_step(self, step: WalkStep) -> Offset | None:
        rows = step.rows
        for row in range(0, len(rows), ROW_FIELDS):
            if rows[row + LAST_OFFSET] < self._first_dirty_offset:
                continue
            if rows[row + ATTRIBUTES] & CONTROL_BIT:
                marker = read_marker(step.buffer, rows, row)
                if marker is not None:
                    self._transactions.on_marker(marker)
            elif not self._transactions.on_batch(rows, row) and rows[row + RECORD_COUNT]:
                full_at = self._add_batch(step.buffer, rows, row)
                if full_at is not None:
                    return full_at
        return None

    def _add_batch(self, view: memoryview, rows: "array[int]", row: int) -> Offset | None:
        batch = open_batch(view, rows, row, self._size_max)
        base_offset = rows[row + BASE_OFFSET]
        spans = self._dirty_spans(batch, base_offset)
        taken = self._key_map.add_spans(batch.payload, spans, base_offset)
        if taken * SPAN_FIELDS == len(spans):
            return None
        return Offset(base_offset + spans[taken * SPAN_FIELDS + OFFSET_DELTA])

    def _dirty_spans(self, batch: OpenBatch, base_offset: int) -> "array[int]":
        """Without those that an earlier cleaning had in its map."""
        spans = batch.spans
        if base_offset >= self._first_dirty_offset:
            return spans
        deltas = spans[OFFSET_DELTA::SPAN_FIELDS]
        clean_count = sum(base_offset + delta < self._first_dirty_offset for delta in deltas)
        return spans[clean_count * SPAN_FIELDS :]
