"""All logs of a broker over its log directories: start, create, delete, upkeep, stop.

A directory that fails takes only its own partitions offline. Upkeep is a set of plain methods that
the broker calls from its timers; what blocks goes through the background seam.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from millstream.model.errors import (
    DiskFull,
    OperatingError,
    StorageFailed,
    TooManyOpenFiles,
)
from millstream.model.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    Offset,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from millstream.model.limits import INDEX_CACHE_BYTES_MAX, LOGS_PER_SYNC_MAX, OPEN_FILES_MAX
from millstream.runtime.clock import Clock
from millstream.runtime.disk import LinkRefused, NotAFile, ShortFile
from millstream.runtime.scheduler import StepGenerator, chunked, run_blocking
from millstream.storage import names
from millstream.storage.compaction.cleaner import Cleaner, CleanerLimits
from millstream.storage.config import LogConfig
from millstream.storage.directories import clean_shutdown
from millstream.storage.directories.clean_shutdown import CleanShutdown
from millstream.storage.directories.deferred_deletion import DeferredDeletion
from millstream.storage.directories.log_directory import LogDirectory, MissingDirectory, add_missing
from millstream.storage.directories.partition_metadata import read_topic_id
from millstream.storage.flush import Flushable, FlushDone, GroupCommit
from millstream.storage.log.base import LogContext
from millstream.storage.log.durability import close_together
from millstream.storage.log.log import Log
from millstream.storage.log_steps import make_current_check
from millstream.storage.manager.changes import LogRegistry, NewPartition, StorageDependencies
from millstream.storage.moves.directory_move import MoveReport
from millstream.storage.moves.duplicate_copies import resolve_duplicate_copies
from millstream.storage.moves.marks import resolve_interrupted_moves
from millstream.storage.moves.queue import DirectoryMoves
from millstream.storage.recovery.loader import LoadReport, load_log
from millstream.storage.segments.files import OpenFiles
from millstream.storage.segments.sparse_index import IndexCache

__all__ = ["LogManager", "NewPartition", "StartReport", "StorageDependencies"]

ConfigOf = Callable[[TopicPartition, TopicId | None], LogConfig]


@dataclass(slots=True)
class StartReport:
    """What the start found, per partition and per directory."""

    loaded: dict[TopicPartition, LoadReport] = field(default_factory=dict)
    unclean_directories: list[str] = field(default_factory=list)
    failed_directories: dict[str, str] = field(default_factory=dict)
    unusable_partitions: dict[TopicPartition, str] = field(default_factory=dict)
    surplus_copies: list[str] = field(default_factory=list)
    """Empty copies that an interrupted creation left; the partition itself is usable."""
    last_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """As the last clean stop left it in every directory, if all logs of that time were found; else
    NO_BROKER_EPOCH."""


class LogManager(LogRegistry):
    """Owns the log directories and every log in them."""

    def __init__(
        self,
        dependencies: StorageDependencies,
        directories: Sequence[str],
        *,
        open_files_max: int = OPEN_FILES_MAX,
        index_cache_bytes_max: int = INDEX_CACHE_BYTES_MAX,
        cleaner_limits: CleanerLimits = CleanerLimits(),  # noqa: B008 - immutable
        on_move_ended: Callable[[MoveReport], None] | None = None,
    ) -> None:
        """`on_move_ended` is called after every move between directories, for the broker's log."""
        if isinstance(directories, str) or not directories:
            raise TypeError(f"directories must be a list of paths, not {directories!r}")
        if len(set(directories)) < len(directories):
            raise ValueError(f"a directory is given twice: {directories!r}")
        super().__init__(
            dependencies, [LogDirectory(dependencies.disk, path) for path in directories]
        )
        self._commits = {
            directory.path: GroupCommit(directory, dependencies.background, reroute=self.flush)
            for directory in self._directories
        }
        self.files = OpenFiles(dependencies.disk, open_max=open_files_max)
        self._cache = IndexCache(bytes_max=index_cache_bytes_max)
        self._started: set[str] = set()
        self._deleted_topics: Collection[TopicId] = ()
        self.moves = DirectoryMoves(
            self._directories,
            self._logs,
            self._context,
            background=dependencies.background,
            clock=dependencies.clock,
            randomness=dependencies.randomness,
            on_moved=self._note_moved,
            on_report=on_move_ended,
        )
        self.deferred_deletion = DeferredDeletion(
            self._directories, clock=dependencies.clock, background=dependencies.background
        )
        self.cleaner = Cleaner(
            self,
            clock=dependencies.clock,
            randomness=dependencies.randomness,
            background=dependencies.background,
            flush=self.flush,
            limits=cleaner_limits,
        )

    # -- start and stop --------------------------------------------------------------------

    def prepare(
        self, missing: Iterable[MissingDirectory], deleted: Collection[TopicId] = ()
    ) -> None:
        """Before the start: directories that are in the metadata and missing, and deleted topics
        that may have left logs.
        """
        add_missing(self._directories, missing, disk=self._dependencies.disk)
        self._deleted_topics = deleted

    def start(self, config_of: ConfigOf) -> StartReport:
        """Lock the directories and open every log in them.

        Raises LogDirectoryLocked, StorageFailed when no directory is usable, and whatever
        `config_of` raises; nothing stays locked then.
        """
        if any(directory.is_open for directory in self._directories):
            raise OperatingError("the log manager was started already")
        try:
            return self._start(config_of)
        except BaseException:
            self.close()
            raise

    def _start(self, config_of: ConfigOf) -> StartReport:
        report = StartReport()
        markers: list[CleanShutdown | None] = []
        # All locks before anything is touched: one that another process has must not cost the
        # others their proof of a clean stop.
        for directory in self._directories:
            with _record_failure(report):
                directory.open()
        found: dict[str, list[TopicPartition]] = {}
        for directory in self._usable():
            with _record_failure(report), directory.fail_on_error():
                found[directory.path] = directory.find_partitions()
        self._refuse_links(found, report)
        interrupted = self._resolve_copies(found, report)
        for directory in self._usable():
            with _record_failure(report):
                partitions = found[directory.path]
                markers.append(self._start_directory(directory, partitions, config_of, report))
        if len(report.failed_directories) == len(self._directories):
            first = self._directories[0].path
            raise StorageFailed(first, report.failed_directories[first])
        report.last_broker_epoch = _proved_epoch(report, markers)
        self.moves.queue_interrupted(interrupted)
        return report

    def stop_work(self) -> None:
        """Begin nothing more in the background; running jobs may end."""
        self._is_stopping = True
        self.cleaner.stop()
        self.moves.stop()
        self.deferred_deletion.stop()
        for commit in self._commits.values():
            commit.stop()

    def close(self, *, broker_epoch: BrokerEpoch = NO_BROKER_EPOCH) -> None:
        """Flush and close every log, store the checkpoints, write the marker of a clean stop.

        Background work must have ended: `stop_work`, close the background, then this.
        """
        self.stop_work()
        for directory in self._directories:
            # No proof of a clean stop for logs that were never opened.
            if directory.failure is None and directory.path in self._started:
                self._close_directory(directory, broker_epoch)
        self._release_all()

    def _release_all(self) -> None:
        """Release and forget all logs, give the locks back."""
        for log in self._logs.values():
            log.release()
        for directory in self._directories:
            directory.close()
        self._logs.clear()
        self._partition_paths.clear()
        self._started.clear()
        self.files.close()

    def _refuse_links(self, found: dict[str, list[TopicPartition]], report: StartReport) -> None:
        """A link in place of a partition is not followed: what it leads to may not be ours."""
        for directory in self._usable():
            for partition in list(found[directory.path]):
                path = directory.partition_path(partition)
                if directory.disk.is_link(path):
                    found[directory.path].remove(partition)
                    if not any(partition in others for others in found.values()):
                        report.unusable_partitions[partition] = _not_followed(LinkRefused(path))
                        self._partition_paths[partition] = directory.path

    def _resolve_copies(
        self, found: dict[str, list[TopicPartition]], report: StartReport
    ) -> dict[TopicPartition, str]:
        """Keep one copy of every partition, or none; returns the interrupted moves."""
        moves = resolve_interrupted_moves(self._directories, found)
        undecided = resolve_duplicate_copies(
            self._usable(), found, report.surplus_copies, deleted=self._deleted_topics
        )
        for partition, (path, reason) in (moves.unusable | undecided).items():
            report.unusable_partitions[partition] = reason
            self._partition_paths[partition] = path
        for directory in self._directories:
            if directory.failure is not None:
                report.failed_directories[directory.path] = directory.failure
        return moves.interrupted

    def _start_directory(
        self,
        directory: LogDirectory,
        partitions: Sequence[TopicPartition],
        config_of: ConfigOf,
        report: StartReport,
    ) -> CleanShutdown | None:
        with directory.fail_on_error():
            marker = clean_shutdown.read_and_remove(self._dependencies.disk, directory.path)
            if marker is None:
                report.unclean_directories.append(directory.path)
            for partition in partitions:
                self._load(directory, partition, config_of, report, is_clean=marker is not None)
        self._started.add(directory.path)
        return marker

    def _load(
        self,
        directory: LogDirectory,
        partition: TopicPartition,
        config_of: ConfigOf,
        report: StartReport,
        *,
        is_clean: bool,
    ) -> None:
        self._partition_paths[partition] = directory.path
        path = directory.partition_path(partition)
        outcome = LoadReport()
        try:
            topic_id = read_topic_id(self._dependencies.disk, f"{path}/{names.PARTITION_METADATA}")
            context = self._context(directory, partition, topic_id)
            config = config_of(partition, topic_id)
            self._logs[partition] = load_log(context, config, is_clean=is_clean, report=outcome)
        except StorageFailed:
            raise
        except OperatingError as error:
            # One partition that cannot be loaded must not keep the others from starting.
            report.unusable_partitions[partition] = str(error)
            return
        except NotAFile as error:
            report.unusable_partitions[partition] = _not_followed(error)
            return
        report.loaded[partition] = outcome

    def _close_directory(self, directory: LogDirectory, broker_epoch: BrokerEpoch) -> None:
        try:
            for logs in chunked(self._in(directory), LOGS_PER_SYNC_MAX):
                close_together(logs)
            noted = _Checkpoints()
            for log in self._in(directory):
                noted.note(log)
            noted.store(directory, lambda _: True)
            unopened = [
                path for one, path in self._partition_paths.items() if one not in self._logs
            ]
            if directory.path not in unopened and not directory.failed_partitions:
                # What was not opened was not recovered either: the next start must do it.
                log_count = len(self._logs) if broker_epoch != NO_BROKER_EPOCH else None
                clean_shutdown.write(
                    directory.disk, directory.path, broker_epoch, log_count=log_count
                )
        except OSError as error:
            directory.flush_failed(error)
        except (StorageFailed, DiskFull, TooManyOpenFiles):
            pass  # without the marker the next start recovers

    # -- logs ------------------------------------------------------------------------------

    @property
    def offline_partitions(self) -> list[TopicPartition]:
        """Partitions that failed, or whose directory did."""
        return [name for name, log in self._logs.items() if log.failure is not None]

    @property
    def has_failed(self) -> bool:
        """Whether no directory is left that can be used."""
        return all(one.failure is not None for one in self._directories)

    @property
    def clock(self) -> Clock:
        return self._dependencies.clock

    @property
    def directories(self) -> list[LogDirectory]:
        return list(self._directories)

    # -- upkeep ----------------------------------------------------------------------------

    def unusable_directories(self) -> set[str]:
        """Those that failed, after a check whether each is still the one that was opened.

        Called before they are marked as this broker's: a start may take minutes, and the mark in
        an empty mount point would make the next start take that for the directory.
        """
        for directory in self._usable():
            directory.check_health()
        return {one.path for one in self._directories if one.failure is not None}

    def check_directories_steps(self) -> StepGenerator[None]:
        """Check that every directory is still the one that was opened, and that the files written
        to since the last check are complete, in steps; what is not is marked as failed.
        """
        for directory in self._usable():
            yield directory.check_health
        written = [log for log in self._logs.values() if log.slot.log_end != log.checked_end]
        for part in chunked(written):
            for log in part:
                if log.failure is None:
                    log.check_health()
            yield None

    def on_read_error(self, error: OSError) -> None:
        """A file could not be read while it was sent: its log failed, or its directory."""
        directory = str(error.filename).rpartition("/")[0]
        for log in [one for one in self._logs.values() if one.context.directory == directory]:
            if isinstance(error, ShortFile):
                log.check_segment_at(error.filename)  # not if we cut it ourselves
            else:
                log.refused(error)

    def note_full(self, path: str) -> None:
        """There was no room for a file of another component inside a log directory."""
        for directory in self._directories:
            if f"{path}/".startswith(f"{directory.path}/"):
                directory.full()

    def expect(self, *names: str) -> None:
        """Set the names that every directory in use must have; one that loses them has failed."""
        for directory in self._directories:
            directory.expected_names = names

    def store_checkpoints(self) -> None:
        """Recovery points, high watermarks and log starts of every directory to their files."""
        run_blocking(self.store_checkpoints_steps())

    def store_checkpoints_steps(self) -> StepGenerator[None]:
        """The same in steps."""
        for directory in self._usable():
            logs = self._in(directory)
            is_current = make_current_check(logs)
            noted = _Checkpoints()
            for part in chunked(logs):
                for log in part:
                    noted.note(log)
                if len(logs) > len(part):
                    yield None
            try:
                yield partial(noted.store, directory, is_current)
            except (StorageFailed, DiskFull, TooManyOpenFiles):
                continue  # the directory recorded it; old checkpoints only mean a longer recovery

    def store_high_watermarks_steps(self, logs: Sequence[Log]) -> StepGenerator[None]:
        """The high watermarks of these logs only, in steps."""
        for directory in self._usable():
            mine = [log for log in logs if log.owner is directory]
            is_current = make_current_check(mine)
            marks: dict[TopicPartition, Offset] = {}
            for part in chunked(mine):
                marks.update((log.partition, log.high_watermark) for log in part)
                if len(mine) > len(part):
                    yield None
            try:
                yield partial(directory.store_current, names.HIGH_WATERMARKS, marks, is_current)
            except (StorageFailed, DiskFull, TooManyOpenFiles):
                continue  # as above

    def run_retention(self) -> int:
        """Remove what retention allows; returns the number of segments."""
        return run_blocking(self.retention_steps())

    def retention_steps(self) -> StepGenerator[int]:
        """The same in steps."""
        # First needed minutes after a start, which does not load the module.
        from millstream.storage.manager.retention_pass import retention_steps_of

        now_ms = TimestampMs(self._dependencies.clock.wall_ms())
        removed = 0
        self._remove_deleted()
        for directory in self._usable():
            try:
                removed += yield from retention_steps_of(directory, self._in(directory), now_ms)
            except OSError as error:
                directory.refused(error)
            except (StorageFailed, DiskFull, TooManyOpenFiles):
                continue
        self.deferred_deletion.run()
        return removed

    def flush(self, log: Flushable, done: FlushDone) -> None:
        """Group commit: `done` is called when everything appended so far is durable."""
        self._commits[log.owner.path].request(log, done)

    def flush_due(self) -> None:
        """Start the flushes that `flush.messages`, `flush.ms` or a roll require."""
        now_s = self._dependencies.clock.monotonic_s()
        self.moves.resume()
        for commit in self._commits.values():
            commit.resume()
        for log in [one for one in self._logs.values() if one.is_flush_due_at(now_s)]:
            if log.failure is None:
                self.flush(log, lambda _: None)

    def logs_with_waiting_requests(self) -> list[Log]:
        """Logs for which requests wait in the connection core."""
        return [log for log in self._logs.values() if log.slot.waiting and log.failure is None]

    def run_cleaner(self) -> None:
        """Start or continue the compaction of logs; it goes on by itself while there is work."""
        self.cleaner.run_once()

    def expire_producers(self) -> int:
        """Forget idle producers everywhere; returns how many."""
        now_ms = TimestampMs(self._dependencies.clock.wall_ms())
        return sum(
            log.producers.states.expire(now_ms, log.config.producer_expiration_ms) for log in self
        )

    # -- inside ----------------------------------------------------------------------------

    def _note_moved(self, context: LogContext) -> None:
        self._partition_paths[context.partition] = context.owner.path


