"""The log of one partition: append and read here, the rest in the classes it is built on.

`storage/log/base.py` has the facts and the roll, `storage/log/durability.py` flush and close,
`storage/log/removal.py` truncation and retention. One thread owns a log. Nothing here waits: what
blocks for long (fsync, compaction) is cut into a job that another thread runs and the owner
completes.
"""

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.kernels import batches
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_ID,
    ROW_FIELDS,
    SIZE,
)
from millstream.kernels.errors import MalformedRecords
from millstream.model.errors import (
    BatchTooLarge,
    CorruptRecords,
    FencedLeaderEpoch,
    InvalidRecords,
    OffsetOutOfRange,
    OperatingError,
    OutOfOrderSequence,
    UnexpectedAppendOffset,
)
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs
from millstream.model.invariant import InvariantViolated, invariant
from millstream.model.limits import OFFSET_MAX, SEGMENT_OFFSET_SPAN_MAX
from millstream.runtime.scheduler import StepGenerator, run_blocking
from millstream.storage import names
from millstream.storage.config import FOREVER, TimestampType
from millstream.storage.log import reader as log_reader
from millstream.storage.log import time_search
from millstream.storage.log.reader import Isolation, ReadSlice
from millstream.storage.log.removal import TruncatableLog
from millstream.storage.log.slot import age_limit_ms
from millstream.storage.log.time_search import TimestampAndOffset
from millstream.storage.producers.machine import Duplicate, Origin
from millstream.storage.producers.producer_log import markers
from millstream.storage.segments.batch_attributes import CONTROL_BIT, TRANSACTIONAL_BIT
from millstream.storage.segments.segment import Segment
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.storage.validation import Allowance, CheckedRecords, prepare, walk_uncut, walk_whole

# A lookup in an enum class costs as much as four comparisons.
_CREATE_TIME: Final = TimestampType.CREATE_TIME
_LOG_END: Final = Isolation.LOG_END
_HIGH_WATERMARK: Final = Isolation.HIGH_WATERMARK
_TRANSACTION_BITS: Final = TRANSACTIONAL_BIT | CONTROL_BIT


class AppendedBatch(NamedTuple):
    """The result of an append."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: TimestampMs | None
    """The broker's timestamp if the topic uses LogAppendTime, else None."""
    is_duplicate: bool
    """The batch was there already; the offsets are those of the first time (I-20)."""


class ReadResult(NamedTuple):
    """A slice and what the reader needs to know with it."""

    data: ReadSlice
    high_watermark: Offset
    last_stable_offset: Offset
    log_start: Offset
    aborted: list[AbortedTransaction]


