"""The work of one cleaning, for a thread that does not see the log's changing state.

All inputs are values taken by the owner. One call at a time, first `map_keys`, then `write_next`
until it returns None; between two calls the owner swaps in what was written, so the disk space
needed is that of one segment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millstream.kernels.batches import (
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    ROW_FIELDS,
    SIZE,
)
from millstream.kernels.keymap import ENTRY_BYTES, KeyMap
from millstream.model.ids import NO_TIMESTAMP, Offset, ProducerId, TimestampMs
from millstream.model.invariant import invariant
from millstream.model.limits import SEGMENT_POSITION_MAX
from millstream.runtime.disk import Disk, ReadableBuffer
from millstream.storage.compaction.batch_edit import COUNT_AT, raw_batch
from millstream.storage.compaction.batch_filter import BatchFilter, FilterRules, LastRecord
from millstream.storage.compaction.key_pass import KeyPass
from millstream.storage.compaction.output import Output, remove_leftovers
from millstream.storage.compaction.source import OutputLimits, Pacing, Source, group_sources, walk
from millstream.storage.compaction.transactions import TransactionTracker, collect_aborted
from millstream.storage.segments.file_walk import WalkStep


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningInput:
    """Everything a cleaning needs, as it was when it was planned."""

    disk: Disk
    directory: str
    sources: Sequence[Source]
    """Every closed segment from the log's first to the end of the dirty part."""
    first_dirty_offset: Offset
    txn_index_paths: Sequence[str]
    """One per source, then those of all later segments of the log."""
    last_records: Mapping[ProducerId, LastRecord]
    now_ms: TimestampMs
    delete_retention_ms: int
    limits: OutputLimits
    decompressed_bytes_max: int
    compression_levels: Mapping[int, int]
    key_map_bytes: int
    hash_key: bytes


@dataclass(slots=True)
class CleaningStats:
    """What a cleaning did, for the operator."""

    key_count: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0


class CleanedGroup(NamedTuple):
    """A new segment on disk and the ones it replaces."""

    sources: Sequence[Source]
    size_bytes: int
    is_unchanged: bool
    """Nothing was removed and nothing merged; there is nothing to swap."""

    @property
    def base_offset(self) -> Offset:
        return self.sources[0].base_offset


