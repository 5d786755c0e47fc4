"""A log that can be made durable and closed: jobs for another thread, or blocking."""

from collections.abc import Sequence
from itertools import islice

from millstream.model.errors import DiskFull, OperatingError, StorageFailed
from millstream.storage.config import FOREVER
from millstream.storage.flush import (
    SEGMENTS_PER_FLUSH_MAX,
    FlushJob,
    abandon_together,
    begin_together,
    finish_together,
    run_jobs,
)
from millstream.storage.log.base import LogBase


class DurableLog(LogBase):
    """Adds flushing: begun and finished by the owner, while another thread does the sync."""

    @property
    def is_flush_due(self) -> bool:
        """Whether `flush.messages` requires one, or a roll left a closed segment unsynced."""
        return self._unflushed_records >= self.config.flush_messages or (
            self._recovery_point < self._segments.active.base_offset
        )

    def is_flush_due_at(self, now_s: float) -> bool:
        """The same, or `flush.ms` has passed."""
        if self.is_flush_due:
            return True
        flush_ms = self.config.flush_ms
        if flush_ms == FOREVER or self._recovery_point >= self._log_end:
            return False
        return (now_s - self.last_flush_s) * 1000 >= flush_ms

    def begin_flush(self, *, is_closing: bool = False) -> FlushJob | None:
        """What must be synced for everything appended so far to be durable; None if nothing.

        Closing includes the active segment's indexes: a clean start trusts them. Where that means
        many segments the job covers the oldest, and the caller calls this again after it.
        """
        self._context.owner.check_usable()
        if self._failure is not None:
            raise StorageFailed(self._context.directory, self._failure)
        active = self._segments.active
        is_index_due = is_closing and (
            active.has_unsynced_indexes or self.producers.has_unsynced_names
        )
        is_due = self._recovery_point < self._log_end or self._epochs.dirty or is_index_due
        if not is_due or self._epoch_file.is_retired:
            return None
        disk = self._context.owner.disk
        job = FlushJob(disk, self._epoch_file, self._log_end, self._truncations)
        job.active_base = active.base_offset
        if is_index_due or not self._are_names_synced:
            job.directory = self._context.directory
        if is_closing:
            self.producers.has_unsynced_names = False
        try:
            self._add_segments(job, is_index_due=is_index_due)
        except OSError:
            job.release()
            raise
        if self._epochs.dirty:
            job.epochs = self._epoch_file.image(self._epochs)
        return job

    def _add_segments(self, job: FlushJob, *, is_index_due: bool) -> None:
        active, end = self._segments.active, None
        number = self._segments.number_at(self._recovery_point)
        for segment in islice(self._segments.from_number(number), SEGMENTS_PER_FLUSH_MAX):
            job.add_log(segment.log)
            if segment is not active or is_index_due:
                job.index_paths += segment.file_paths()[1:]
            end = self._segments.end_of(segment)
        if end is not None:
            job.end_offset, job.is_whole = end, False
        job.snapshots = self.producers.unsynced_snapshots(job.end_offset)
        job.index_paths += map(self.producers.snapshot_path, job.snapshots)

    def finish_flush(self, job: FlushJob) -> None:
        """The job succeeded: what it covered is durable."""
        if job.truncations != self._truncations:
            return
        self.producers.note_synced(job.snapshots)
        end = job.end_offset
        if self._segments.active.base_offset != job.active_base:
            # Rolled since: the indexes that then became final were not synced with the data.
            end = min(end, job.active_base)
        self._recovery_point = max(self._recovery_point, end)
        self._are_names_synced = self._segments.active.log in job.synced
        self._unflushed_records = self._log_end - job.end_offset
        self.last_flush_s = self._context.clock.monotonic_s()
        self._check()

    def abandon_flush(self, job: FlushJob) -> None:
        """The job failed, or was not run."""
        self._epochs.dirty |= job.epochs is not None

    def flush(self, *, is_closing: bool = False) -> None:
        """Make everything durable now, blocking."""
        self.check_health()
        is_whole = False
        while not is_whole:
            job = self._begin_blocking(is_closing=is_closing)
            if job is None:
                return
            try:
                job.run()
            except (OSError, OperatingError) as error:
                self.abandon_flush(job)
                if isinstance(error, OSError):
                    raise self._context.owner.flush_failed(error) from error
                if isinstance(error, DiskFull):
                    raise self._context.owner.full() from error
                raise
            finally:
                job.release()
            self.finish_flush(job)
            is_whole = job.is_whole

    def _begin_blocking(self, *, is_closing: bool) -> FlushJob | None:
        try:
            return self.begin_flush(is_closing=is_closing)
        except OSError as error:
            raise self._context.owner.flush_failed(error) from error

    def close(self) -> None:
        """Flush, write what makes the next start quick, release the files."""
        self.prepare_close()
        self.flush(is_closing=True)
        self.release()

    def prepare_close(self) -> None:
        """The part of `close` that does not wait for the disk."""
        self.slot.write_staged()
        self._segments.active.save_indexes()
        if self._log_end > self._log_start:
            self.producers.save_snapshot(self._log_end)

    def release(self) -> None:
        """Release memory and descriptors without writing anything."""
        if self.maintenance is not None:
            self.maintenance.abandon()
        self._is_released = True
        self.slot.write_staged()  # refused by now: what was staged is answered as not written
        self._forget_limits()
        self._epoch_file.retire()
        for segment in self._segments:
            segment.forget()


def close_together(logs: Sequence[DurableLog]) -> None:
    """Close many logs of one directory; their syncs run in parallel."""
    for log in logs:
        log.prepare_close()
    waiting = list(logs)
    while waiting:
        begun = begin_together(waiting, is_closing=True)
        try:
            run_jobs([job for _, job in begun if job is not None])
        except BaseException:
            abandon_together(begun)
            raise
        waiting = waiting[len(begun) :] + finish_together(begun)
    for log in logs:
        log.release()
