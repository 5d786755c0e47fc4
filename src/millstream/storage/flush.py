"""Making a log durable without blocking its owner: jobs for another thread, and group commit."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple, Protocol

from millstream.model.errors import StorageFailed
from millstream.model.ids import Offset
from millstream.runtime.background import Background, Outcome
from millstream.runtime.disk import Disk, write_all_atomically
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.files import PooledFile
from millstream.storage.log_directory import LogDirectory


class FlushJob:
    """What must reach the disk so that everything below `end_offset` survives a power loss.

    Built by the log's owner, run by any thread, handed back to `Log.finish_flush`.
    """

    __slots__ = (
        "directory",
        "disk",
        "end_offset",
        "epochs",
        "epochs_path",
        "index_paths",
        "logs",
        "synced",
        "truncations",
    )

    def __init__(
        self, disk: Disk, directory: str | None, end_offset: Offset, truncations: int
    ) -> None:
        self.disk = disk
        self.directory = directory
        """The directory whose names must be synced too; None when they are."""
        self.end_offset = end_offset
        self.truncations = truncations
        """How often the log had been truncated when the job was made; if more, it is void."""
        self.logs: list[PooledFile] = []
        self.synced: list[PooledFile] = []
        self.index_paths: list[str] = []
        self.epochs: LeaderEpochs | None = None
        self.epochs_path = ""

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
    """Run jobs of one disk together: their syncs wait side by side. Raises OSError."""
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
    encoded = {job.epochs_path: job.epochs.encode() for job in jobs if job.epochs is not None}
    write_all_atomically(disk, encoded)
    names = {job.directory for job in jobs if job.directory is not None}
    disk.sync_many([], sorted(names - {path.rpartition("/")[0] for path in encoded}))


class Flushable(Protocol):
    """The part of a log that group commit needs."""

    @property
    def owner(self) -> LogDirectory: ...

    def begin_flush(self) -> FlushJob | None: ...

    def finish_flush(self, job: FlushJob) -> None: ...


FlushDone = Callable[[StorageFailed | None], None]


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
        if not self._is_running:
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
            if self._waiting:
                self._start()

        self._background.submit(run, completed, name="flush")

    def _finish(
        self,
        waiters: list[_Waiter],
        jobs: list[tuple[Flushable, FlushJob]],
        error: BaseException | None,
    ) -> None:
        failure: StorageFailed | None = None
        if isinstance(error, OSError):
            failure = self._directory.failed(error)
        elif isinstance(error, StorageFailed):
            failure = error
        elif error is not None:
            raise error
        for log, job in jobs:
            job.release()
            if failure is None:
                log.finish_flush(job)
        for waiter in waiters:
            waiter.done(failure)
