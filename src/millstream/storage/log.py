"""The log of one partition: append, read, truncate, roll, delete from the front.

One thread owns a log. Nothing here waits: what blocks for long (fsync, compaction) is cut into a
job that another thread runs and the owner completes. Order on disk is chosen so that a crash at any
point leaves a prefix of what was appended, never a hole (I-11):
- before segments go at the front, the new start is in the log-start checkpoint;
- before the end is truncated, the recovery point is lowered, then segments go newest first.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from millstream.kernels import batches
from millstream.kernels.batches import (
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    POSITION,
    ROW_FIELDS,
    SIZE,
)
from millstream.model.errors import (
    BatchTooLarge,
    DiskFull,
    FencedLeaderEpoch,
    OffsetOutOfRange,
    OperatingError,
    UnexpectedAppendOffset,
)
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition
from millstream.model.invariant import invariant
from millstream.model.limits import SEGMENT_OFFSET_SPAN_MAX
from millstream.runtime.clock import Clock
from millstream.storage import log_reader, names
from millstream.storage.config import FOREVER, LogConfig, TimestampType
from millstream.storage.epochs import EpochEnd, EpochFile, LeaderEpochs, save_image
from millstream.storage.files import OpenFiles
from millstream.storage.flush import FlushJob
from millstream.storage.log_directory import LogDirectory
from millstream.storage.log_reader import Isolation, ReadSlice, RecordPlace
from millstream.storage.partition_metadata import write_topic_id
from millstream.storage.producer_log import ProducerLog, markers
from millstream.storage.producers import Origin
from millstream.storage.retention import (
    LogFacts,
    RetentionPlan,
    RetentionRules,
    SegmentAges,
    SegmentFacts,
    plan_deletion,
)
from millstream.storage.segment import Segment, SegmentContext
from millstream.storage.segments import Segments
from millstream.storage.sparse_index import IndexCache, unless_full
from millstream.storage.txn_index import AbortedTransaction
from millstream.storage.validation import prepare, walk_whole


class LogHome(NamedTuple):
    """Where a log lives and what it borrows from the process."""

    partition: TopicPartition
    topic_id: TopicId | None
    owner: LogDirectory
    directory: str
    files: OpenFiles
    cache: IndexCache
    clock: Clock


class LogState(NamedTuple):
    """What loading found; see `loader.py`."""

    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerLog
    log_start: Offset
    log_end: Offset
    recovery_point: Offset
    high_watermark: Offset


class GivesWay(Protocol):
    """Compaction of a log, which must not outlive what it works on."""

    def settle(self) -> None: ...

    def abandon(self) -> None: ...


class Appended(NamedTuple):
    """What became of an append."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: TimestampMs | None
    """The broker's timestamp where the topic asks for it, else None."""
    is_duplicate: bool
    """The batch was there already; the offsets are those of the first time (I-20)."""


class ReadResult(NamedTuple):
    """A slice and what the reader needs to know with it."""

    data: ReadSlice
    high_watermark: Offset
    last_stable_offset: Offset
    log_start: Offset
    aborted: list[AbortedTransaction]


