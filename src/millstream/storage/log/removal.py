"""A log that loses its end by truncation and its beginning by retention.

Order on disk is chosen so that a crash at any point leaves a prefix, never a hole (I-11):
- before segments go at the front, the new start is in the log-start checkpoint;
- before the end is truncated, the recovery point is lowered, then segments go newest first.
"""

from itertools import islice

from millstream.model.errors import (
    OffsetOutOfRange,
)
from millstream.model.ids import Offset, TimestampMs
from millstream.model.invariant import invariant
from millstream.storage import names
from millstream.storage.epochs import save_image
from millstream.storage.log.relocation import MovableLog
from millstream.storage.retention import (
    LogFacts,
    RetentionPlan,
    RetentionRules,
    SegmentFacts,
    plan_deletion,
)
from millstream.storage.segments.segment import Segment
from millstream.storage.segments.sparse_index import unless_full


class TruncatableLog(MovableLog):
    """Adds truncation and retention."""

    # -- truncate --------------------------------------------------------------------------

    def truncate_to(self, end_offset: Offset, *, is_unclean: bool = False) -> Offset:
        """Cut off everything from the batch that holds `end_offset` on, durably.

        Returns the new log end, which is lower than `end_offset` if that lay inside a batch.
        `is_unclean` is the record of an unclean election: only then may it go below the high
        watermark (I-08).
        """
        self._check_open()
        self.slot.write_staged()
        self._forget_limits()
        if end_offset >= self._log_end:
            return self._log_end
        if end_offset < self._log_start:
            raise OffsetOutOfRange(requested=end_offset, start=self._log_start, end=self._log_end)
        segment = self._segments.at(end_offset)
        try:
            segment.check_transactions()
            new_end, position = self._cut_point(segment, end_offset)
            invariant(
                is_unclean or new_end >= self._high_watermark,
                "I-08 truncation below the high watermark without an unclean election",
                new_end=new_end,
                high_watermark=self._high_watermark,
                partition=self.partition,
            )
            self._before_truncation(new_end)
            self._remove_newest_first(segment)
            segment.truncate(end_offset=new_end, end_position=position)
            self._after_truncation(new_end)
        except OSError as error:
            raise self.failed(error) from error
        return new_end

    def truncate_fully(self, start_offset: Offset) -> None:
        """Drop everything and start again at `start_offset`: the leader's log starts later."""
        self._check_open()
        self.slot.write_staged()
        self._forget_limits()
        try:
            self._before_truncation(min(start_offset, self._log_start))
            self._context.owner.store(names.LOG_STARTS, {self.partition: start_offset})
            old = list(self._segments)
            self._segments.remove(old)
            for segment in reversed(old):
                self._discard(segment)
            self._context.owner.disk.sync_directory(self._context.directory)
            self.producers.delete_all_snapshots()
            self._segments.add(Segment.create(self._segment_context(), start_offset))
            self._context.owner.disk.sync_directory(self._context.directory)
            self._log_start = start_offset
            self._epochs.clear()
            self._after_truncation(start_offset)
        except OSError as error:
            raise self.failed(error) from error

    def _cut_point(self, segment: Segment, end_offset: Offset) -> tuple[Offset, int]:
        location = segment.find_offset(end_offset)
        position = segment.size_bytes if location is None else location.position
        # Not simply `end_offset`: it may lie inside a batch, which goes as a whole, or in a gap.
        return max(self._log_start, segment.end_before(position)), position

    def _before_truncation(self, new_end: Offset) -> None:
        """After a crash, recovery must check everything that the truncation touches, and what is
        removed must not be taken as replicated when other records take its place.
        """
        self._truncations += 1
        if self.maintenance is not None:
            self.maintenance.wind_down()
        self.first_dirty_offset = min(self.first_dirty_offset, new_end)
        # The segment that is cut gets new indexes, which are not synced before it is closed.
        cut_base = min(new_end, self._segments.at(new_end).base_offset)
        for name, highest in (
            (names.RECOVERY_POINTS, cut_base),
            (names.HIGH_WATERMARKS, new_end),
            (names.CLEANER_OFFSETS, new_end),
        ):
            self._context.owner.lower(name, self.partition, highest)

    def _remove_newest_first(self, last_kept: Segment) -> None:
        disk, directory = self._context.owner.disk, self._context.directory
        for segment in reversed(list(self._segments)):
            if segment is last_kept:
                return
            self._segments.remove([segment])
            self._discard(segment)
            # One by one: if a crash kept a newer segment but not an older one, there would be a
            # hole that could not be distinguished from compaction's gaps.
            disk.sync_directory(directory)

    def _after_truncation(self, new_end: Offset) -> None:
        self._log_end = new_end
        self._recovery_point = max(self._log_start, min(self._recovery_point, new_end))
        self._high_watermark = max(self._log_start, min(self._high_watermark, new_end))
        self._epochs.truncate_from_end(new_end)
        image = self._epoch_file.image(self._epochs)
        with unless_full():
            self._epochs.dirty = True  # until it is written
            save_image(self._context.owner.disk, image)
            self._epochs.dirty = False
        self.producers.rebuild(self._segments, self._log_start, new_end)
        # A snapshot that came back after a power loss would restore producers of removed records.
        self._context.owner.disk.sync_directory(self._context.directory)
        self.producers.states.on_high_watermark(self._high_watermark)
        self._unflushed_records = 0
        self._active_since_s = self._context.clock.monotonic_s()
        self._check()

    # -- retention -------------------------------------------------------------------------

    def plan_retention(self, now_ms: TimestampMs) -> RetentionPlan:
        """Which of the oldest segments may be deleted now."""
        facts = [
            SegmentFacts(one.base_offset, one.size_bytes, one.largest_timestamp().timestamp_ms)
            for one in self._segments
        ]
        config = self.config
        rules = RetentionRules(
            is_delete_enabled=config.cleanup_delete,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
        )
        stamped = self._ages.with_timestamps(facts, now_ms, self._modified_ms)
        log = LogFacts(stamped, self._log_start, self._high_watermark, self._log_end)
        return plan_deletion(log, rules, now_ms)

    def _modified_ms(self, base_offset: Offset) -> int | None:
        return self._context.owner.disk.modified_ms(self._segments.at(base_offset).log.path)

    def begin_retention(self, plan: RetentionPlan) -> None:
        """Move the log start as planned; the caller then stores the log starts, then removes."""
        if plan.is_roll_needed:
            try:
                self.roll()
            except OSError as error:
                raise self.refused(error) from error
        self.advance_log_start(plan.new_log_start)

    def remove_segments_below_start(self, count_max: int | None = None) -> int:
        """Remove the oldest segments that lie wholly below the log start and the stored one.

        At most `count_max` of them; returns how many.

        Below both: what was not stored would be back after a crash, and a start that was stored
        for another request is not the log's before that request is done (I-05).
        """
        stored = self._context.owner.stored(names.LOG_STARTS, self.partition) or Offset(0)
        limit = min(stored, self._log_start)
        below = (one for one in self._segments.closed if self._end_of(one) <= limit)
        gone = list(islice(below, count_max))
        self._segments.remove(gone)
        for segment in gone:
            self._discard(segment)
        self.producers.delete_snapshots_below(self._segments)
        return len(gone)

    def make_room(self) -> int:
        """Remove segments below the log start without having stored it: the disk is full.

        One by one, oldest first and each durably, so that a crash leaves no hole; how many.
        """
        if self.maintenance is not None:
            # Its old files would come back after a crash, on their own.
            self.maintenance.wind_down()
        disk = self._context.owner.disk
        gone = [one for one in self._segments.closed if self._end_of(one) <= self._log_start]
        for segment in gone:
            self._segments.remove([segment])
            paths = segment.change_state(names.DELETED)
            segment.forget()
            disk.sync_directory(self._context.directory)
            for path in paths:
                disk.remove(path)
        self.producers.delete_snapshots_below(self._segments)
        return len(gone)

    def _end_of(self, segment: Segment) -> Offset:
        end = self._segments.end_of(segment)
        return self._log_end if end is None else end
