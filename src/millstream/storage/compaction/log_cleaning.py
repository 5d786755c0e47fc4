"""One log being cleaned: steps on the owner's thread, jobs between them in another.

    map keys > (write a segment > rename, sync > rename, sync > ... )* > end

The log may change meanwhile. Appends touch nothing that is read here. A truncation first finishes a
swap that has begun, then cancels the rest; so does a stop of the broker, because truncations may
follow it. Retention may remove segments: what was written from them is discarded.
A log that is deleted or closed is not touched again.
"""

import errno
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from millstream.kernels.errors import MalformedRecords
from millstream.model.errors import CorruptRecords, InvalidRecords, StorageFailed
from millstream.model.ids import TopicPartition
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.disk import is_disk_full
from millstream.storage.compaction.job import CleanedGroup, CleaningJob, CleaningStats
from millstream.storage.compaction.swap import Swap
from millstream.storage.log.log import Log
from millstream.storage.segments.segment import Segment
from millstream.storage.segments.sparse_index import IndexDamaged
from millstream.storage.throttle import CancelFlag, CleaningCancelled

OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
CORRUPT_ERRORS: Final = (MalformedRecords, InvalidRecords, CorruptRecords, IndexDamaged)


class CleaningEnd(Enum):
    """How a cleaning ended."""

    CLEANED = "cleaned"
    VOID = "the log changed meanwhile"
    ABANDONED = "the log was closed or deleted, or the broker stops"
    CORRUPT = "the log is corrupt"
    DISK_FULL = "no room for the new segment"
    NO_DESCRIPTORS = "the process has too many open files"
    FAILED = "the log directory failed"


class CleaningReport(NamedTuple):
    """The end of a cleaning."""

    partition: TopicPartition
    end: CleaningEnd
    stats: CleaningStats
    detail: str = ""


