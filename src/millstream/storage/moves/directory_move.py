"""Moving a partition to another log directory of this broker while it is written and read.

    copy, copy, ... > seal > commit > retire the source

Copies run off the loop and take what the log has by then; each finds less to do. The seal writes
the small files and marks both directories (`storage/moves/marks.py`). The commit runs on the loop,
so that nothing is written meanwhile: it copies the short rest, syncs it, renames the copy into
place and continues the log there. A crash before the rename leaves the source valid, one after it
the target; the start finds out. Compaction of the partition waits while it moves.
"""

import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple

from millstream.model.errors import DiskFull, OperatingError, StorageFailed, TooManyOpenFiles
from millstream.model.ids import TopicPartition
from millstream.model.limits import MIB
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.disk import remove_tree, write_all_atomically, write_atomically
from millstream.storage import names
from millstream.storage.directories.partition_metadata import encode_topic_id
from millstream.storage.log.base import LogContext
from millstream.storage.log.log import Log
from millstream.storage.moves.copy import Copier, CopyFailed, CopyPlan, SegmentPart, Side, blame
from millstream.storage.moves.marks import SOURCE_RETIRED, Mark, remove_mark
from millstream.storage.segments.sparse_index import IndexDamaged
from millstream.storage.segments.txn_index import TransactionIndex
from millstream.storage.throttle import CleaningCancelled, Throttle

JOB_BYTES_MAX: Final = 32 * MIB
"""Of one job: a large partition must not occupy a thread that flushes of others need."""

TAIL_BYTES_MAX: Final = MIB
"""What the commit may copy on the loop, as a rule: a few milliseconds."""

TAIL_DOUBLINGS_MAX: Final = 5
"""A log that grows faster than it is copied is committed with a longer rest, 32 MiB at most."""


class MoveEnd(Enum):
    """How a move ended."""

    MOVED = "moved"
    CANCELLED = "cancelled, or the partition was closed or deleted"
    DISK_FULL = "no room in the target directory"
    NO_DESCRIPTORS = "the process has too many open files"
    FAILED = "log directory failed"


class MoveReport(NamedTuple):
    """The end of a move, for the broker's log."""

    partition: TopicPartition
    target: str
    end: MoveEnd
    detail: str = ""


class MoveDependencies(NamedTuple):
    """What all moves of a broker share."""

    background: Background
    throttle: Throttle
    on_moved: Callable[[LogContext], None]
    """Called at once when a log continues in its new directory."""
    on_end: Callable[[MoveReport], None]


