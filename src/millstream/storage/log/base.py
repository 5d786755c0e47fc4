"""The facts of an open log: where it lives, its segments, its watermarks; and how it rolls."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from millstream.kernels.slots import ProducerEntry
from millstream.model.errors import (
    CorruptRecords,
    OffsetOutOfRange,
    OperatingError,
    StorageFailed,
    UnknownPartition,
)
from millstream.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.model.invariant import InvariantViolated, invariant
from millstream.runtime.clock import Clock
from millstream.runtime.disk import ShortFile
from millstream.storage import names
from millstream.storage.config import LogConfig
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.directories.partition_metadata import write_topic_id
from millstream.storage.epochs import EpochEnd, EpochFile, LeaderEpochs
from millstream.storage.log import slot as log_slot
from millstream.storage.log.slot import LogSlot
from millstream.storage.producers.producer_log import ProducerLog
from millstream.storage.retention import (
    SegmentAges,
)
from millstream.storage.segments.files import OpenFiles
from millstream.storage.segments.segment import Segment, SegmentContext
from millstream.storage.segments.segment_list import Segments
from millstream.storage.segments.sparse_index import IndexCache


def _never() -> bool:
    return False


def _cause(error: OSError, directory: str) -> str:
    return f"{error.strerror} ({error.filename or directory})"


class LogContext(NamedTuple):
    """Where a log lives and what it borrows from the process."""

    partition: TopicPartition
    topic_id: TopicId | None
    owner: LogDirectory
    directory: str
    files: OpenFiles
    cache: IndexCache
    clock: Clock


class LogState(NamedTuple):
    """What loading found; see `storage/recovery/loader.py`."""

    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerLog
    log_start: Offset
    log_end: Offset
    recovery_point: Offset
    high_watermark: Offset


class LogMaintenance(Protocol):
    """Compaction or a move of a log: long work that must not outlive the files it works on."""

    def wind_down(self) -> None:
        """Finish what cannot be left half done, begin nothing more."""

    def abandon(self) -> None:
        """Stop at once and touch no file any more."""


class LogBase:
    """The state of the log; `DurableLog`, `TruncatableLog` and `Log` add the operations."""

    def __init__(self, context: LogContext, config: LogConfig, state: LogState) -> None:
        self._context = context
        self._config = config
        self.slot = LogSlot(self)
        """The numbers that the connection core shares; they are stored only there."""
        self._are_limits_set = False
        """Whether the slot's limits are valid; else nothing is staged, and an append sets them."""
        self.after_write: Callable[[], None] | None = None
        """Called when staged batches are in the log: the high watermark may move."""
        self._segments = state.segments
        self._epochs = state.epochs
        self._ages = SegmentAges()
        self._epoch_file = EpochFile(f"{context.directory}/{names.LEADER_EPOCHS}")
        self.producers = state.producers
        self._share_producers()
        self._log_start = state.log_start
        self._log_end = state.log_end
        self.slot.position = state.segments.active.size_bytes
        self._recovery_point = state.recovery_point
        self._high_watermark = state.high_watermark
        self._truncations = 0
        self._are_names_synced = False
        self._unflushed_records = 0
        self._active_since_s = context.clock.monotonic_s()
        self.last_flush_s = self._active_since_s
        self.first_dirty_offset = context.owner.stored(
            names.CLEANER_OFFSETS, context.partition
        ) or Offset(0)
        """Where the next cleaning begins: all records below it were compared with each other."""
        self.maintenance: LogMaintenance | None = None
        self._is_released = False
        self.can_be_replaced: Callable[[], bool] = _never
        """Whether another replica has what this one has; replication sets it."""
        self._failure: str | None = None
        """Of this log only; its directory may still be usable."""
        self.checked_end = state.log_end
        """Where the log ended when its file was last checked."""
        self.producers.states.on_high_watermark(self._high_watermark)
        self._check()

    # -- facts -----------------------------------------------------------------------------

    @property
    def context(self) -> LogContext:
        return self._context

    @property
    def partition(self) -> TopicPartition:
        return self._context.partition

    @property
    def owner(self) -> LogDirectory:
        return self._context.owner

    @property
    def segments(self) -> Segments:
        return self._segments

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.slot.write_staged()
        self._config = config
        self._forget_limits()

    @property
    def log_start(self) -> Offset:
        return self._log_start

    @property
    def log_end(self) -> Offset:
        return self._log_end

    @property
    def _log_start(self) -> Offset:
        return self.slot.log_start

    @_log_start.setter
    def _log_start(self, offset: Offset) -> None:
        self.slot.log_start = offset

    @property
    def _log_end(self) -> Offset:
        return self.slot.log_end

    @_log_end.setter
    def _log_end(self, offset: Offset) -> None:
        self.slot.log_end = offset

    @property
    def _high_watermark(self) -> Offset:
        return self.slot.high_watermark

    @_high_watermark.setter
    def _high_watermark(self, offset: Offset) -> None:
        self.slot.high_watermark = offset

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
    def trusted_end(self) -> Offset:
        """A restart after a crash does not check what is below it: the stored recovery point."""
        stored = self._context.owner.stored(names.RECOVERY_POINTS, self.partition)
        return min(self._recovery_point, stored or Offset(0))

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
    def is_released(self) -> bool:
        """Whether it was closed or deleted: what jobs know of it is no longer valid."""
        return self._is_released

    @property
    def failure(self) -> str | None:
        """Why it cannot be used until a restart: it failed, or its directory did."""
        return self._failure or self._context.owner.failure

    @property
    def unflushed_records(self) -> int:
        return self._unflushed_records

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        """Where the epoch ended, for OffsetForLeaderEpoch."""
        return self._epochs.end_offset_for(epoch, self._log_end)

    # -- leading and staging ---------------------------------------------------------------

    def start_leading(self, leader_epoch: LeaderEpoch, *, after_write: Callable[[], None]) -> None:
        """From now on the connection core may stage batches of this epoch."""
        self.stop_leading()
        self.slot.leader_epoch = leader_epoch
        self.slot.allows_fast_path_acks_all = True
        self.after_write = after_write

    def stop_leading(self) -> None:
        """Nothing more is staged; the caller answers requests that wait for the high watermark."""
        self.slot.write_staged()
        self.slot.leader_epoch = NO_LEADER_EPOCH
        self.slot.allows_fast_path_acks_all = False
        self.after_write = None
        self._forget_limits()

    def write_staged(self) -> None:
        """Write what the connection core staged; called by the slot, which drops it on an error."""
        self._check_open()
        slot, segment = self.slot, self._segments.active
        if not self._are_limits_set or slot.position != segment.size_bytes:
            invariant(
                False, "I-03 batches were staged at a wrong position", partition=self.partition
            )
        records = slot.staged_end - slot.log_end
        try:
            segment.append_all(slot.staged_buffers, slot.staged_rows, size_bytes=slot.staged_bytes)
        except OSError as error:
            raise self.refused(error) from error
        try:
            slot.apply_staged()
            self._unflushed_records += records
            slot.follow(slot.log_end, segment.size_bytes, self._index_room_bytes(segment))
            if self.after_write is not None:
                self.after_write()
        except Exception as error:
            raise InvariantViolated("I-03 batches were written that cannot be followed") from error

    def _follow(self, log_end: Offset, *, has_transactions: bool) -> None:
        """After an append to the active segment: what comes next may be staged."""
        slot, active = self.slot, self._segments.active
        slot.follow(log_end, active.size_bytes, self._index_room_bytes(active))
        if has_transactions or not slot.is_decided:
            self._note_decided()
        if not self._are_limits_set:
            self._are_limits_set = True
            self._share_producers()
            log_slot.set_limits(slot, self._config, active, self._epochs.latest)

    def _share_producers(self) -> None:
        self.slot.producers = cast("dict[int, ProducerEntry]", self.producers.states.by_id)

    def _index_room_bytes(self, active: Segment) -> int:
        return self._config.segment_index_bytes - active.offset_index.size_bytes

    def _forget_limits(self) -> None:
        self._are_limits_set = False
        self.slot.allows_fast_path = self.slot.is_decided = False
        self.slot.forget_tail()

    def _note_decided(self) -> None:
        """Staged batches belong to no transaction: only an append on the slow path changes this."""
        slot = self.slot
        stable = self.producers.states.last_stable_offset(
            log_start=slot.log_start, high_watermark=slot.log_end
        )
        slot.is_decided = stable == slot.log_end and not len(self._segments.active.txn_index)

    # -- roll ------------------------------------------------------------------------------

    def roll(self) -> bool:
        """Close the active segment and start the next at the log's end; False when it is empty."""
        self._check_open()
        self.slot.write_staged()
        self._forget_limits()
        active = self._segments.active
        if not active.size_bytes:
            if active.base_offset == self._log_end:
                return False
            # Nothing was ever written to it (a follower starting beyond a gap): replace it.
            self._segments.add(Segment.create(self._segment_context(), self._log_end))
            self._segments.remove([active])
            self._discard(active)
            return True
        active.check_file()  # it is not checked again before it is read
        self._before_roll()
        # What can fail comes first: on a full disk the active segment must stay as it is.
        active.save_indexes()
        self.producers.save_snapshot(self._log_end)
        self._segments.add(Segment.create(self._segment_context(), self._log_end))
        active.stop_writing()
        self._are_names_synced = False
        self._recovery_point = max(self._log_start, min(self._recovery_point, active.base_offset))
        self._active_since_s = self._context.clock.monotonic_s()
        return True

    def _before_roll(self) -> None:
        """Recovery distinguishes a hole from compaction's gaps by the stored recovery point."""
        owner = self._context.owner
        if owner.stored(names.RECOVERY_POINTS, self.partition) is None:
            owner.store(names.RECOVERY_POINTS, {self.partition: self.recovery_start})

    def _segment_context(self) -> SegmentContext:
        context = self._context
        return SegmentContext(
            context.directory, context.files, context.cache, self.config.index_interval_bytes
        )

    def adopt_topic_id(self, topic_id: TopicId) -> None:
        """A directory of an older Kafka, or an interrupted creation, has none yet."""
        path = f"{self._context.directory}/{names.PARTITION_METADATA}"
        write_topic_id(self._context.owner.disk, path, topic_id)
        self._context = self._context._replace(topic_id=topic_id)

    def _discard(self, segment: Segment) -> None:
        paths = segment.change_state(names.DELETED)
        segment.forget()
        delay_s = self.config.file_delete_delay_ms / 1000
        self._context.owner.discard(paths, due_s=self._context.clock.monotonic_s() + delay_s)

    # -- watermarks ------------------------------------------------------------------------

    def set_high_watermark(self, offset: Offset) -> None:
        """Move it within the log; a leader only moves it up (I-06 is replication's to keep)."""
        slot = self.slot
        if slot.is_decided and offset == slot.log_end:
            slot.advance_high_watermark(offset)  # no transaction depends on it
            return
        offset = min(max(offset, slot.log_start), slot.log_end)
        if offset < slot.high_watermark:
            slot.high_watermark = offset
        self.producers.states.on_high_watermark(offset)
        slot.advance_high_watermark(offset)
        if not slot.is_decided and self._are_limits_set:
            self._note_decided()  # a marker is committed once it is replicated
        self._check()

    def advance_log_start(self, offset: Offset) -> None:
        """Forget everything below `offset` for readers (DeleteRecords, or the leader's start).

        Not above the high watermark. Files go later, in `remove_segments_below_start`.
        """
        if offset > self._high_watermark:
            raise OffsetOutOfRange(
                requested=offset, start=self._log_start, end=self._high_watermark
            )
        if offset <= self._log_start:
            return
        self._log_start = offset
        self._recovery_point = max(self._recovery_point, offset)
        self._epochs.truncate_from_start(offset)
        self._check()

    def check_open(self) -> None:
        """Raise UnknownPartition when it was closed or deleted, StorageFailed when offline."""
        self._check_open()

    def _check_open(self) -> None:
        """A log that was closed or deleted must not touch files that may be another's by now."""
        if self._is_released:
            raise UnknownPartition(self.partition)
        if self._failure is not None:
            raise StorageFailed(self._context.directory, self._failure)
        self._context.owner.check_usable()

    # -- failure ---------------------------------------------------------------------------

    def refused(self, error: OSError) -> OperatingError:
        """The error to raise for a call that failed; a failure of log or directory is recorded.

        A file of this log that was cut or removed says nothing about the other logs of the
        directory, unless the directory itself is missing.
        """
        owner = self._context.owner
        if isinstance(error, FileNotFoundError):
            owner.check_health()
        if isinstance(error, ShortFile | FileNotFoundError) and owner.failure is None:
            return self._fail(_cause(error, self._context.directory))
        return owner.refused(error)

    def failed(self, error: OSError) -> StorageFailed:
        """The same where the call must not be retried."""
        if isinstance(error, ShortFile):
            return self._fail(_cause(error, self._context.directory))
        return self._context.owner.failed(error)

    def check_health(self) -> None:
        """Fail if the file that is written to was cut or removed."""
        if self.failure is None and not self._is_released:
            self.checked_end = self._log_end
            self._check_segment(self._segments.active)

    def check_segment_at(self, path: str) -> None:
        """The same for the file at the path, if it is one of this log."""
        for segment in [one for one in self._segments if one.log.path == path]:
            self._check_segment(segment)

    def _check_segment(self, segment: Segment) -> None:
        try:
            segment.check_file()
        except OSError as error:
            self.refused(error)

    def note_damage(self, error: CorruptRecords, offset: Offset) -> None:
        """Records from `offset` on could not be read: the file's content is not what was written.

        Where other replicas have what is damaged here this log fails, so that one of them leads
        and this one can be fetched again: raises StorageFailed. The last replica goes on with all
        that it has besides.
        """
        cause = f"{error}, in a read from offset {offset}"
        if self.can_be_replaced():
            raise self._fail(cause) from error
        self._context.owner.note_damage(self.partition, cause)

    def _fail(self, cause: str) -> StorageFailed:
        if self._failure is None:
            self._failure = cause
            self._context.owner.partition_failed(self.partition, self._failure)
            self._forget_limits()
        return StorageFailed(self._context.directory, self._failure)

    def _check(self) -> None:
        slot = self.slot
        start, end, high = slot.log_start, slot.log_end, slot.high_watermark
        stable = self.producers.states.last_stable_offset(log_start=start, high_watermark=high)
        if start <= self._recovery_point <= end and start <= stable <= high <= end:
            return  # spelled out because this runs with every append
        invariant(
            False,
            "I-05 watermarks out of order",
            partition=self.partition,
            log_start=start,
            recovery_point=self._recovery_point,
            last_stable=stable,
            high_watermark=high,
            log_end=end,
        )