class Log(TruncatableLog):
    """See the module's docstring."""

    # -- append ----------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: bytes | bytearray | memoryview | CheckedRecords,
        *,
        leader_epoch: LeaderEpoch,
        origin: Origin = Origin.CLIENT,
        allowance: Allowance | None = None,
    ) -> AppendedBatch:
        """Check the batches, assign offsets in place (in a copy where that cannot be), write.

        With an allowance TooLargeForNow is raised where they decompress to more than that.
        """
        self._check_open()
        slot, config = self.slot, self._config
        slot.write_staged()
        if leader_epoch < self._epochs.latest:
            raise FencedLeaderEpoch(ours=self._epochs.latest, theirs=leader_epoch)
        now_ms = self._context.clock.wall_ms()
        if isinstance(records, CheckedRecords) and records.config is config:
            now_ms = records.now_ms
            data, rows = records.result()
        else:
            if isinstance(records, CheckedRecords):
                records = records.records
            data, rows = prepare(records, config, now_ms=now_ms, origin=origin, allowance=allowance)
        if len(data) > config.segment_bytes:
            raise BatchTooLarge(size_bytes=len(data), limit_bytes=config.segment_bytes)
        try:
            batches.assign_offsets(data, rows, slot.log_end, leader_epoch)
        except MalformedRecords as error:
            raise InvalidRecords(f"no offsets are left after {slot.log_end}") from error
        is_append_time = config.timestamp_type is not _CREATE_TIME
        duplicate = None
        if rows[PRODUCER_ID] >= 0 or len(rows) > ROW_FIELDS or rows[ATTRIBUTES] & CONTROL_BIT:
            duplicate = self._check_producer(data, rows, origin)
        if duplicate is not None:
            stamp = duplicate.timestamp_ms if is_append_time else None
            return AppendedBatch(
                duplicate.base_offset, duplicate.last_offset, stamp, is_duplicate=True
            )
        first, last = Offset(rows[BASE_OFFSET]), Offset(rows[LAST_OFFSET - ROW_FIELDS])
        self._write(data, rows)
        slot.records_in += last + 1 - first
        slot.bytes_in += len(data)
        stamp = TimestampMs(now_ms) if is_append_time else None
        return AppendedBatch(first, last, stamp, is_duplicate=False)

    def _check_producer(
        self, data: bytes | bytearray | memoryview, rows: "array[int]", origin: Origin
    ) -> Duplicate | None:
        try:
            return self.producers.check(data, rows, origin)
        except OutOfOrderSequence:
            # After a start it may be a retry of a batch that the snapshot did not remember.
            try:
                return self.producers.check_again(
                    rows, origin, self._segments, log_start=self.log_start
                )
            except OSError as error:
                raise self.refused(error) from error

    def append_as_follower(
        self,
        records: bytes | bytearray | memoryview,
        *,
        is_cut: bool = False,
        epoch_max: LeaderEpoch | None = None,
    ) -> AppendedBatch:
        """Write a leader's batches as they are: offsets, epochs and all.

        With `is_cut` the last one may have been cut off by a byte limit, and is left out then.
        A leader has no batch of a later epoch than its own, which is `epoch_max`.
        """
        self._check_open()
        self.slot.write_staged()
        records, rows = walk_uncut(records) if is_cut else (records, walk_whole(records))
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
        if epoch_max is not None and epoch > epoch_max:
            raise OperatingError(
                f"leader epoch {epoch} from one of {epoch_max} in {self.partition}"
            )
        if expected > OFFSET_MAX:
            raise InvalidRecords(f"offset {expected - 1} leaves none for what comes after it")
        first = Offset(rows[BASE_OFFSET])
        list(markers(records, rows))  # a marker that cannot be read must not get in
        for part, part_rows in self._parts(records, rows):
            self._write(part, part_rows)
        return AppendedBatch(first, Offset(expected - 1), None, is_duplicate=False)

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
            part = rows[start:stop]
            for row in range(0, len(part), ROW_FIELDS):
                part[row + POSITION] -= begin
            yield view[begin:end], part
            start = stop

    def _write(self, data: bytes | bytearray | memoryview, rows: "array[int]") -> None:
        first, last = rows[BASE_OFFSET], rows[LAST_OFFSET - ROW_FIELDS]
        log_end = self.slot.log_end
        if not log_end <= first <= last:  # the call alone would cost as much as the comparison
            invariant(False, "I-03 offsets must increase", first=first, log_end=log_end)
        try:
            segment = self._segment_for(rows, len(data))
            segment.append(data, rows)
        except OSError as error:
            raise self.refused(error) from error
        if rows[LEADER_EPOCH - ROW_FIELDS] != self._epochs.latest:
            self._note_epochs(rows)
            self._forget_limits()
        is_single = len(rows) == ROW_FIELDS
        if rows[PRODUCER_ID] >= 0 or not is_single:
            self._follow_producers(data, rows, segment)
        self._unflushed_records += last + 1 - log_end
        has_transactions = not is_single or rows[ATTRIBUTES] & _TRANSACTION_BITS != 0
        self._follow(Offset(last + 1), has_transactions=has_transactions)

    def _follow_producers(
        self, data: bytes | bytearray | memoryview, rows: "array[int]", segment: Segment
    ) -> None:
        try:
            for aborted in self.producers.apply(data, rows):
                segment.txn_index.append(aborted)
        except OSError as error:
            raise self.failed(error) from error
        except Exception as error:
            # The batches are in the file and everything about them was checked before: whatever
            # this is, continuing would leave the log's end behind its bytes.
            raise InvariantViolated("I-03 batches were written that cannot be followed") from error

    def _note_epochs(self, rows: "array[int]") -> None:
        for row in range(0, len(rows), ROW_FIELDS):
            epoch = LeaderEpoch(rows[row + LEADER_EPOCH])
            if epoch > self._epochs.latest:
                self._epochs.assign(epoch, Offset(rows[row + BASE_OFFSET]))

    def _segment_for(self, rows: "array[int]", size_bytes: int) -> Segment:
        """The active segment, after a roll where one is due."""
        active, config = self._segments.active, self._config
        last, stamp_ms = Offset(rows[LAST_OFFSET - ROW_FIELDS]), rows[MAX_TIMESTAMP - ROW_FIELDS]
        if self._are_limits_set and self.slot.takes(last, size_bytes, stamp_ms):
            return active
        if not active.size_bytes:
            if active.has_room_for(last_offset=last, size_bytes=size_bytes):
                return active
        elif (
            active.size_bytes + size_bytes <= config.segment_bytes
            and active.has_room_for(last_offset=last, size_bytes=size_bytes)
            and active.offset_index.size_bytes < config.segment_index_bytes
            and not self._is_old(active, stamp_ms)
        ):
            return active
        self.roll()
        if not self._segments.active.has_room_for(last_offset=last, size_bytes=size_bytes):
            self._skip_to(Offset(rows[BASE_OFFSET]))
        return self._segments.active

    def _skip_to(self, offset: Offset) -> None:
        """Continue the log at `offset`, behind a gap too wide for one segment's indexes.

        Only a follower of a compacted log can have one. Everything before it is made durable first:
        below the recovery point a gap between segments is no hole to recovery.
        """
        self.flush()
        self._context.owner.store(names.RECOVERY_POINTS, {self.partition: offset})
        empty = self._segments.active
        beyond = Segment.create(self._segment_context(), offset)
        self._segments.remove([empty])
        self._segments.add(beyond)
        self._discard(empty)
        self._are_names_synced = False
        self._log_end = self._recovery_point = offset

    def _is_old(self, active: Segment, batch_timestamp_ms: int) -> bool:
        limit_ms = age_limit_ms(self.config, active)
        if limit_ms >= FOREVER:
            return False
        first_ms = active.rolling_timestamp()
        if first_ms is not None and first_ms >= 0:
            return batch_timestamp_ms - first_ms > limit_ms
        age_s = self._context.clock.monotonic_s() - self._active_since_s
        return age_s * 1000 > limit_ms

    # -- read ------------------------------------------------------------------------------

    def read(self, offset: Offset, *, size_max: int, isolation: Isolation) -> ReadResult:
        """Batches from the one that holds `offset` on, as far as the reader may see."""
        self._check_open()
        slot = self.slot
        log_start, log_end, high_watermark = slot.log_start, slot.log_end, slot.high_watermark
        if not log_start <= offset <= log_end:
            raise OffsetOutOfRange(requested=offset, start=log_start, end=log_end)
        stable = self.producers.states.last_stable_offset(
            log_start=log_start, high_watermark=high_watermark
        )
        limit = log_end
        if isolation is not _LOG_END:
            limit = high_watermark if isolation is _HIGH_WATERMARK else stable
        aborted: list[AbortedTransaction] = []
        data = log_reader.EMPTY_SLICE
        if offset < limit:
            try:
                data = log_reader.read_slice(
                    self._segments, offset, limit=limit, log_end=log_end, size_max=size_max
                )
                if isolation is Isolation.COMMITTED:
                    aborted = log_reader.aborted_in(data, self._segments, offset, limit)
            except OSError as error:
                raise self.refused(error) from error
            except CorruptRecords as error:
                self.note_damage(error, offset)
                raise
        return ReadResult(data, high_watermark, stable, log_start, aborted)

    def check_tail(self, data: ReadSlice, offset: Offset) -> None:
        """Raise OSError or CorruptRecords unless the newest batches, from `offset` on, are where
        the slot says.
        """
        stop = data.position + data.size_bytes
        self._segments.active.check_range(data.position, stop, offset=offset)

    def find_timestamp(self, timestamp_ms: TimestampMs) -> TimestampAndOffset | None:
        """The first record at or after that time; ListOffsets by timestamp."""
        return run_blocking(self.find_timestamp_steps(timestamp_ms))

    def find_timestamp_steps(
        self, timestamp_ms: TimestampMs
    ) -> StepGenerator[TimestampAndOffset | None]:
        """The same in steps."""
        size_max = self.config.decompressed_batch_bytes_max
        try:
            return (
                yield from time_search.find_timestamp_steps(self, timestamp_ms, size_max=size_max)
            )
        except OSError as error:
            raise self.refused(error) from error

    def find_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp."""
        return run_blocking(self.find_max_timestamp_steps())

    def find_max_timestamp_steps(self) -> StepGenerator[TimestampAndOffset | None]:
        """The same in steps."""
        size_max = self.config.decompressed_batch_bytes_max
        try:
            return (yield from time_search.find_max_timestamp_steps(self, size_max=size_max))
        except OSError as error:
            raise self.refused(error) from error