class CleaningJob:
    """See the module's docstring. Raises OSError, CleaningCancelled, and for a corrupt log
    MalformedRecords, InvalidRecords, CorruptRecords or IndexDamaged.
    """

    def __init__(self, work: CleaningInput, pacing: Pacing) -> None:
        self._work = work
        self._pacing = pacing
        self._filter: BatchFilter | None = None
        self._transactions = TransactionTracker(())
        self._groups: list[list[Source]] = []
        self._written_base: Offset | None = None
        self.mapped_end = work.first_dirty_offset
        """Where the next cleaning begins, once all of this one is swapped in."""
        self.stats = CleaningStats()

    def map_keys(self) -> None:
        """The first pass."""
        self._pacing.cancel.check()
        work = self._work
        first, end = work.first_dirty_offset, work.sources[-1].end_offset
        key_map = KeyMap(self._map_bytes(first, end), work.hash_key)
        dirty_from = next(n for n, one in enumerate(work.sources) if one.end_offset > first)
        paths = work.txn_index_paths
        aborted = collect_aborted(work.disk, paths[dirty_from:], first, end)
        keys = KeyPass(
            key_map,
            TransactionTracker(aborted),
            first_dirty_offset=first,
            decompressed_bytes_max=work.decompressed_bytes_max,
        )
        self.mapped_end = keys.run(work.disk, work.sources[dirty_from:], self._pacing)
        invariant(
            first < self.mapped_end <= end,
            "I-37 a cleaning made no progress",
            first=first,
            mapped_end=self.mapped_end,
            end=end,
        )
        self.stats.key_count = len(key_map)
        self._prepare_second_pass(key_map)

    def _prepare_second_pass(self, key_map: KeyMap) -> None:
        work = self._work
        covered = [one for one in work.sources if one.base_offset < self.mapped_end]
        start, end = covered[0].base_offset, covered[-1].end_offset
        aborted = collect_aborted(work.disk, work.txn_index_paths, start, end)
        self._transactions = TransactionTracker(aborted)
        rules = FilterRules(
            work.now_ms,
            work.delete_retention_ms,
            self.mapped_end,
            work.last_records,
            work.decompressed_bytes_max,
            work.compression_levels,
        )
        self._filter = BatchFilter(rules, key_map, self._transactions)
        self._groups = group_sources(covered, work.limits)

    def write_next(self) -> CleanedGroup | None:
        """Clean the next group of segments into a new one, durable but not yet in use."""
        self._pacing.cancel.check()
        batch_filter = self._filter
        if batch_filter is None or not self._groups:
            self._filter = None  # the map's memory goes back now, not with the job
            return None
        work, sources = self._work, self._groups.pop(0)
        self._written_base = sources[0].base_offset
        is_unchanged = len(sources) == 1
        interval = work.limits.index_interval_bytes
        with Output(
            work.disk, work.directory, sources[0].base_offset, index_interval_bytes=interval
        ) as output:
            left_bytes = sum(source.size_bytes for source in sources)
            aged_since_ms: int | None = None
            for source in sources:
                newest_ms: int = NO_TIMESTAMP
                for step in walk(work.disk, source, self._pacing):
                    newest_ms = max(newest_ms, _newest_ms(step))
                    stop = step.rows[POSITION - ROW_FIELDS] + step.rows[SIZE - ROW_FIELDS]
                    left_bytes -= stop
                    is_unchanged &= self._write_step(step, batch_filter, output, left_bytes)
                aged_since_ms = self._age_with(source, newest_ms, aged_since_ms)
            size_bytes = output.size_bytes
            if not is_unchanged:
                output.finish(aged_since_ms=aged_since_ms)
        if is_unchanged:
            self.remove_leftovers()
        return CleanedGroup(sources, size_bytes, is_unchanged)

    def _age_with(self, source: Source, newest_ms: int, aged_since_ms: int | None) -> int | None:
        """The time from which the output's age is measured, a further source included: removed
        records take their timestamps along, and the rest must not become younger by that.
        """
        since_ms: int | None = newest_ms
        if newest_ms == NO_TIMESTAMP:
            since_ms = self._work.disk.modified_ms(source.path)
        known = [one for one in (since_ms, aged_since_ms) if one is not None]
        return max(known, default=None)

    def remove_leftovers(self) -> None:
        """Remove what was written last and will not be used."""
        if self._written_base is not None:
            remove_leftovers(self._work.disk, self._work.directory, self._written_base)

    def _write_step(
        self, step: WalkStep, batch_filter: BatchFilter, output: Output, left_bytes: int
    ) -> bool:
        """Filter some batches into the output; whether all of them stayed as they were."""
        rows, size_before = step.rows, output.size_bytes
        read_bytes = rows[POSITION - ROW_FIELDS] + rows[SIZE - ROW_FIELDS]
        spare_bytes = SEGMENT_POSITION_MAX - size_before - read_bytes - left_bytes
        batches = self._filter_step(step, batch_filter, spare_bytes, has_last=not left_bytes)
        is_unchanged = len(batches) * ROW_FIELDS == len(rows) and all(
            isinstance(batch, memoryview) for batch in batches
        )
        if is_unchanged:
            batches = [step.buffer[:read_bytes]]
        output.append(batches, self._transactions.take_retained())
        written_bytes = output.size_bytes - size_before
        self.stats.bytes_read += read_bytes
        self.stats.bytes_written += written_bytes
        self._pacing.throttle.spend(written_bytes, self._pacing.cancel)
        return is_unchanged

    def _filter_step(
        self, step: WalkStep, batch_filter: BatchFilter, spare_bytes: int, *, has_last: bool
    ) -> list[ReadableBuffer]:
        rows = step.rows
        batches: list[ReadableBuffer] = []
        for row in range(0, len(rows), ROW_FIELDS):
            is_last = has_last and row + ROW_FIELDS == len(rows)
            kept = batch_filter.apply(step.buffer, rows, row, is_last=is_last)
            growth_bytes = (len(kept) if kept is not None else 0) - rows[row + SIZE]
            if growth_bytes > max(0, spare_bytes):
                # A new horizon can make a batch larger; a segment must not outgrow its index.
                kept, growth_bytes = raw_batch(step.buffer, rows, row), 0
            spare_bytes -= growth_bytes
            if kept is not None:
                batches.append(kept)
                self.stats.records_kept += int.from_bytes(kept[COUNT_AT : COUNT_AT + 4], "big")
            self.stats.records_read += rows[row + RECORD_COUNT]
        return batches

    def _map_bytes(self, first: Offset, end: Offset) -> int:
        """No more than the records could need: most dirty parts are far below the limit."""
        needed = ((end - first) * 10 // 9 + 2) * ENTRY_BYTES
        return min(self._work.key_map_bytes, needed)


def _newest_ms(step: WalkStep) -> int:
    """The largest timestamp of these batches' records."""
    stamps, counts = step.rows[MAX_TIMESTAMP::ROW_FIELDS], step.rows[RECORD_COUNT::ROW_FIELDS]
    return max(
        (stamp for stamp, count in zip(stamps, counts, strict=True) if count), default=NO_TIMESTAMP
    )
