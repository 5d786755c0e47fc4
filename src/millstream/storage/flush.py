"""Making a log durable without blocking its owner: jobs for another thread, and group commit."""

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple, Protocol

from millstream.model.errors import DiskFull, StorageFailed
from millstream.model.ids import Offset
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.disk import Disk
from millstream.storage.epochs import EpochFile, EpochImage, write_images
from millstream.storage.files import PooledFile
from millstream.storage.log_directory import LogDirectory


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
        "logs",
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
        self.active_base = end_offset
        """Base of the segment that was active: its data is synced, its indexes are not."""
        self.truncations = truncations
        """How often the log had been truncated when the job was made; if more, it is void."""
        self.logs: list[PooledFile] = []
        self.synced: list[PooledFile] = []
        self.index_paths: list[str] = []
        self.epochs: EpochImage | None = None

    def add_log(self, file: PooledFile) -> None:
        file.pin()
        self.logs.append(file)

    def run(self) -> None:
        """Sync data first, then the names that lead to it. Raises OSError."""
        run_jobs([self])

    def release(self) -> None:
        """Let the files go; called by the owner whether the job worked or not."""
        for log in self.logs:
            log.unpin()
        self.synced, self.logs = self.logs, []


def run_jobs(jobs: Sequence[FlushJob]) -> None:
    """Run jobs of one disk together: their syncs wait side by side.

    Raises OSError, or DiskFull when data was synced but there was no room for leader epochs.
    """
    if not jobs:
        return
    disk = jobs[0].disk
    with ExitStack() as opened:
        files = [log.open() for job in jobs for log in job.logs]
        for path in (path for job in jobs for path in job.index_paths):
            # Retention or compaction may have taken the segment; an index can be rebuilt.
            with suppress(FileNotFoundError):
                files.append(opened.enter_context(disk.open_read(path)))
        disk.sync_many(files, [])
    with ExitStack() as held:
        for job in jobs:
            held.enter_context(job.epoch_file.lock)
        # A partition may have been deleted meanwhile.
        present = [job for job in jobs if not job.epoch_file.is_retired]
        images = [job.epochs for job in present if job.epochs is not None]
        try:
            done = write_images(disk, images)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFull(images[0].file.path) from error
            raise
        names = {job.directory for job in present if job.directory is not None}
        disk.sync_many([], sorted(names - done))


class Flushable(Protocol):
    """The part of a log that group commit needs."""

    @property
    def owner(self) -> LogDirectory: ...

    def begin_flush(self) -> FlushJob | None: ...

    def finish_flush(self, job: FlushJob) -> None: ...

    def abandon_flush(self, job: FlushJob) -> None: ...


FlushDone = Callable[[StorageFailed | DiskFull | None], None]


class _Waiter(NamedTuple):
    log: Flushable
    done: FlushDone


class GroupCommit:
    """One flush at a time per directory; whoever asks meanwhile shares the next one.

    An fsync costs about the same for one record as for a thousand, so waiting for the running one
    and going together makes a busy broker faster, not slower.
    """

    def __init__(self, directory: LogDirectory, background: Background) -> None:
        self._directory = directory
        self._background = background
        self._waiting: list[_Waiter] = []
        self._is_running = False

    def request(self, log: Flushable, done: FlushDone) -> None:
        """Flush everything the log has now; `done` is called when it is durable, or failed."""
        self._waiting.append(_Waiter(log, done))
        self.resume()

    def resume(self) -> None:
        """Start what waits, if anything does: after the background had no room for it."""
        if self._waiting and not self._is_running:
            self._start()

    def _start(self) -> None:
        waiters, self._waiting = self._waiting, []
        jobs: list[tuple[Flushable, FlushJob]] = []
        try:
            # A dict keeps each log once, in order: many waiters, one sync.
            for log in {id(waiter.log): waiter.log for waiter in waiters}.values():
                job = log.begin_flush()
                if job is not None:
                    jobs.append((log, job))
        except (OSError, StorageFailed) as error:
            self._finish(waiters, jobs, error)
            return
        self._is_running = True

        def run() -> None:
            run_jobs([job for _, job in jobs])

        def completed(outcome: Outcome[None]) -> None:
            self._is_running = False
            self._finish(waiters, jobs, outcome.error)
            self.resume()  # not while one runs again: who was told may have asked for the next

        try:
            self._background.submit(run, completed, name="flush")
        except BackgroundFullError:
            self._is_running = False
            self._let_go(jobs)
            self._waiting = waiters + self._waiting

    def _finish(
        self,
        waiters: list[_Waiter],
        jobs: list[tuple[Flushable, FlushJob]],
        error: BaseException | None,
    ) -> None:
        failure: StorageFailed | DiskFull | None = None
        if isinstance(error, OSError):
            failure = self._directory.failed(error)
        elif isinstance(error, StorageFailed | DiskFull):
            failure = error
        elif error is not None:
            raise error
        if failure is not None:
            self._let_go(jobs)
        else:
            for log, job in jobs:
                job.release()
                log.finish_flush(job)
        for waiter in waiters:
            waiter.done(failure)

    @staticmethod
    def _let_go(jobs: list[tuple[Flushable, FlushJob]]) -> None:
        for log, job in jobs:
            job.release()
            log.abandon_flush(job)
