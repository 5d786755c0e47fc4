"""Opening the log of one partition: quickly after a clean stop, after a crash with recovery.

Rebuilt or cut to fit, in this order: leftovers and interrupted swaps (`storage/recovery/tidy.py`),
stray segment files (`storage/recovery/strays.py`), segments below the log start, segments above the
recovery point (`storage/recovery/crash_recovery.py`), leader epochs at both ends, stray snapshots,
producer state.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from millstream.kernels.errors import Reason
from millstream.model.errors import (
    CorruptRecords,
    OperatingError,
    TooManyOpenFiles,
)
from millstream.model.ids import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from millstream.runtime.disk import LinkRefused, NotAFile, is_disk_full, write_atomically
from millstream.storage import names
from millstream.storage.config import LogConfig
from millstream.storage.directories.checkpoints import CorruptCheckpoint
from millstream.storage.directories.log_directory import is_descriptor_shortage
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.log.base import LogContext, LogState
from millstream.storage.log.log import Log
from millstream.storage.producers.producer_log import ProducerLog
from millstream.storage.recovery.crash_recovery import RecoveryResult, recover_segment
from millstream.storage.recovery.strays import end_of_batches, find_strays, set_aside
from millstream.storage.recovery.tidy import PartitionFiles, tidy
from millstream.storage.segments.segment import Segment, SegmentContext, plausible_rows
from millstream.storage.segments.segment_list import Segments
from millstream.storage.segments.sparse_index import IndexDamaged

NO_RECORDS: Final = Offset(0)


@dataclass(slots=True)
class LoadReport:
    """What opening the log had to do, for the operator."""

    finished_swaps: int = 0
    recovered_segments: int = 0
    recovered_bytes: int = 0
    cut_bytes: int = 0
    cut_reason: Reason = Reason.NONE
    dropped_segments: int = 0
    is_epoch_file_rebuilt: bool = False
    set_aside: list[str] = field(default_factory=list)
    """Files of segments that do not continue the log, by their new names."""
    log_end: Offset = NO_RECORDS
    stored_high_watermark: Offset = NO_RECORDS
    """As it was stored before: what is below it was committed."""
    lost_end: Offset = NO_RECORDS
    """After the last record that is known to have been in the log."""

    @property
    def lost_records(self) -> int:
        """Records at the log's end that are known to have been in it and are gone."""
        return max(0, max(self.lost_end, self.stored_high_watermark) - self.log_end)

    @property
    def has_lost(self) -> bool:
        """Whether records are gone from the log's end; perhaps fewer than a whole batch."""
        return self.lost_records > 0 or self.cut_bytes > 0


def make_log_file(context: LogContext) -> None:
    """What an empty log has on disk, in its directory that was just made; the caller syncs it."""
    path = names.segment_path(context.directory, Offset(0), names.LOG)
    with context.owner.disk.open_write(path) as file:
        file.truncate(0)


def new_log(context: LogContext, config: LogConfig) -> Log:
    """The empty log whose file `make_log_file` made. The disk is not touched."""
    segment_context = SegmentContext(
        context.directory, context.files, context.cache, config.index_interval_bytes
    )
    segment = Segment(segment_context, Offset(0))
    segment.start_indexes()
    start = Offset(0)
    state = LogState(
        Segments([segment]),
        LeaderEpochs(),
        ProducerLog(context.owner.disk, context.directory),
        log_start=start,
        log_end=start,
        recovery_point=start,
        high_watermark=start,
    )
    return Log(context, config, state)


def load_log(
    context: LogContext, config: LogConfig, *, is_clean: bool, report: LoadReport | None = None
) -> Log:
    """Open the log in `context.directory`, created empty where it is missing.

    Raises OSError; DiskFull where something must be written for the log to be right and there is
    no room for it, TooManyOpenFiles, and CorruptRecords for a pipe, a directory or a link
    in place of a file: this log then cannot be used before the next start, the others can.
    """
    loader = _Loader(context, config, report or LoadReport())
    disk = context.owner.disk
    try:
        if disk.is_link(context.directory):
            raise LinkRefused(context.directory)
        if not disk.exists(context.directory):
            disk.make_directories(context.directory)
            disk.sync_directory(context.owner.path)
        return Log(context, config, loader.run(is_clean=is_clean))
    except OSError as error:
        trouble = _as_partition_error(error, context)
        if trouble is None:
            raise
        raise trouble from error