class _Checkpoints:
    """The new content of a directory's checkpoint files, taken on the logs' own thread."""

    __slots__ = ("_dirty", "_high_watermarks", "_log_starts", "_recovery_points")

    def __init__(self) -> None:
        self._recovery_points: dict[TopicPartition, Offset] = {}
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self._log_starts: dict[TopicPartition, Offset] = {}
        self._dirty: dict[TopicPartition, Offset] = {}

    def note(self, log: Log) -> None:
        partition = log.partition
        self._recovery_points[partition] = log.recovery_start
        self._high_watermarks[partition] = log.high_watermark
        self._log_starts[partition] = log.log_start
        if log.config.cleanup_compact:
            # Late is harmless: a cleaning repeated from an older offset gives the same.
            self._dirty[partition] = log.first_dirty_offset

    def store(self, directory: LogDirectory, is_current: Callable[[TopicPartition], bool]) -> None:
        """Blocks; for any thread."""
        directory.store_current(names.RECOVERY_POINTS, self._recovery_points, is_current)
        directory.store_current(names.HIGH_WATERMARKS, self._high_watermarks, is_current)
        directory.store_current(names.LOG_STARTS, self._log_starts, is_current)
        directory.store_current(names.CLEANER_OFFSETS, self._dirty, is_current)


def _not_followed(error: NotAFile) -> str:
    return f"{error.filename} is {error.strerror}"


def _proved_epoch(report: StartReport, markers: Sequence[CleanShutdown | None]) -> BrokerEpoch:
    """The broker epoch of the last clean stop if it is proved that no log was lost since.

    With it the broker stays in the ISR or ELR of all its partitions: a single log that is missing
    or unusable makes that wrong.
    """
    if any(one.has_lost for one in report.loaded.values()):
        return NO_BROKER_EPOCH
    first = markers[0] if markers else None
    if first is None or first.broker_epoch is None or any(one != first for one in markers):
        return NO_BROKER_EPOCH
    if first.log_count is None:
        has_all_logs = not report.failed_directories and not report.unusable_partitions
    else:
        has_all_logs = first.log_count == len(report.loaded)
    return first.broker_epoch if has_all_logs else NO_BROKER_EPOCH


@contextmanager
def _record_failure(report: StartReport) -> Iterator[None]:
    """Record a failed directory; the start goes on with the others."""
    try:
        yield
    except StorageFailed as failure:
        report.failed_directories[failure.directory] = failure.cause