class Cleaning:
    """Drives one `CleaningJob`; registers itself as the log's maintenance."""

    def __init__(
        self,
        log: Log,
        job: CleaningJob,
        cancel: CancelFlag,
        background: Background,
        on_end: Callable[[CleaningReport], None],
    ) -> None:
        self._log = log
        self._job = job
        self._cancel = cancel
        self._background = background
        self._on_end = on_end
        self._planned: dict[int, Segment] = {one.base_offset: one for one in log.segments.closed}
        self._swap: Swap | None = None
        self._end: CleaningEnd | None = None
        """Why no further segment is to be swapped in."""
        self._detail = ""
        self._is_over = False
        self._stalled: Callable[[], None] | None = None
        self._repeat: Callable[[], None] | None = None
        """Submits the last job once more."""
        self._arrived: deque[Callable[[], None]] = deque()
        self._is_handling = False

    @property
    def log(self) -> Log:
        return self._log

    @property
    def is_over(self) -> bool:
        return self._is_over

    def start(self) -> None:
        self._log.maintenance = self
        self._submit(self._job.map_keys, self._write_next, "map keys")

    def resume(self) -> None:
        """Try again what the background had no room for."""
        stalled, self._stalled = self._stalled, None
        if stalled is not None and self._end is CleaningEnd.ABANDONED:
            self._finish(CleaningEnd.ABANDONED)
        elif stalled is not None:
            stalled()

    # -- called by the log -----------------------------------------------------------------

    def wind_down(self) -> None:
        """The log is about to be truncated: finish what has begun, begin nothing more."""
        self._stop(CleaningEnd.VOID)
        self._finish_swap()

    def abandon(self) -> None:
        """The log is closed or deleted: its files must not be touched any more."""
        self._stop(CleaningEnd.ABANDONED)
        self._swap = None
        self._log.maintenance = None

    # -- called by the cleaner -------------------------------------------------------------

    def stop(self) -> None:
        """The broker stops, and the background accepts nothing more: finish the swap at once.

        Where that fails, a truncation of the log before it is closed still does it.
        """
        self._stop(CleaningEnd.ABANDONED)
        if self._log.owner.failure is None:
            try:
                self._finish_swap()
            except OSError as error:
                self._log.refused(error)
        self._unregister()

    # -- steps -----------------------------------------------------------------------------

    def _write_next(self, _: None) -> None:
        self._submit(self._job.write_next, self._take, "write")

    def _take(self, group: CleanedGroup | None) -> None:
        if group is None:
            self._log.first_dirty_offset = self._job.mapped_end
            self._finish(CleaningEnd.CLEANED)
        elif group.is_unchanged:
            self._write_next(None)
        else:
            self._begin_swap(group)

    def _begin_swap(self, group: CleanedGroup) -> None:
        old = [self._planned.pop(source.base_offset) for source in group.sources]
        if not all(segment in self._log.segments for segment in old):
            self._stop(CleaningEnd.VOID)  # retention removed some of them
            self._clear()
            return
        self._swap = Swap(self._log, old, group)
        self._advance_swap(None)

    def _advance_swap(self, _: None) -> None:
        swap = self._swap
        if swap is None or swap.is_done:
            self._swap = None
            self._write_next(None)
            return
        swap.step()
        context = self._log.context
        self._submit(
            lambda: context.owner.disk.sync_directory(context.directory), self._advance_swap, "swap"
        )

    def _finish_swap(self) -> None:
        if self._swap is not None:
            self._swap.finish()
            self._swap = None

    def _clear(self) -> None:
        """Remove what was written and not swapped in, then end."""
        self._submit(self._job.remove_leftovers, self._cleared, "clear")

    def _cleared(self, _: None) -> None:
        self._finish(self._end or CleaningEnd.VOID)

    # -- machinery -------------------------------------------------------------------------

    def _submit(self, work: Callable[[], Any], then: Callable[[Any], None], name: str) -> None:
        def run() -> None:
            self._background.submit(
                work,
                lambda outcome: self._arrive(lambda: self._handle(outcome, then, name)),
                name=f"compaction of {self._log.partition}: {name}",
            )

        self._repeat = lambda: self._submit(work, then, name)
        try:
            run()
        except BackgroundFullError:
            self._stalled = self._repeat

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
        if self._end is CleaningEnd.ABANDONED:
            self._finish(CleaningEnd.ABANDONED)
            return
        try:
            if outcome.error is not None:
                self._on_error(outcome.error, name)
            elif self._end is not None and name != "clear":
                self._finish_swap()  # where `wind_down` could not
                self._clear()
            else:
                self._log.owner.check_usable()
                then(outcome.value)
        except OSError as error:
            if name in ("swap", "clear") and error.errno in OUT_OF_DESCRIPTORS:
                self._stalled = self._repeat  # half a swap must not stay: retried later
                return
            self._log.failed(error)
            self._fail(CleaningEnd.FAILED, str(error))
        except StorageFailed as error:
            self._fail(CleaningEnd.FAILED, str(error))

    def _on_error(self, error: BaseException, name: str) -> None:
        if isinstance(error, OSError):
            self._on_disk_error(error, name)
        elif isinstance(error, (CleaningCancelled, *CORRUPT_ERRORS)):
            # What was read while the log was being truncated may be anything.
            self._stop(CleaningEnd.CORRUPT, str(error))
            self._clear()
        else:
            raise error

    def _on_disk_error(self, error: OSError, name: str) -> None:
        is_outdated = self._end is not None or not self._has_all_planned()
        if name in ("map keys", "write") and error.errno == errno.ENOENT and is_outdated:
            self._stop(CleaningEnd.VOID)
        elif name == "write" and is_disk_full(error):
            self._log.owner.full()
            self._stop(CleaningEnd.DISK_FULL, str(error))
        elif name in ("map keys", "write") and error.errno in OUT_OF_DESCRIPTORS:
            self._stop(CleaningEnd.NO_DESCRIPTORS, str(error))
        else:
            raise error
        self._clear()

    def _has_all_planned(self) -> bool:
        return all(segment in self._log.segments for segment in self._planned.values())

    def _stop(self, end: CleaningEnd, detail: str = "") -> None:
        if self._end is None or end is CleaningEnd.ABANDONED:
            self._end, self._detail = end, detail
        self._cancel.set()

    def _fail(self, end: CleaningEnd, detail: str) -> None:
        self._stop(end, detail)
        self._finish(end)

    def _finish(self, end: CleaningEnd) -> None:
        self._is_over = True
        self._unregister()
        report = CleaningReport(self._log.partition, end, self._job.stats, self._detail)
        self._on_end(report)

    def _unregister(self) -> None:
        if self._log.maintenance is self and self._swap is None:
            self._log.maintenance = None
