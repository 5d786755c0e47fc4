"""Moving a partition to another log directory of this broker while it is written and read.

    copy, copy, ... > seal > commit > retire the source

Copies run off the loop and take what the log has by then; each finds less to do. The seal writes
the small files and marks both directories (`storage/moves/marks.py`). The commit runs on the loop,
so that nothing is written meanwhile: it copies the short rest, syncs it, renames the copy into
place and lets the log go on there. A crash before the renaming leaves the source valid, one after
it the target; the start finds out. Compaction of the partition waits while it moves.
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
from millstream.storage.moves.copy import Copier, CopyFailed, CopyPlan, SegmentPart, Side, blaming
from millstream.storage.moves.marks import SETTLED, Mark, remove_mark
from millstream.storage.segments.sparse_index import IndexDamaged
from millstream.storage.segments.txn_index import TransactionIndex
from millstream.storage.throttle import CleaningCancelled, Throttle

JOB_BYTES_MAX: Final = 32 * MIB
"""Of one job: a large partition must not keep a thread from the flushes of all others."""

TAIL_BYTES_MAX: Final = MIB
"""What the commit may copy on the loop, as a rule: a few milliseconds."""

TAIL_DOUBLINGS_MAX: Final = 5
"""A log that grows faster than it is copied is let in with a longer rest, 32 MiB at the most."""


class MoveEnd(Enum):
    """How a move came out."""

    MOVED = "moved"
    CANCELLED = "cancelled, or the partition was closed or deleted"
    DISK_FULL = "no room in the target directory"
    NO_DESCRIPTORS = "the process has too many open files"
    FAILED = "log directory failed"


class MoveReport(NamedTuple):
    """The end of a move, for the operator's log."""

    partition: TopicPartition
    target: str
    end: MoveEnd
    detail: str = ""


class Surroundings(NamedTuple):
    """What every move of a broker borrows."""

    background: Background
    throttle: Throttle
    on_moved: Callable[[LogContext], None]
    """Told at once when a log went on elsewhere."""
    on_end: Callable[[MoveReport], None]