class Log:
    """See the module's docstring."""

    def __init__(self, home: LogHome, config: LogConfig, state: LogState) -> None:
        self._home = home
        self.config = config
        self._segments = state.segments
        self._epochs = state.epochs
        self._ages = SegmentAges()
        self._epoch_file = EpochFile(f"{home.directory}/{names.LEADER_EPOCHS}")
        self.producers = state.producers
        self._log_start = state.log_start
        self._log_end = state.log_end
        self._recovery_point = state.recovery_point
        self._high_watermark = state.high_watermark
        self._truncations = 0
        self._are_names_synced = False
        self._unflushed_records = 0
        self._active_since_s = home.clock.monotonic_s()
        self.last_flush_s = self._active_since_s
        self.first_dirty = home.owner.stored(names.CLEANER_OFFSETS, home.partition) or Offset(0)
        """Where compaction begins next: all below it was compared with all below it."""
        self.cleaning: GivesWay | None = None
        self.producers.states.on_high_watermark(self._high_watermark)
        self._check()

    # -- facts -----------------------------------------------------------------------------

    @property
    def home(self) -> LogHome:
        return self._home

    @property
    def partition(self) -> TopicPartition:
        return self._home.partition

    @property
    def owner(self) -> LogDirectory:
        return self._home.owner

    @property
    def segments(self) -> Segments:
        return self._segments

    @property
    def log_start(self) -> Offset:
        return self._log_start

    @property
    def log_end(self) -> Offset:
        return self._log_end

    @property
    def recovery_point(self) -> Offset:
        """Everything below it is durable."""
        return self._recovery_point

    @property
    def recovery_start(self) -> Offset:
        """What the recovery-point checkpoint stores: never inside the active segment.

        Data is flushed in the middle of a segment, its indexes only after it is closed. If the
        checkpoint said the former, a crash after the next roll would trust indexes that never
        reached the disk.
        """
        return max(self._log_start, min(self._recovery_point, self._segments.active.base_offset))

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Below it every transaction is decided and replicated."""
        return self.producers.states.last_stable_offset(
            log_start=self._log_start, high_watermark=self._high_watermark
        )

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self._epochs.latest

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epochs

    @property
    def truncations(self) -> int:
        """Grows with every truncation: what was planned before is void."""
        return self._truncations

    @property
    def unflushed_records(self) -> int:
        return self._unflushed_records

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        """Where the epoch ended, for OffsetForLeaderEpoch."""
        return self._epochs.end_offset_for(epoch, self._log_end)

    # -- append ----------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: LeaderEpoch,
        origin: Origin = Origin.CLIENT,
    ) -> Appended:
        """Check the batches, assign offsets in place, write them."""
        self._home.owner.check_usable()
        if leader_epoch < self._epochs.latest:
            raise FencedLeaderEpoch(ours=self._epochs.latest, theirs=leader_epoch)
        now_ms = self._home.clock.wall_ms()
        data, rows = prepare(records, self.config, now_ms=now_ms, origin=origin)
        if len(data) > self.config.segment_bytes:
            raise BatchTooLarge(size_bytes=len(data), limit_bytes=self.config.segment_bytes)
        batches.assign_offsets(data, rows, self._log_end, leader_epoch)
        duplicate = self.producers.check(data, rows, origin)
        if duplicate is not None:
            return Appended(duplicate.base_offset, duplicate.last_offset, None, is_duplicate=True)
        first, last = Offset(rows[BASE_OFFSET]), Offset(rows[LAST_OFFSET - ROW_FIELDS])
        self._write(data, rows)
        is_append_time = self.config.timestamp_type is TimestampType.LOG_APPEND_TIME
        stamp = TimestampMs(now_ms) if is_append_time else None
        return Appended(first, last, stamp, is_duplicate=False)

    def append_as_follower(self, records: bytes | bytearray | memoryview) -> Appended:
        """Write a leader's batches as they are: offsets, epochs and all."""
        self._home.owner.check_usable()
        rows = walk_whole(records, check_crc=True)
        expected = self._log_end
        epoch = self._epochs.latest
        for row in range(0, len(rows), ROW_FIELDS):
            if rows[row + BASE_OFFSET] < expected:
                got = Offset(rows[row + BASE_OFFSET])
                raise UnexpectedAppendOffset(expected=expected, got=got)
            if rows[row + LEADER_EPOCH] < epoch:
                raise OperatingError(
                    f"leader epoch {rows[row + LEADER_EPOCH]} after {epoch} in {self.partition}"
                )
            expected = Offset(rows[row + LAST_OFFSET] + 1)
            epoch = LeaderEpoch(rows[row + LEADER_EPOCH])
        first = Offset(rows[BASE_OFFSET])
        list(markers(records, rows))  # a marker that cannot be read must not get in
        for part, part_rows in self._parts(records, rows):
            self._write(part, part_rows)
        return Appended(first, Offset(expected - 1), None, is_duplicate=False)

    def _parts(
        self, data: bytes | bytearray | memoryview, rows: "array[int]"
    ) -> Iterator[tuple[bytes | bytearray | memoryview, "array[int]"]]:
        """A fetch may bring more than a segment takes: split it between batches."""
        limit, span_max = self.config.segment_bytes, SEGMENT_OFFSET_SPAN_MAX
        if len(data) <= limit and rows[LAST_OFFSET - ROW_FIELDS] - rows[BASE_OFFSET] <= span_max:
            yield data, rows
            return
        view = memoryview(data)
        start = 0
        while start < len(rows):
            begin, first = rows[start + POSITION], rows[start + BASE_OFFSET]
            stop = start + ROW_FIELDS
            while (
                stop < len(rows)
                and rows[stop + POSITION] + rows[stop + SIZE] - begin <= limit
                and rows[stop + LAST_OFFSET] - first <= span_max
            ):
                stop += ROW_FIELDS
            end = rows[stop - ROW_FIELDS + POSITION] + rows[stop - ROW_FIELDS + SIZE]
            yield view[begin:end], rows[start:stop]
            start = stop

    def _write(self, data: bytes | bytearray | memoryview, rows: "array[int]") -> None:
        first, last = rows[BASE_OFFSET], rows[LAST_OFFSET - ROW_FIELDS]
        log_end = self._log_end
        if not log_end <= first <= last:  # the call alone would cost as much as the comparison
            invariant(False, "I-03 offsets must increase", first=first, log_end=log_end)
        try:
            segment = self._segment_for(rows, len(data))
            segment.append(data, rows)
        except OSError as error:
            raise self._home.owner.refused(error) from error
        if rows[LEADER_EPOCH - ROW_FIELDS] != self._epochs.latest:
            self._note_epochs(rows)
        try:
            for aborted in self.producers.apply(data, rows):
                segment.txn_index.append(aborted)
        except OSError as error:
            raise self._home.owner.failed(error) from error
        self._unflushed_records += last + 1 - log_end
        self._log_end = Offset(last + 1)

    def _note_epochs(self, rows: "array[int]") -> None:
        for row in range(0, len(rows), ROW_FIELDS):
            epoch = LeaderEpoch(rows[row + LEADER_EPOCH])
            if epoch > self._epochs.latest:
                self._epochs.assign(epoch, Offset(rows[row + BASE_OFFSET]))

    def _segment_for(self, rows: "array[int]", size_bytes: int) -> Segment:
        """The active segment, after a roll where one is due."""
        active, config = self._segments.active, self.config
        last = Offset(rows[LAST_OFFSET - ROW_FIELDS])
        if not active.size_bytes:
            if active.has_room_for(last_offset=last, size_bytes=size_bytes):
                return active
        elif (
            active.size_bytes + size_bytes <= config.segment_bytes
            and active.has_room_for(last_offset=last, size_bytes=size_bytes)
            and active.offset_index.size_bytes < config.segment_index_bytes
            and not self._is_old(active, rows[batches.MAX_TIMESTAMP - ROW_FIELDS])
        ):
            return active
        self.roll()
        if not self._segments.active.has_room_for(last_offset=last, size_bytes=size_bytes):
            self._skip_to(Offset(rows[BASE_OFFSET]))
        return self._segments.active

    def _skip_to(self, offset: Offset) -> None:
        """Let the log go on at `offset`, behind a gap too wide for one segment's indexes.

        Only a follower of a compacted log meets one. Everything before it is made durable first:
        below the recovery point a gap between segments is no hole to recovery.
        """
        self.flush()
        self._home.owner.store(names.RECOVERY_POINTS, {self.partition: offset})
        empty = self._segments.active
        beyond = Segment.create(self._segment_context(), offset)
        self._segments.remove([empty])
        self._segments.add(beyond)
        self._discard(empty)
        self._are_names_synced = False
        self._log_end = self._recovery_point = offset

    def _is_old(self, active: Segment, batch_timestamp_ms: int) -> bool:
        limit_ms = self.config.segment_ms - self.config.segment_jitter_ms
        if self.config.cleanup_compact:  # only a closed segment can be cleaned in time
            limit_ms = min(limit_ms, self.config.max_compaction_lag_ms)
        if limit_ms >= FOREVER:
            return False
        first_ms = active.rolling_timestamp()
        if first_ms is not None and first_ms >= 0:
            return batch_timestamp_ms - first_ms > limit_ms
        age_s = self._home.clock.monotonic_s() - self._active_since_s
        return age_s * 1000 > limit_ms

    # -- roll ------------------------------------------------------------------------------

    def roll(self) -> bool:
        """Close the active segment and start the next at the log's end; False when it is empty."""
        active = self._segments.active
        if not active.size_bytes:
            if active.base_offset == self._log_end:
                return False
            # Nothing was ever written to it (a follower starting beyond a gap): replace it.
            self._segments.add(Segment.create(self._segment_context(), self._log_end))
            self._segments.remove([active])
            self._discard(active)
            return True
        self._before_roll()
        # What can fail comes first: on a full disk the active segment must stay as it is.
        active.save_indexes()
        self.producers.save_snapshot(self._log_end)
        self._segments.add(Segment.create(self._segment_context(), self._log_end))
        active.stop_writing()
        self._are_names_synced = False
        self._recovery_point = max(self._log_start, min(self._recovery_point, active.base_offset))
        self._active_since_s = self._home.clock.monotonic_s()
        return True

    def _before_roll(self) -> None:
        """Recovery tells a hole from compaction's gaps by the stored recovery point."""
        owner = self._home.owner
        if owner.stored(names.RECOVERY_POINTS, self.partition) is None:
            owner.store(names.RECOVERY_POINTS, {self.partition: self.recovery_start})

    def _segment_context(self) -> SegmentContext:
        home = self._home
        return SegmentContext(
            home.directory, home.files, home.cache, self.config.index_interval_bytes
        )

    def adopt_topic_id(self, topic_id: TopicId) -> None:
        """A directory of an older Kafka, or an interrupted creation, has none yet."""
        path = f"{self._home.directory}/{names.PARTITION_METADATA}"
        write_topic_id(self._home.owner.disk, path, topic_id)
        self._home = self._home._replace(topic_id=topic_id)

    # -- watermarks ------------------------------------------------------------------------

    def set_high_watermark(self, offset: Offset) -> None:
        """Move it within the log; a leader only moves it up (I-06 is replication's to keep)."""
        self._high_watermark = min(max(offset, self._log_start), self._log_end)
        self.producers.states.on_high_watermark(self._high_watermark)
        self._check()

    def advance_log_start(self, offset: Offset) -> None:
        """Forget everything below `offset` for readers (DeleteRecords, or the leader's start).

        Not above the high watermark. Files go later, in `delete_old_segments`.
        """
        if offset > self._high_watermark:
            raise OffsetOutOfRange(asked=offset, start=self._log_start, end=self._high_watermark)
        if offset <= self._log_start:
            return
        self._log_start = offset
        self._recovery_point = max(self._recovery_point, offset)
        self._epochs.truncate_from_start(offset)
        self._check()

    # -- read ------------------------------------------------------------------------------

    def read(self, offset: Offset, *, size_max: int, isolation: Isolation) -> ReadResult:
        """Batches from the one that holds `offset` on, as far as the reader may see."""
        self._home.owner.check_usable()
        if not self._log_start <= offset <= self._log_end:
            raise OffsetOutOfRange(asked=offset, start=self._log_start, end=self._log_end)
        stable = self.last_stable_offset
        limit = self._log_end
        if isolation is not Isolation.LOG_END:
            limit = self._high_watermark if isolation is Isolation.HIGH_WATERMARK else stable
        aborted: list[AbortedTransaction] = []
        data = log_reader.EMPTY_SLICE
        if offset < limit:
            try:
                data = log_reader.read_slice(
                    self._segments, offset, limit=limit, log_end=self._log_end, size_max=size_max
                )
                if isolation is Isolation.COMMITTED:
                    aborted = log_reader.aborted_in(data, self._segments, offset, limit)
            except OSError as error:
                raise self._home.owner.refused(error) from error
        return ReadResult(data, self._high_watermark, stable, self._log_start, aborted)

    def find_timestamp(self, timestamp_ms: TimestampMs) -> RecordPlace | None:
        """The first record at or after that time; ListOffsets by timestamp."""
        self._home.owner.check_usable()
        try:
            return log_reader.find_by_timestamp(
                self._segments, timestamp_ms, log_start=self._log_start
            )
        except OSError as error:
            raise self._home.owner.refused(error) from error

    def find_max_timestamp(self) -> RecordPlace | None:
        """The first record with the largest timestamp."""
        self._home.owner.check_usable()
        try:
            return log_reader.find_max_timestamp(self._segments, log_start=self._log_start)
        except OSError as error:
            raise self._home.owner.refused(error) from error

    # -- truncate --------------------------------------------------------------------------

    def truncate_to(self, end_offset: Offset, *, is_unclean: bool = False) -> Offset:
        """Cut off everything from the batch that holds `end_offset` on, durably.

        Returns the new log end, which is lower than asked when that offset lay inside a batch.
        `is_unclean` is the record of an unclean election: only then may it go below the high
        watermark (I-08).
        """
        self._home.owner.check_usable()
        if end_offset >= self._log_end:
            return self._log_end
        if end_offset < self._log_start:
            raise OffsetOutOfRange(asked=end_offset, start=self._log_start, end=self._log_end)
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
            raise self._home.owner.failed(error) from error
        return new_end

    def truncate_fully(self, start_offset: Offset) -> None:
        """Drop everything and begin anew at `start_offset`: the leader's log starts later."""
        self._home.owner.check_usable()
        try:
            self._before_truncation(min(start_offset, self._log_start))
            self._home.owner.store(names.LOG_STARTS, {self.partition: start_offset})
            old = list(self._segments)
            self._segments.remove(old)
            for segment in reversed(old):
                self._discard(segment)
            self._home.owner.disk.sync_directory(self._home.directory)
            self.producers.delete_all_snapshots()
            self._segments.add(Segment.create(self._segment_context(), start_offset))
            self._home.owner.disk.sync_directory(self._home.directory)
            self._log_start = start_offset
            self._epochs.clear()
            self._after_truncation(start_offset)
        except OSError as error:
            raise self._home.owner.failed(error) from error

    def _cut_point(self, segment: Segment, end_offset: Offset) -> tuple[Offset, int]:
        place = segment.find_offset(end_offset)
        position = segment.size_bytes if place is None else place.position
        # Not simply `end_offset`: it may lie inside a batch, which goes as a whole, or in a gap.
        return max(self._log_start, segment.end_before(position)), position

    def _before_truncation(self, new_end: Offset) -> None:
        """After a crash, recovery must look at everything that the truncation touches, and what
        goes must not count as replicated when other records take its place.
        """
        self._truncations += 1
        if self.cleaning is not None:
            self.cleaning.settle()
        self.first_dirty = min(self.first_dirty, new_end)
        for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.CLEANER_OFFSETS):
            stored = self._home.owner.stored(name, self.partition)
            if stored is not None and stored > new_end:
                self._home.owner.store(name, {self.partition: new_end})

    def _remove_newest_first(self, last_kept: Segment) -> None:
        disk, directory = self._home.owner.disk, self._home.directory
        for segment in reversed(list(self._segments)):
            if segment is last_kept:
                return
            self._segments.remove([segment])
            self._discard(segment)
            # One by one: if a crash kept a newer segment but not an older one, there would be a
            # hole that nobody could tell from compaction's.
            disk.sync_directory(directory)

    def _after_truncation(self, new_end: Offset) -> None:
        self._log_end = new_end
        self._recovery_point = max(self._log_start, min(self._recovery_point, new_end))
        self._high_watermark = max(self._log_start, min(self._high_watermark, new_end))
        self._epochs.truncate_from_end(new_end)
        image = self._epoch_file.image(self._epochs)
        with unless_full():
            self._epochs.dirty = True  # until it is there
            save_image(self._home.owner.disk, image)
            self._epochs.dirty = False
        self.producers.rebuild(self._segments, self._log_start, new_end)
        self.producers.states.on_high_watermark(self._high_watermark)
        self._unflushed_records = 0
        self._active_since_s = self._home.clock.monotonic_s()
        self._check()

    # -- retention -------------------------------------------------------------------------

    def plan_retention(self, now_ms: TimestampMs) -> RetentionPlan:
        """Which of the oldest segments may go now."""
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
        stamped = self._ages.stamped(facts, now_ms)
        log = LogFacts(stamped, self._log_start, self._high_watermark, self._log_end)
        return plan_deletion(log, rules, now_ms)

    def begin_retention(self, plan: RetentionPlan) -> None:
        """Move the log start as planned; the caller then stores the log starts, then removes."""
        if plan.is_roll_needed:
            try:
                self.roll()
            except OSError as error:
                raise self._home.owner.refused(error) from error
        self.advance_log_start(plan.new_log_start)

    def remove_segments_below_start(self) -> int:
        """Remove segments that lie wholly below the stored log start; returns how many."""
        stored = self._home.owner.stored(names.LOG_STARTS, self.partition) or Offset(0)
        invariant(
            stored <= self._log_start,
            "I-05 the stored log start is ahead of the log's",
            stored=stored,
            log_start=self._log_start,
        )
        gone = [one for one in self._segments.closed if self._end_of(one) <= stored]
        self._segments.remove(gone)
        for segment in gone:
            self._discard(segment)
        self.producers.delete_snapshots_below(self._segments)
        return len(gone)

    def make_room(self) -> int:
        """Remove segments below the log start without having stored it: the disk is full.

        One by one, oldest first and each durably, so that a crash leaves no hole; how many.
        """
        disk = self._home.owner.disk
        gone = [one for one in self._segments.closed if self._end_of(one) <= self._log_start]
        for segment in gone:
            self._segments.remove([segment])
            paths = segment.change_state(names.DELETED)
            segment.forget()
            disk.sync_directory(self._home.directory)
            for path in paths:
                disk.remove(path)
        self.producers.delete_snapshots_below(self._segments)
        return len(gone)

    def _end_of(self, segment: Segment) -> Offset:
        end = self._segments.end_of(segment)
        return self._log_end if end is None else end

    def _discard(self, segment: Segment) -> None:
        paths = segment.change_state(names.DELETED)
        segment.forget()
        delay_s = self.config.file_delete_delay_ms / 1000
        self._home.owner.discard(paths, due_s=self._home.clock.monotonic_s() + delay_s)

    # -- flush -----------------------------------------------------------------------------

    @property
    def is_flush_due(self) -> bool:
        """Whether `flush.messages` asks for one, or a roll left a closed segment unsynced."""
        return self._unflushed_records >= self.config.flush_messages or (
            self._recovery_point < self._segments.active.base_offset
        )

    def begin_flush(self, *, is_closing: bool = False) -> FlushJob | None:
        """What must be synced for everything appended so far to be durable; None if nothing.

        Closing takes the active segment's indexes too: a clean start believes them.
        """
        self._home.owner.check_usable()
        active = self._segments.active
        is_index_due = is_closing and active.has_unsynced_indexes
        is_due = self._recovery_point < self._log_end or self._epochs.dirty or is_index_due
        if not is_due or self._epoch_file.is_retired:
            return None
        disk = self._home.owner.disk
        job = FlushJob(disk, self._epoch_file, self._log_end, self._truncations)
        job.active_base = active.base_offset
        if is_index_due or not self._are_names_synced:
            job.directory = self._home.directory
        number = self._segments.number_at(self._recovery_point)
        for segment in self._segments.from_number(number):
            job.add_log(segment.log)
            if segment is not active or is_index_due:
                job.index_paths += segment.file_paths()[1:]
        if self._epochs.dirty:
            job.epochs = self._epoch_file.image(self._epochs)
        return job

    def finish_flush(self, job: FlushJob) -> None:
        """The job worked: what it covered is durable."""
        if job.truncations != self._truncations:
            return
        end = job.end_offset
        if self._segments.active.base_offset != job.active_base:
            # Rolled since: the indexes that then became final were not synced with the data.
            end = min(end, job.active_base)
        self._recovery_point = max(self._recovery_point, end)
        self._are_names_synced = self._segments.active.log in job.synced
        self._unflushed_records = self._log_end - job.end_offset
        self.last_flush_s = self._home.clock.monotonic_s()
        self._check()

    def abandon_flush(self, job: FlushJob) -> None:
        """The job did not work, or was not run."""
        self._epochs.dirty |= job.epochs is not None

    def flush(self, *, is_closing: bool = False) -> None:
        """Make everything durable now, blocking."""
        job = self.begin_flush(is_closing=is_closing)
        if job is None:
            return
        try:
            job.run()
        except (OSError, DiskFull) as error:
            self.abandon_flush(job)
            if isinstance(error, OSError):
                raise self._home.owner.failed(error) from error
            raise
        finally:
            job.release()
        self.finish_flush(job)

    def close(self) -> None:
        """Flush, write what makes the next start quick, let go of files."""
        self.prepare_close()
        self.flush(is_closing=True)
        self.release()

    def prepare_close(self) -> None:
        """The part of `close` that does not wait for the disk."""
        self._segments.active.save_indexes()
        if self._log_end > self._log_start:
            self.producers.save_snapshot(self._log_end)

    def release(self) -> None:
        """Let go of memory and descriptors without writing anything."""
        if self.cleaning is not None:
            self.cleaning.abandon()
        self._epoch_file.retire()
        for segment in self._segments:
            segment.forget()

    def _check(self) -> None:
        start, end = self._log_start, self._log_end
        invariant(
            start <= self._recovery_point <= end
            and start <= self.last_stable_offset <= self._high_watermark <= end,
            "I-05 watermarks out of order",
            partition=self.partition,
            log_start=start,
            recovery_point=self._recovery_point,
            last_stable=self.last_stable_offset,
            high_watermark=self._high_watermark,
            log_end=end,
        )
