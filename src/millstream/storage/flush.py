"""Making a log durable without blocking its owner: jobs for another thread, and group commit."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from millstream.model.errors import DiskFull, OperatingError, StorageFailed
from millstream.model.ids import Offset
from millstream.model.limits import LOGS_PER_SYNC_MAX
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.disk import Disk, is_disk_full
from millstream.storage.directories.log_directory import LogDirectory, is_descriptor_shortage
from millstream.storage.epochs import EpochFile, EpochImage, write_images
from millstream.storage.segments.files import PooledFile

SEGMENTS_PER_FLUSH_MAX: Final = 64
"""Segments of one log in one job: after a lost checkpoint there may be thousands to sync."""

SMALL_FILES_AT_ONCE_MAX: Final = 64
"""Indexes, snapshots and epoch files that one round of a flush holds open."""


class FlushJob:
    """What must reach the disk so that everything below `end_offset` survives a power loss.

    Built by the log's owner, run by any thread, handed back to `Log.finish_flush`.
    """

    __slots__ = (
        "active_base",
        "directory",
        "disk",
        "end_offset",
        "epoch_file",
        "epochs",
        "index_paths",
        "is_whole",
        "logs",
        "snapshots",
        "synced",
        "truncations",
    )

    def __init__(
        self, disk: Disk, epoch_file: EpochFile, end_offset: Offset, truncations: int
    ) -> None:
        self.disk = disk
        self.epoch_file = epoch_file
        self.directory: str | None = None
        """The directory whose names must be synced too; None when they are."""
        self.end_offset = end_offset
        self.is_whole = True
        """Whether it covers all the log had; if not, another job has to follow."""
        self.active_base = end_offset
        """Base of the segment that was active: its data is synced, its indexes are not."""
        self.truncations = truncations
        """How often the log had been truncated when the job was made; if more, it is void."""
        self.logs: list[PooledFile] = []
        self.synced: list[PooledFile] = []
        self.index_paths: list[str] = []
        self.snapshots: list[Offset] = []
        """Of producers, whose files are among those paths."""
        self.epochs: EpochImage | None = None

    def add_log(self, file: PooledFile) -> None:
        file.pin()
        self.logs.append(file)

    def run(self) -> None:
        """Sync data first, then the names that lead to it. Raises OSError."""
        run_jobs([self])

    def release(self) -> None:
        """Unpin the files; called by the owner whether the job succeeded or not."""
        for log in self.logs:
            log.unpin()
        self.synced, self.logs = self.logs, []


def run_jobs(jobs: Sequence[FlushJob]) -> None:
    """Run jobs of one disk together: their syncs run in parallel.

    Raises OSError, or DiskFull when data was synced but there was no room for leader epochs.
    """
    if not jobs:
        return
    disk = jobs[0].disk
    _sync_files(disk, jobs)
    with ExitStack() as held:
        for job in jobs:
            held.enter_context(job.epoch_file.lock)
        # A partition may have been deleted meanwhile.
        present = [job for job in jobs if not job.epoch_file.is_retired]
        done = _write_epochs(disk, [job.epochs for job in present if job.epochs is not None])
        names = {job.directory for job in present if job.directory is not None}
        disk.sync_many([], sorted(names - done))


def _sync_files(disk: Disk, jobs: Sequence[FlushJob]) -> None:
    """The logs are open already; the rest is opened for this, so only some at a time."""
    files = [log.open() for job in jobs for log in job.logs]
    paths = [path for job in jobs for path in job.index_paths]
    for start in range(0, max(1, len(paths)), SMALL_FILES_AT_ONCE_MAX):
        with ExitStack() as opened:
            for path in paths[start : start + SMALL_FILES_AT_ONCE_MAX]:
                # Retention or compaction may have taken the segment; an index can be rebuilt.
                with suppress(FileNotFoundError):
                    files.append(opened.enter_context(disk.open_read(path)))
            disk.sync_many(files, [])
        files = []


def _write_epochs(disk: Disk, images: Sequence[EpochImage]) -> set[str]:
    """Replace the epoch files; the directories whose names were synced with that."""
    done: set[str] = set()
    for start in range(0, len(images), SMALL_FILES_AT_ONCE_MAX):
        group = images[start : start + SMALL_FILES_AT_ONCE_MAX]
        try:
            done |= write_images(disk, group)
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(group[0].file.path) from error
            raise
    return done


class Flushable(Protocol):
    """The part of a log that group commit needs."""

    @property
    def owner(self) -> LogDirectory: ...

    @property
    def failure(self) -> str | None: ...

    def check_health(self) -> None: ...

    def begin_flush(self, *, is_closing: bool = False) -> FlushJob | None: ...

    def finish_flush(self, job: FlushJob) -> None: ...

    def abandon_flush(self, job: FlushJob) -> None: ...


FlushDone = Callable[[OperatingError | None], None]
L = TypeVar("L", bound=Flushable)


def begin_together(
    logs: Sequence[L], *, is_closing: bool = False
) -> list[tuple[L, FlushJob | None]]:
    """Jobs for the first of the logs, as many as may hold their files open at once.

    Raises what the first `begin_flush` that failed raised; no file is held then.
    """
    begun: list[tuple[L, FlushJob | None]] = []
    held_count = 0
    for log in logs:
        if held_count >= LOGS_PER_SYNC_MAX:
            break
        try:
            job = log.begin_flush(is_closing=is_closing)
        except (OSError, OperatingError) as error:
            if held_count and isinstance(error, OSError) and is_descriptor_shortage(error):
                break  # those that were begun give theirs back when they are done
            abandon_together(begun)
            raise
        begun.append((log, job))
        held_count += len(job.logs) if job is not None else 0
    return begun


def abandon_together(begun: Sequence[tuple[Flushable, FlushJob | None]]) -> None:
    """The jobs failed, or were not run."""
    for log, job in begun:
        if job is not None:
            job.release()
            log.abandon_flush(job)


def finish_together(begun: Sequence[tuple[L, FlushJob | None]]) -> list[L]:
    """The jobs succeeded; the logs of which there is more to flush."""
    for log, job in begun:
        if job is not None:
            job.release()
            log.finish_flush(job)
    return [log for log, job in begun if job is not None and not job.is_whole]


class _Waiter(NamedTuple):
    log: Flushable
    done: FlushDone


class GroupCommit:
    """One flush at a time per directory; requests that come meanwhile share the next one.

    An fsync costs about the same for one record as for a thousand, so waiting for the running one
    and sharing the next makes a busy broker faster, not slower. What would need too many open files
    is done in several rounds.
    """

    def __init__(
        self,
        directory: LogDirectory,
        background: Background,
        *,
        reroute: Callable[[Flushable, FlushDone], None] | None = None,
    ) -> None:
        """`reroute` requests the flush of a log that moved to another directory."""
        self._directory = directory
        self._background = background
        self._waiting: list[_Waiter] = []
        self._is_running = False
        self._is_stopped = False
        self._reroute = reroute

    def request(self, log: Flushable, done: FlushDone) -> None:
        """Flush everything the log has now; `done` is called when it is durable, or failed."""
        self._waiting.append(_Waiter(log, done))
        self.resume()

    def resume(self) -> None:
        """Start what is waiting, if anything is: after the background had no room for it."""
        if self._waiting and not self._is_running and not self._is_stopped:
            self._start()

    def stop(self) -> None:
        """Start no more: the background is about to close, and a clean stop flushes everything.

        Pending callbacks are not called; no client is left to answer by then.
        """
        self._is_stopped = True

    def _start(self) -> None:
        moved = [one for one in self._waiting if one.log.owner is not self._directory]
        if moved and self._reroute is not None:
            self._waiting = [one for one in self._waiting if one.log.owner is self._directory]
            for waiter in moved:  # an error must be the other directory's
                self._reroute(waiter.log, waiter.done)
        self._refuse_broken()
        if not self._waiting or self._is_running:  # a callback may have requested the next
            return
        # A dict keeps each log once, in order: many waiters, one sync.
        logs = list({id(waiter.log): waiter.log for waiter in self._waiting}.values())
        try:
            begun = begin_together(logs)
        except (OSError, OperatingError) as error:
            refused, self._waiting = self._waiting, []
            self._notify(refused, self._reason(error))
            return
        chosen = {id(log) for log, _ in begun}
        waiters = [waiter for waiter in self._waiting if id(waiter.log) in chosen]
        self._waiting = [waiter for waiter in self._waiting if id(waiter.log) not in chosen]
        self._is_running = True

        def run() -> None:
            run_jobs([job for _, job in begun if job is not None])

        def completed(outcome: Outcome[None]) -> None:
            self._is_running = False
            self._finish(waiters, begun, outcome.error)
            self.resume()  # unless one is running: a callback may have requested the next

        try:
            self._background.submit(run, completed, name="flush")
        except BackgroundFullError:
            self._is_running = False
            abandon_together(begun)
            self._waiting = waiters + self._waiting

    def _refuse_broken(self) -> None:
        """A single failed log must not cost the others their flush; a sync would not notice it."""
        for log in {id(waiter.log): waiter.log for waiter in self._waiting}.values():
            log.check_health()
        broken = [one for one in self._waiting if one.log.failure is not None]
        if broken and self._directory.failure is None:
            self._waiting = [one for one in self._waiting if one.log.failure is None]
            for waiter in broken:
                waiter.done(StorageFailed(self._directory.path, str(waiter.log.failure)))

    def _finish(
        self,
        waiters: Sequence[_Waiter],
        begun: Sequence[tuple[Flushable, FlushJob | None]],
        error: BaseException | None,
    ) -> None:
        if error is not None:
            reason = self._reason(error)
            abandon_together(begun)
            self._notify(waiters, reason)
            return
        unfinished = {id(log) for log in finish_together(begun)}
        # Behind the others, or a log with thousands of segments would keep them waiting.
        self._waiting += [waiter for waiter in waiters if id(waiter.log) in unfinished]
        self._notify([waiter for waiter in waiters if id(waiter.log) not in unfinished], None)

    def _reason(self, error: BaseException) -> OperatingError:
        if isinstance(error, OSError):
            return self._directory.flush_failed(error)
        if isinstance(error, DiskFull):  # for the leader epochs; the job does not know which log's
            return self._directory.full()
        if isinstance(error, OperatingError):
            return error
        raise error

    @staticmethod
    def _notify(waiters: Sequence[_Waiter], reason: OperatingError | None) -> None:
        for waiter in waiters:
            waiter.done(reason)