class DirectoryMove:
    """One partition on its way. Registers itself with the log as what must give way."""

    def __init__(self, log: Log, context: LogContext, unique: str, around: Surroundings) -> None:
        self.log = log
        self.target = context.owner
        self._source = log.context
        self._context = context
        self._unique = unique
        self._disk = context.owner.disk
        self._around = around
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
            throttle=self._around.throttle,
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

    def settle(self) -> None:
        """The log is about to be truncated. Its count of truncations tells us all we need."""

    def abandon(self) -> None:
        """The log is closed or deleted, or the move was cancelled: the source is not touched."""
        self._is_abandoned = True
        self._copier.cancel.set()
        if self.log.cleaning is self:
            self.log.cleaning = None

    # -- called by the moves ---------------------------------------------------------------

    def start(self) -> None:
        """Begin; where the partition is being compacted, once that has given way."""
        if self._is_abandoned:
            self._clear(MoveEnd.CANCELLED)
            return
        if self.log.cleaning is not None:
            self.log.cleaning.settle()
            self._stalled = self.start
            return
        self.log.cleaning = self
        self._guarded(self._begin_copy)

    def stop(self) -> None:
        """The broker stops, and the background takes nothing more; the next start clears up."""
        self._is_stopped = True
        self.abandon()

    def resume(self) -> None:
        """Try again what the background had no room for, or what compaction kept waiting."""
        stalled, self._stalled = self._stalled, None
        if stalled is not None:
            stalled()

    # -- steps -----------------------------------------------------------------------------

    def _begin_copy(self) -> None:
        # What an earlier stay of the partition left in the checkpoints must not speak for this one.
        self.target.forget(self.log.partition)
        self._copy()

    def _copy(self) -> None:
        plan = self._plan()
        copier = self._copier
        self._submit(lambda: copier.copy(plan, bytes_max=JOB_BYTES_MAX), self._copied, "copy")

    def _copied(self, is_all: bool) -> None:  # noqa: FBT001 - what the job returned
        self._rounds += is_all
        if self._is_void():
            self._begin_anew()
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
            with blaming(Side.TARGET):
                write_all_atomically(disk, files)
            with blaming(Side.SOURCE):
                write_atomically(disk, permit, Mark(self._unique, self.target.path).encode())

        self._submit(seal, self._sealed, "seal")

    def _sealed(self, _: None) -> None:
        if self._is_void():
            self._begin_anew()
        elif self._copier.missing_bytes(self._plan()) > self._tail_max():
            self._copy()
        else:
            self._commit()

    def _commit(self) -> None:
        """Nothing is appended while this runs: it is the log's own thread."""
        self.log.slot.flush_staged()
        plan = self._plan()
        total_bytes = sum(part.size_bytes for part in plan.parts)
        self._copier.copy(plan, bytes_max=total_bytes, is_hurried=True)
        self._copy_waiting_aborts()
        with blaming(Side.TARGET):
            write_all_atomically(self._disk, self._small_files())
        self.target.store(names.LOG_STARTS, {self.log.partition: self.log.log_start})
        with blaming(Side.TARGET):
            self._disk.rename(self.future, self._context.directory)
        try:
            self._disk.sync_directory(self.target.path)
        except OSError as error:
            self._withdraw(error)
            return
        self._is_moved = True
        self.log.move_to(self._context)
        self.log.cleaning = None
        self._around.on_moved(self._context)
        self._retire_source()

    def _copy_waiting_aborts(self) -> None:
        """Aborted transactions that the source had no room to write are in memory only."""
        active = self.log.segments.active
        if not active.txn_index.has_waiting:
            return
        copy = TransactionIndex(
            self._disk, names.segment_path(self.future, active.base_offset, names.TXN_INDEX)
        )
        with blaming(Side.SOURCE):
            missing = active.txn_index.entries()[len(copy) :]
        with blaming(Side.TARGET):
            for aborted in missing:
                copy.append(aborted)
            copy.save()  # a full disk ends the move here, `append` alone would bear it
            copy.sync()

    def _withdraw(self, error: OSError) -> None:
        """Nobody knows which name a restart will find, so the source must say that it counts."""
        source = self._source
        reason = self.target.failed(error)
        try:
            self._disk.remove(f"{source.directory}/{names.MOVING_AWAY}")
            self._disk.sync_directory(source.directory)
        except OSError as failure:
            source.owner.failed(failure)  # for want of a descriptor too: it must not be used then
        self._finish(MoveEnd.FAILED, str(reason))

    def _retire_source(self) -> None:
        """The log is elsewhere now; an error of the old directory changes nothing about that."""
        source, disk = self._source, self._disk
        partition = self.log.partition
        doomed = f"{source.owner.path}/{names.deleted_directory(partition, self._unique)}"

        def settle() -> None:
            # The source may be offline for ever from here on: that it let go must be known here.
            with blaming(Side.TARGET), suppress(FileNotFoundError):  # deleted meanwhile
                mark = f"{self._context.directory}/{names.MOVED_HERE}"
                write_atomically(disk, mark, Mark(self._unique, SETTLED).encode())

        try:
            disk.rename(source.directory, doomed)
        except OSError as error:
            source.owner.failed(error)
            self._submit(settle, lambda _: self._finish(MoveEnd.MOVED), "settle")
            return

        def retire() -> None:
            settle()
            with blaming(Side.SOURCE):
                disk.sync_directory(source.owner.path)
            with blaming(Side.TARGET):
                remove_mark(disk, self._context.directory, names.MOVED_HERE)
            with blaming(Side.SOURCE):
                remove_tree(disk, doomed)

        with suppress(DiskFull, TooManyOpenFiles, StorageFailed):
            source.owner.forget(partition)
        self._submit(retire, lambda _: self._finish(MoveEnd.MOVED), "retire")

    # -- what the log is -------------------------------------------------------------------

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

    def _begin_anew(self) -> None:
        """The log was truncated: what was copied may be what is gone."""
        self._truncations = self.log.truncations
        self._copier = self._new_copier()
        disk, future = self._disk, self.future

        def clear() -> None:
            with blaming(Side.TARGET):
                for name in disk.list_directory(future):
                    disk.remove(f"{future}/{name}")

        self._submit(clear, lambda _: self._copy(), "clear")

    def _tail_max(self) -> int:
        return TAIL_BYTES_MAX << min(max(0, self._rounds - 1), TAIL_DOUBLINGS_MAX)

    def _small_files(self) -> dict[str, bytes]:
        """What the copy needs besides its segments. No topic id: a directory of an older Kafka."""
        files = {
            names.LEADER_EPOCHS: self.log.epochs.encode(),
            names.MOVED_HERE: Mark(self._unique, self._source.owner.path).encode(),
        }
        if self.log.context.topic_id is not None:
            files[names.PARTITION_METADATA] = encode_topic_id(self.log.context.topic_id)
        return {f"{self.future}/{name}": content for name, content in files.items()}

    def _store_checkpoints(self) -> None:
        """Into the target: what was deleted must not come back, and a start must be quick."""
        log, target = self.log, self.target
        # Closed segments that were copied are durable with their indexes.
        covered = min(log.segments.active.base_offset, self._copier.end_offset)
        stored = {
            names.LOG_STARTS: log.log_start,
            names.HIGH_WATERMARKS: log.high_watermark,
            names.RECOVERY_POINTS: max(log.log_start, covered),
            names.CLEANER_OFFSETS: log.first_dirty,
        }
        for name, offset in stored.items():
            if name != names.CLEANER_OFFSETS or log.config.cleanup_compact:
                target.store(name, {log.partition: offset})

    # -- machinery -------------------------------------------------------------------------

    def _submit(self, work: Callable[[], Any], then: Callable[[Any], None], name: str) -> None:
        if self._is_stopped:
            return
        try:
            self._around.background.submit(
                work,
                lambda outcome: self._arrive(lambda: self._handle(outcome, then, name)),
                name=f"move of {self.log.partition}: {name}",
            )
        except BackgroundFullError:
            self._stalled = lambda: self._submit(work, then, name)

    def _arrive(self, handle: Callable[[], None]) -> None:
        """Handle answers one after the other, also when the background gives them at once."""
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
            self._guarded(lambda: self._go_on(outcome, then))

    def _go_on(self, outcome: Outcome[Any], then: Callable[[Any], None]) -> None:
        value = outcome.result()
        if not self._is_moved:
            self._source.owner.check_usable()
        self.target.check_usable()
        then(value)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; whatever the disks say ends the move and leaves the log as it was."""
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
            self._is_void() or not self._is_there(failed.error.filename)
        )
        if failed.side is Side.SOURCE and is_outdated and not self._is_moved:
            self._guarded(self._begin_anew if self._is_void() else self._copy)
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

    def _is_there(self, path: str | None) -> bool:
        """Whether the log still has that segment: retention may have been faster than the copy."""
        return any(segment.path(names.LOG) == path for segment in self.log.segments)

    def _clear(self, end: MoveEnd, detail: str = "") -> None:
        """Throw the copy away, take the mark back, then end."""
        disk, future, source = self._disk, self.future, self._source.directory

        def remove() -> None:
            with suppress(OSError):
                remove_mark(disk, source, names.MOVING_AWAY)
            with suppress(OSError):
                remove_tree(disk, future)

        self._let_go()
        self._submit(remove, lambda _: self._finish(end, detail), "remove")

    def _let_go(self) -> None:
        if self.log.cleaning is self:
            self.log.cleaning = None

    def _finish(self, end: MoveEnd, detail: str = "") -> None:
        self._is_over = True
        self._let_go()
        self._around.on_end(MoveReport(self.log.partition, self.target.path, end, detail))