def _as_partition_error(error: OSError, context: LogContext) -> OperatingError | None:
    """The error for this partition, if it is not a failure of the whole directory."""
    if is_disk_full(error):
        return context.owner.full()
    if is_descriptor_shortage(error):
        return TooManyOpenFiles(f"{error.strerror} ({error.filename or context.directory})")
    if isinstance(error, NotAFile):
        return CorruptRecords(f"{error.filename} is {error.strerror}")
    if isinstance(error, IsADirectoryError):
        return CorruptRecords(f"{error.filename or context.directory} is not a regular file")
    return None


class _Loader:
    """Runs the steps of loading; holds what they pass to each other."""

    def __init__(self, context: LogContext, config: LogConfig, report: LoadReport) -> None:
        self._context = context
        self._disk = context.owner.disk
        self._report = report
        self._segment_context = SegmentContext(
            context.directory, context.files, context.cache, config.index_interval_bytes
        )
        self._producers = ProducerLog(self._disk, context.directory)
        self._epochs = LeaderEpochs()
        self._epochs_path = f"{context.directory}/{names.LEADER_EPOCHS}"
        self._newest_stored_epoch = NO_OFFSET
        """Where the newest epoch in the file begins."""
        self._is_epoch_file_lost = False
        self._newest_epoch: LeaderEpoch | None = None
        """Of the last batch, as recovery found it."""
        self._tail_end = Offset(0)
        """Behind the last batch, where the newest segment is sound."""

    def run(self, *, is_clean: bool) -> LogState:
        self._report.stored_high_watermark = self._stored(names.HIGH_WATERMARKS)
        state = self._load(is_clean=is_clean)
        self._report.log_end = state.log_end
        return state

    def _load(self, *, is_clean: bool) -> LogState:
        files = tidy(self._disk, self._context.directory)
        self._report.finished_swaps = files.finished_swaps
        recovery_point = None if is_clean else self._stored(names.RECOVERY_POINTS)
        self._producers.adopt_snapshots(files.snapshots, recovery_point=recovery_point)
        self._load_epochs()
        segments = self._without_strays(self._open_segments(files), is_clean=is_clean)
        stored_start = self._stored(names.LOG_STARTS)
        segments = self._drop_below(segments, stored_start)
        first = segments[0].base_offset if segments else stored_start
        log_start = max(stored_start, first)
        if not segments:
            return self._start_empty(log_start)
        number, is_trusted = self._trusted_count(segments, is_clean=is_clean)
        if is_trusted:
            log_end = self._tail_end
        else:
            segments, log_end = self._recover(segments, number)
        if log_end < log_start:
            # The log starts after everything that survived: nothing of it may be read again.
            self._drop(segments)
            return self._start_empty(log_start)
        return self._finish(segments, log_start, log_end, is_clean=is_clean)

    def _stored(self, name: str) -> Offset:
        return self._context.owner.stored(name, self._context.partition) or Offset(0)

    def _load_epochs(self) -> None:
        try:
            self._epochs = LeaderEpochs.load(self._disk, self._epochs_path)
        except CorruptCheckpoint:
            self._is_epoch_file_lost = True
        if self._epochs:
            self._newest_stored_epoch = self._epochs.entries()[-1].start_offset
        elif not self._disk.exists(self._epochs_path):
            self._is_epoch_file_lost = True

    def _open_segments(self, files: PartitionFiles) -> list[Segment]:
        segments = []
        for base in sorted(files.log_sizes):
            segment = Segment(self._segment_context, base)
            segment.size_bytes = files.log_sizes[base]
            segments.append(segment)
        return segments

    def _without_strays(self, segments: list[Segment], *, is_clean: bool) -> list[Segment]:
        stored = self._context.owner.stored(names.RECOVERY_POINTS, self._context.partition)
        active_base = None if not is_clean or stored is None else stored
        strays = find_strays(segments, active_base=active_base)
        self._set_aside(strays)
        return [one for one in segments if one not in strays]

    def _set_aside(self, segments: list[Segment]) -> None:
        """Newest first: after a crash in between, those that are left must have no hole."""
        for segment in reversed(segments):
            self._report.set_aside.append(set_aside(self._disk, segment))
            self._disk.sync_directory(self._context.directory)

    def _drop_below(self, segments: list[Segment], log_start: Offset) -> list[Segment]:
        """Retention stored the new start before it removed files: finish what it began."""
        keep = 0
        while keep + 1 < len(segments) and segments[keep + 1].base_offset <= log_start:
            keep += 1
        self._drop(segments[:keep])
        return segments[keep:]

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            for path in segment.file_paths():
                if self._disk.exists(path):
                    self._disk.remove(path)
            segment.forget()
            self._report.dropped_segments += 1

    # -- trust or recover ------------------------------------------------------------------

    def _trusted_count(self, segments: list[Segment], *, is_clean: bool) -> tuple[int, bool]:
        """(number of the first segment to recover, whether none has to be)."""
        last = len(segments) - 1
        if not any(segment.size_bytes for segment in segments):
            self._is_epoch_file_lost = False  # there was nothing to note yet
        if is_clean and self._is_tail_sound(segments[last]) and not self._is_epoch_file_lost:
            return last, True
        if self._is_epoch_file_lost:
            return 0, False
        if is_clean:
            return last, False
        recovery_point = self._stored(names.RECOVERY_POINTS)
        return Segments(segments).number_at(recovery_point), False

    def _is_tail_sound(self, segment: Segment) -> bool:
        """Whether the newest segment ends with a whole batch, as a clean stop leaves it."""
        if not segment.size_bytes:
            segment.start_indexes()
            self._tail_end = segment.base_offset
            return True
        try:
            segment.offset_index.start_writing()
            segment.time_index.start_writing()
            segment.largest_timestamp()
        except (IndexDamaged, CorruptRecords, FileNotFoundError):
            return False
        position = segment.offset_index.last_position()
        if position >= segment.size_bytes:
            return False
        walk = segment.walk(position)
        last_offset = segment.base_offset - 1
        for step in walk:
            expected = Offset(last_offset + 1)
            rows = plausible_rows(step.rows, base_offset=segment.base_offset, expected=expected)
            if len(rows) < len(step.rows):
                return False
            last_offset = Offset(step.last_offset)
        self._tail_end = Offset(last_offset + 1)
        is_whole = walk.reason is Reason.NONE and walk.valid_end == segment.size_bytes
        return is_whole and segment.largest_timestamp().offset <= last_offset

    def _recover(self, segments: list[Segment], number: int) -> tuple[list[Segment], Offset]:
        start = segments[number].base_offset
        if self._is_epoch_file_lost:
            self._report.is_epoch_file_rebuilt = True
        self._producers.rebuild(Segments(segments[: number + 1]), Offset(0), start)
        end, epoch = start, self._epoch_before(segments, number)
        kept: list[Segment] = []
        for position, segment in enumerate(segments[number:], number):
            if position > number and segment.base_offset < end:
                self._set_aside([segment])  # the one before it reaches beyond its beginning
                continue
            if position > number and self._is_after_hole(segment, end):
                self._report.cut_reason = Reason.OFFSETS
                self._cut_segments(segments[position:])
                break
            if kept:
                kept[-1].stop_recovering()
            kept.append(segment)
            outcome = recover_segment(
                segment,
                max(end, segment.base_offset),
                epoch,
                epochs=self._epochs,
                producers=self._producers,
            )
            self._note(segment, outcome)
            end, epoch = outcome.end_offset, outcome.epoch
            if outcome.bytes_cut:
                self._cut_segments(segments[position + 1 :])
                break
        self._newest_epoch = epoch
        return segments[:number] + kept, end

    def _epoch_before(self, segments: list[Segment], number: int) -> LeaderEpoch:
        """Epoch of the last batch before that segment; NO_LEADER_EPOCH when that is not known.

        If the file has a lower one, that is taken: damage to one of them must not make sound
        batches look outdated.
        """
        found = NO_LEADER_EPOCH
        before = [segment for segment in segments[:number] if segment.size_bytes]
        with suppress(CorruptRecords):
            found = before[-1].newest_epoch() if before else found
        stored = self._epochs.epoch_at(Offset(segments[number].base_offset - 1))
        return found if stored == NO_LEADER_EPOCH else min(found, stored)

    def _is_after_hole(self, segment: Segment, end: Offset) -> bool:
        """Whether what should lie before the segment was lost with a power failure.

        A segment begins where the one before it ended. After a crash the kernel may have kept a
        newer segment and lost the end, or the name, of an older one. Compaction leaves gaps too,
        but only below the stored recovery point and the cleaner's checkpoint.
        """
        stored = self._context.owner.stored(names.RECOVERY_POINTS, self._context.partition)
        pristine_from = max(stored or Offset(0), self._stored(names.CLEANER_OFFSETS))
        return (
            stored is not None
            and segment.base_offset > pristine_from
            and segment.base_offset > max(end, self._stored(names.LOG_STARTS))
        )

    def _cut_segments(self, segments: list[Segment]) -> None:
        """Take segments behind damage out of the log. They may have records that are nowhere else:
        their files are kept, under another name.
        """
        for segment in segments:
            end = end_of_batches(segment)
            if end is not None:
                self._note_lost(end)
                self._report.cut_bytes += segment.size_bytes
        self._report.dropped_segments += len(segments)
        self._set_aside(segments)

    def _note_lost(self, end: Offset | None) -> None:
        self._report.lost_end = max(self._report.lost_end, end or Offset(0))

    def _note(self, segment: Segment, outcome: RecoveryResult) -> None:
        self._report.recovered_segments += 1
        self._report.recovered_bytes += segment.size_bytes
        self._report.cut_bytes += outcome.bytes_cut
        self._report.cut_reason = outcome.reason or self._report.cut_reason
        self._note_lost(outcome.cut_end)

    # -- the rest --------------------------------------------------------------------------

    def _start_empty(self, start: Offset) -> LogState:
        state = self._empty(start)
        self._forget_epochs_from(start)
        # If a crash lost this name but kept a later segment's, the log would start there.
        self._disk.sync_directory(self._context.directory)
        return state

    def _forget_epochs_from(self, end: Offset) -> None:
        """Epochs of records that are lost go from the file too, before other records come.

        Otherwise the next crash could find them again, behind a gap that no batch contradicts.
        """
        self._epochs.truncate_from_end(end)
        if self._newest_stored_epoch >= (end if self._epochs else 0):
            try:
                write_atomically(self._disk, self._epochs_path, self._epochs.encode())
            except OSError:
                with suppress(OSError):
                    self._disk.remove(self._epochs_path + names.TEMPORARY)
                raise
            self._epochs.dirty = False

    def _is_emptied(self, log_start: Offset, log_end: Offset) -> bool:
        """Whether every record was deleted, none lost: the log still knows their newest epoch.

        After DeleteRecords or retention that epoch begins at the log's end. After a crash it may
        also be that of records which a truncation removed: only the batch before it shows that.
        """
        if log_start != log_end:
            return False
        return self._newest_epoch is None or self._newest_epoch == self._epochs.latest

    def _empty(self, start: Offset) -> LogState:
        self._epochs.clear()
        self._producers.delete_all_snapshots()
        self._lower_stored(start, recovery_point=start)
        segment = Segment.create(self._segment_context, start)
        return LogState(
            Segments([segment]),
            self._epochs,
            self._producers,
            log_start=start,
            log_end=start,
            recovery_point=start,
            high_watermark=start,
        )

    def _finish(
        self, segments: list[Segment], log_start: Offset, log_end: Offset, *, is_clean: bool
    ) -> LogState:
        ordered = Segments(segments)
        is_emptied = self._is_emptied(log_start, log_end)
        self._forget_epochs_from(Offset(log_end + 1) if is_emptied else log_end)
        # Not saved for this: the next flush does, and until then a restart does the same again.
        self._epochs.truncate_from_start(log_start)
        self._producers.remove_stray_snapshots(ordered, log_end)
        if not self._report.recovered_segments:
            self._producers.rebuild(ordered, log_start, log_end)
        self._lower_stored(log_end, recovery_point=segments[-1].base_offset)
        recovery_point = log_end if is_clean else self._stored(names.RECOVERY_POINTS)
        high_watermark = self._stored(names.HIGH_WATERMARKS)
        return LogState(
            ordered,
            self._epochs,
            self._producers,
            log_start=log_start,
            log_end=log_end,
            recovery_point=max(log_start, min(recovery_point, log_end)),
            high_watermark=max(log_start, min(high_watermark, log_end)),
        )

    def _lower_stored(self, log_end: Offset, *, recovery_point: Offset) -> None:
        """What was lost must not be taken as replicated, cleaned or synced when other records
        take its place.
        """
        lowered = {
            names.HIGH_WATERMARKS: log_end,
            names.CLEANER_OFFSETS: log_end,
            names.RECOVERY_POINTS: recovery_point,
        }
        for name, offset in lowered.items():
            if self._stored(name) > log_end:
                self._context.owner.store(name, {self._context.partition: offset})