class DirectoryMove:
    """The move of one partition. Registers itself as the log's maintenance."""

    def __init__(
        self, log: Log, context: LogContext, unique: str, dependencies: MoveDependencies
    ) -> None:
        self.log = log
        self.target = context.owner
        self._source = log.context
        self._context = context
        self._unique = unique
        self._disk = context.owner.disk
        self._dependencies = dependencies
        future = names.future_directory(log.partition, unique)
        self.future = f"{context.owner.path}/{future}"
        self._copier = self._new_copier()
        self._truncations = log.truncations
        self._rounds = 0
        """How often the copy had all that the log had when it began."""
        self._is_moved = False
        self._is_abandoned = False
        self._is_stopped = False
        self._is_over = False
        self._stalled: Callable[[], None] | None = None
        self._arrived: deque[Callable[[], None]] = deque()
        self._is_handling = False

    def _new_copier(self) -> Copier:
        return Copier(
            self._disk,
            source=self._source.directory,
            target=self.future,
            throttle=self._dependencies.throttle,
        )

    # -- what others see -------------------------------------------------------------------

    @property
    def is_given_up(self) -> bool:
        """Whether it ends without the copy being used."""
        return self._is_abandoned or self._is_over

    @property
    def size_bytes(self) -> int:
        """Bytes of batches that were copied."""
        return self._copier.size_bytes

    @property
    def offset_lag(self) -> int:
        """How far the copy is behind the log."""
        return max(0, self.log.log_end - max(self._copier.end_offset, self.log.log_start))

    # -- called by the log -----------------------------------------------------------------

    def wind_down(self) -> None:
        """The log is about to be truncated: the copy is restarted when `truncations` has grown."""

    def abandon(self) -> None:
        """The log is closed or deleted, or the move was cancelled: the source is not touched."""
        self._is_abandoned = True
        self._copier.cancel.set()
        if self.log.maintenance is self:
            self.log.maintenance = None

    # -- called by the moves ---------------------------------------------------------------

    def start(self) -> None:
        """Begin; if the partition is being compacted, once that has ended."""
        if self._is_abandoned:
            self._clear(MoveEnd.CANCELLED)
            return
        if self.log.maintenance is not None:
            self.log.maintenance.wind_down()
            self._stalled = self.start
            return
        self.log.maintenance = self
        self._guarded(self._begin_copy)

    def stop(self) -> None:
        """The broker stops, and the background accepts nothing more; the next start cleans up."""
        self._is_stopped = True
        self.abandon()

    def resume(self) -> None:
        """Try again what the background had no room for, or what compaction delayed."""
        stalled, self._stalled = self._stalled, None
        if stalled is not None:
            stalled()

    # -- steps -----------------------------------------------------------------------------

    def _begin_copy(self) -> None:
        # Checkpoints of an earlier copy of the partition in the target are not valid for this one.
        self.target.forget(self.log.partition)
        self._copy()

    def _copy(self) -> None:
        plan = self._plan()
        copier = self._copier
        self._submit(lambda: copier.copy(plan, bytes_max=JOB_BYTES_MAX), self._copied, "copy")

    def _copied(self, is_all: bool) -> None:  # noqa: FBT001 - what the job returned
        self._rounds += is_all
        if self._is_void():
            self._restart_copy()
        elif not is_all or self._copier.missing_bytes(self._plan()) > self._tail_max():
            self._copy()
        else:
            self._seal()

    def _seal(self) -> None:
        self._store_checkpoints()
        self._rounds += 1
        disk, copier, plan = self._disk, self._copier, self._plan()
        files = self._small_files()
        permit = f"{self._source.directory}/{names.MOVING_AWAY}"

        def seal() -> None:
            copier.copy(plan, bytes_max=JOB_BYTES_MAX)
            with blame(Side.TARGET):
                write_all_atomically(disk, files)
            with blame(Side.SOURCE):
                write_atomically(disk, permit, Mark(self._unique, self.target.path).encode())

        self._submit(seal, self._sealed, "seal")

    def _sealed(self, _: None) -> None:
        if self._is_void():
            self._restart_copy()
        elif self._copier.missing_bytes(self._plan()) > self._tail_max():
            self._copy()
        else:
            self._commit()

    def _commit(self) -> None:
        """Nothing is appended while this runs: it is the log's own thread."""
        self.log.slot.write_staged()
        plan = self._plan()
        total_bytes = sum(part.size_bytes for part in plan.parts)
        self._copier.copy(plan, bytes_max=total_bytes, is_hurried=True)
        self._copy_waiting_aborts()
        with blame(Side.TARGET):
            write_all_atomically(self._disk, self._small_files())
        self.target.store(names.LOG_STARTS, {self.log.partition: self.log.log_start})
        with blame(Side.TARGET):
            self._disk.rename(self.future, self._context.directory)
        try:
            self._disk.sync_directory(self.target.path)
        except OSError as error:
            self._withdraw(error)
            return
        self._is_moved = True
        self.log.move_to(self._context)
        self.log.maintenance = None
        self._dependencies.on_moved(self._context)
        self._retire_source()

    def _copy_waiting_aborts(self) -> None:
        """Aborted transactions that the source had no room to write are in memory only."""
        active = self.log.segments.active
        if not active.txn_index.has_waiting:
            return
        copy = TransactionIndex(
            self._disk, names.segment_path(self.future, active.base_offset, names.TXN_INDEX)
        )
        with blame(Side.SOURCE):
            missing = active.txn_index.entries()[len(copy) :]
        with blame(Side.TARGET):
            for aborted in missing:
                copy.append(aborted)
            copy.save()  # a full disk ends the move here, `append` would tolerate it
            copy.sync()

    def _withdraw(self, error: OSError) -> None:
        """It is unknown which name a restart will find, so the source must be marked as valid."""
        source = self._source
        reason = self.target.failed(error)
        try:
            self._disk.remove(f"{source.directory}/{names.MOVING_AWAY}")
            self._disk.sync_directory(source.directory)
        except OSError as failure:
            source.owner.failed(failure)  # also without a descriptor: it must not be used then
        self._finish(MoveEnd.FAILED, str(reason))

    def _retire_source(self) -> None:
        """The log is in the target now; an error of the old directory does not change that."""
        source, disk = self._source, self._disk
        partition = self.log.partition
        deleted_path = f"{source.owner.path}/{names.deleted_directory(partition, self._unique)}"

        def mark_source_retired() -> None:
            # The source may be offline forever from here on: the target must record its retirement.
            with blame(Side.TARGET), suppress(FileNotFoundError):  # deleted meanwhile
                mark = f"{self._context.directory}/{names.MOVED_HERE}"
                write_atomically(disk, mark, Mark(self._unique, SOURCE_RETIRED).encode())

        try:
            disk.rename(source.directory, deleted_path)
        except OSError as error:
            source.owner.failed(error)
            self._submit(mark_source_retired, lambda _: self._finish(MoveEnd.MOVED), "mark retired")
            return

        def retire() -> None:
            mark_source_retired()
            with blame(Side.SOURCE):
                disk.sync_directory(source.owner.path)
            with blame(Side.TARGET):
                remove_mark(disk, self._context.directory, names.MOVED_HERE)
            with blame(Side.SOURCE):
                remove_tree(disk, deleted_path)

        with suppress(DiskFull, TooManyOpenFiles, StorageFailed):
            source.owner.forget(partition)
        self._submit(retire, lambda _: self._finish(MoveEnd.MOVED), "retire")

    # -- state of the log ------------------------------------------------------------------

    def _plan(self) -> CopyPlan:
        log = self.log
        segments = log.segments
        parts = []
        for segment in segments:
            end = segments.end_of(segment)
            parts.append(
                SegmentPart(
                    segment.base_offset,
                    segment.size_bytes,
                    log.log_end if end is None else end,
                    is_closed=end is not None,
                )
            )
        return CopyPlan(parts, log.producers.snapshot_offsets, log.truncations)

    def _is_void(self) -> bool:
        return self.log.truncations != self._truncations

    def _restart_copy(self) -> None:
        """The log was truncated: what was copied may be what is gone."""
        self._truncations = self.log.truncations
        self._copier = self._new_copier()
        disk, future = self._disk, self.future

        def clear() -> None:
            with blame(Side.TARGET):
                for name in disk.list_directory(future):
                    disk.remove(f"{future}/{name}")

        self._submit(clear, lambda _: self._copy(), "clear")

    def _tail_max(self) -> int:
        return TAIL_BYTES_MAX << min(max(0, self._rounds - 1), TAIL_DOUBLINGS_MAX)

    def _small_files(self) -> dict[str, bytes]:
        """What the copy needs besides its segments. Older Kafka's directories have no topic id."""
        files = {
            names.LEADER_EPOCHS: self.log.epochs.encode(),
            names.MOVED_HERE: Mark(self._unique, self._source.owner.path).encode(),
        }
        if self.log.context.topic_id is not None:
            files[names.PARTITION_METADATA] = encode_topic_id(self.log.context.topic_id)
        return {f"{self.future}/{name}": content for name, content in files.items()}

    def _store_checkpoints(self) -> None:
        """In the target: deleted records must not come back, and a start must be quick."""
        log, target = self.log, self.target
        # Closed segments that were copied are durable with their indexes.
        covered = min(log.segments.active.base_offset, self._copier.end_offset)
        stored = {
            names.LOG_STARTS: log.log_start,
            names.HIGH_WATERMARKS: log.high_watermark,
            names.RECOVERY_POINTS: max(log.log_start, covered),
            names.CLEANER_OFFSETS: log.first_dirty_offset,
        }
        for name, offset in stored.items():
            if name != names.CLEANER_OFFSETS or log.config.cleanup_compact:
                target.store(name, {log.partition: offset})

    # -- machinery -------------------------------------------------------------------------

    def _submit(self, work: Callable[[], Any], then: Callable[[Any], None], name: str) -> None:
        if self._is_stopped:
            return
        try:
            self._dependencies.background.submit(
                work,
                lambda outcome: self._arrive(lambda: self._handle(outcome, then, name)),
                name=f"move of {self.log.partition}: {name}",
            )
        except BackgroundFullError:
            self._stalled = lambda: self._submit(work, then, name)

    def _arrive(self, handle: Callable[[], None]) -> None:
        """Handle outcomes one after the other, also when the background delivers them at once."""
        self._arrived.append(handle)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._arrived:
                self._arrived.popleft()()
        finally:
            self._is_handling = False

    def _handle(self, outcome: Outcome[Any], then: Callable[[Any], None], name: str) -> None:
        if name == "remove":
            then(outcome)
        elif self._is_abandoned and not self._is_moved:
            self._clear(MoveEnd.CANCELLED)
        else:
            self._guarded(lambda: self._continue(outcome, then))

    def _continue(self, outcome: Outcome[Any], then: Callable[[Any], None]) -> None:
        value = outcome.result()
        if not self._is_moved:
            self._source.owner.check_usable()
        self.target.check_usable()
        then(value)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; an error of a disk ends the move and leaves the log as it was."""
        try:
            step()
        except CopyFailed as failed:
            self._on_copy_failed(failed)
        except CleaningCancelled:
            self._clear(MoveEnd.CANCELLED)
        except DiskFull as error:
            self._clear(MoveEnd.DISK_FULL, str(error))
        except TooManyOpenFiles as error:
            self._clear(MoveEnd.NO_DESCRIPTORS, str(error))
        except (OperatingError, IndexDamaged) as error:
            self._clear(MoveEnd.FAILED, str(error))

    def _on_copy_failed(self, failed: CopyFailed) -> None:
        is_outdated = failed.error.errno in (errno.ENOENT, errno.EIO) and (
            self._is_void() or not self._has_segment(failed.error.filename)
        )
        if failed.side is Side.SOURCE and is_outdated and not self._is_moved:
            self._guarded(self._restart_copy if self._is_void() else self._copy)
            return
        owner = self._source.owner if failed.side is Side.SOURCE else self.target
        error = failed.error
        refusal = owner.flush_failed(error) if failed.is_sync else owner.refused(error)
        if self._is_moved:
            self._finish(MoveEnd.MOVED, str(refusal))
        elif isinstance(refusal, DiskFull):
            self._clear(MoveEnd.DISK_FULL, str(refusal))
        elif isinstance(refusal, TooManyOpenFiles):
            self._clear(MoveEnd.NO_DESCRIPTORS, str(refusal))
        else:
            self._clear(MoveEnd.FAILED, str(refusal))

    def _has_segment(self, path: str | None) -> bool:
        """Whether the log still has that segment: retention may have been faster than the copy."""
        return any(segment.path(names.LOG) == path for segment in self.log.segments)

    def _clear(self, end: MoveEnd, detail: str = "") -> None:
        """Remove the copy and the mark, then end."""
        disk, future, source = self._disk, self.future, self._source.directory

        def remove() -> None:
            with suppress(OSError):
                remove_mark(disk, source, names.MOVING_AWAY)
            with suppress(OSError):
                remove_tree(disk, future)

        self._unregister()
        self._submit(remove, lambda _: self._finish(end, detail), "remove")

    def _unregister(self) -> None:
        if self.log.maintenance is self:
            self.log.maintenance = None

    def _finish(self, end: MoveEnd, detail: str = "") -> None:
        self._is_over = True
        self._unregister()
        self._dependencies.on_end(MoveReport(self.log.partition, self.target.path, end, detail))
