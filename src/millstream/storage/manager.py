"""All logs of a broker over its log directories: start, create, delete, upkeep, stop.

A directory that fails takes only its own partitions offline. Upkeep is a set of plain methods that
the broker calls from its timers; what blocks goes through the background seam.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import UUID

from millstream.model.errors import (
    DiskFull,
    InconsistentTopicId,
    OffsetOutOfRange,
    OperatingError,
    StorageFailed,
    TooManyOpenFiles,
    UnknownPartition,
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
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.clock import Clock
from millstream.runtime.disk import Disk, remove_tree, write_all_atomically
from millstream.runtime.randomness import Randomness
from millstream.storage import clean_shutdown, names
from millstream.storage.compaction.cleaner import Cleaner, CleanerLimits
from millstream.storage.config import LogConfig
from millstream.storage.copies import settle_copies
from millstream.storage.files import OpenFiles
from millstream.storage.flush import Flushable, FlushDone, GroupCommit
from millstream.storage.loader import LoadReport, create_log, load_log
from millstream.storage.log import Log
from millstream.storage.log_base import LogHome
from millstream.storage.log_directory import LogDirectory, Withheld, withhold
from millstream.storage.log_durability import close_together
from millstream.storage.move_marks import settle_moves
from millstream.storage.move_queue import DirectoryMoves
from millstream.storage.partition_metadata import encode_topic_id, read_topic_id
from millstream.storage.retention_turn import run_retention_in
from millstream.storage.rubbish import RubbishRemoval
from millstream.storage.sparse_index import IndexCache

T = TypeVar("T")
ConfigOf = Callable[[TopicPartition, TopicId | None], LogConfig]


class NewPartition(NamedTuple):
    """A partition to be created."""

    partition: TopicPartition
    topic_id: TopicId
    config: LogConfig


@dataclass(frozen=True, slots=True)
class Seams:
    """What the manager borrows from the process."""

    disk: Disk
    clock: Clock
    randomness: Randomness
    background: Background


@dataclass(slots=True)
class StartReport:
    """What the start found, per partition and per directory."""

    loaded: dict[TopicPartition, LoadReport] = field(default_factory=dict)
    unclean_directories: list[str] = field(default_factory=list)
    failed_directories: dict[str, str] = field(default_factory=dict)
    unusable_partitions: dict[TopicPartition, str] = field(default_factory=dict)
    surplus_copies: list[str] = field(default_factory=list)
    """Empty copies that an interrupted creation left elsewhere; the partition itself is usable."""
    last_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """As the last clean stop left it, in every directory; else NO_BROKER_EPOCH."""


class LogManager:
    """Owns the log directories and every log in them."""

    def __init__(
        self,
        seams: Seams,
        directories: Sequence[str],
        *,
        open_files_max: int = OPEN_FILES_MAX,
        index_cache_bytes_max: int = INDEX_CACHE_BYTES_MAX,
        cleaner_limits: CleanerLimits = CleanerLimits(),  # noqa: B008 - immutable
    ) -> None:
        if isinstance(directories, str) or not directories:
            raise TypeError(f"directories must be a list of paths, not {directories!r}")
        if len(set(directories)) < len(directories):
            raise ValueError(f"a directory is given twice: {directories!r}")
        self._seams = seams
        self._directories = [LogDirectory(seams.disk, path) for path in directories]
        self._commits = {
            directory.path: GroupCommit(directory, seams.background)
            for directory in self._directories
        }
        self.files = OpenFiles(seams.disk, open_max=open_files_max)
        self._cache = IndexCache(bytes_max=index_cache_bytes_max)
        for commit in self._commits.values():
            commit.reroute = self.flush
        self._logs: dict[TopicPartition, Log] = {}
        self._places: dict[TopicPartition, str] = {}
        """Directory of every partition that was found or made, usable or not."""
        self._started: set[str] = set()
        self._deleted_topics: Collection[TopicId] = ()
        self._doomed: deque[tuple[LogDirectory, str]] = deque()
        """Deleted partitions whose removal the background had no room for."""
        self.moves = DirectoryMoves(
            self._directories,
            self._logs,
            self._home,
            background=seams.background,
            clock=seams.clock,
            randomness=seams.randomness,
            on_moved=self._note_moved,
        )
        self.rubbish = RubbishRemoval(
            self._directories, clock=seams.clock, background=seams.background
        )
        self.cleaner = Cleaner(
            self,
            clock=seams.clock,
            randomness=seams.randomness,
            background=seams.background,
            limits=cleaner_limits,
        )

    # -- start and stop --------------------------------------------------------------------

    def prepare(self, withheld: Iterable[Withheld], deleted: Collection[TopicId] = ()) -> None:
        """Before the start: directories that metadata knows and that are not there, and topics
        that are gone and may have left logs.
        """
        withhold(self._directories, withheld, disk=self._seams.disk)
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
        epochs = []
        # All locks before anything is touched: one that another process has must not cost the
        # others their proof of a clean stop.
        for directory in self._directories:
            with _noting_failure(report):
                directory.open()
        found: dict[str, list[TopicPartition]] = {}
        for directory in self._usable():
            with _noting_failure(report), directory.failing():
                found[directory.path] = directory.find_partitions()
        interrupted = self._settle_copies(found, report)
        for directory in self._usable():
            with _noting_failure(report):
                partitions = found[directory.path]
                epochs.append(self._start_directory(directory, partitions, config_of, report))
        if len(report.failed_directories) == len(self._directories):
            first = self._directories[0].path
            raise StorageFailed(first, report.failed_directories[first])
        if epochs and all(epoch == epochs[0] for epoch in epochs) and epochs[0] is not None:
            report.last_broker_epoch = epochs[0]
        self.moves.begin_again(interrupted)
        return report

    def stop_work(self) -> None:
        """Begin nothing more in the background; what runs may end."""
        self.cleaner.stop()
        self.moves.stop()
        self.rubbish.stop()
        for commit in self._commits.values():
            commit.stop()

    def close(self, *, broker_epoch: BrokerEpoch = NO_BROKER_EPOCH) -> None:
        """Flush and close every log, store the checkpoints, leave the marker of a clean stop.

        Background work must have ended: `stop_work`, close the background, then this.
        """
        self.stop_work()
        for directory in self._directories:
            # No proof of a clean stop for logs that were never opened.
            if directory.failure is None and directory.path in self._started:
                self._close_directory(directory, broker_epoch)
        self._let_go()

    def _let_go(self) -> None:
        """Nothing is ours from here on: release the logs, forget them, give the locks back."""
        for log in self._logs.values():
            log.release()
        for directory in self._directories:
            directory.close()
        self._logs.clear()
        self._places.clear()
        self._started.clear()
        self.files.close()

    def _settle_copies(
        self, found: dict[str, list[TopicPartition]], report: StartReport
    ) -> dict[TopicPartition, str]:
        """Keep one copy of every partition, or none; the moves that were interrupted."""
        moves = settle_moves(self._directories, found)
        undecided = settle_copies(
            self._usable(), found, report.surplus_copies, deleted=self._deleted_topics
        )
        for partition, (path, reason) in (moves.unusable | undecided).items():
            report.unusable_partitions[partition] = reason
            self._places[partition] = path
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
    ) -> BrokerEpoch | None:
        with directory.failing():
            marker = clean_shutdown.read_and_remove(self._seams.disk, directory.path)
            if marker is None:
                report.unclean_directories.append(directory.path)
            for partition in partitions:
                self._load(directory, partition, config_of, report, is_clean=marker is not None)
        self._started.add(directory.path)
        return marker.broker_epoch if marker is not None else None

    def _load(
        self,
        directory: LogDirectory,
        partition: TopicPartition,
        config_of: ConfigOf,
        report: StartReport,
        *,
        is_clean: bool,
    ) -> None:
        self._places[partition] = directory.path
        path = directory.partition_path(partition)
        outcome = LoadReport()
        try:
            topic_id = read_topic_id(self._seams.disk, f"{path}/{names.PARTITION_METADATA}")
            home = self._home(directory, partition, topic_id)
            config = config_of(partition, topic_id)
            self._logs[partition] = load_log(home, config, is_clean=is_clean, report=outcome)
        except StorageFailed:
            raise
        except OperatingError as error:
            # One partition that cannot be understood must not keep the others from starting.
            report.unusable_partitions[partition] = str(error)
            return
        report.loaded[partition] = outcome

    def _close_directory(self, directory: LogDirectory, broker_epoch: BrokerEpoch) -> None:
        try:
            for logs in _in_groups(self._in(directory)):
                close_together(logs)
            self._store_all(directory)
            unopened = [path for one, path in self._places.items() if one not in self._logs]
            if directory.path not in unopened:
                # Whatever was not opened was not recovered either: the next start must look.
                clean_shutdown.write(directory.disk, directory.path, broker_epoch)
        except OSError as error:
            directory.flush_failed(error)
        except (StorageFailed, DiskFull, TooManyOpenFiles):
            pass  # without the marker the next start recovers

    # -- logs ------------------------------------------------------------------------------

    def get(self, partition: TopicPartition) -> Log:
        """The partition's log; raises UnknownPartition, or StorageFailed when it is offline."""
        log = self._logs.get(partition)
        if log is None:
            raise UnknownPartition(partition)
        log.owner.check_usable()
        return log

    def __iter__(self) -> Iterator[Log]:
        """All logs that are online."""
        return (log for log in list(self._logs.values()) if log.owner.failure is None)

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def offline_partitions(self) -> list[TopicPartition]:
        """Partitions whose directory failed."""
        return [name for name, log in self._logs.items() if log.owner.failure is not None]

    @property
    def directories(self) -> list[LogDirectory]:
        return list(self._directories)

    def create(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        *,
        is_new: bool = True,
    ) -> Log:
        """A new, empty log in the directory with the fewest; the existing one when it matches.

        Without `is_new` the partition was here before: while a directory is offline it may be in
        there, and an empty second one would take its place.
        """
        return self.create_many([NewPartition(partition, topic_id, config)], is_new=is_new)[0]

    def create_many(self, wanted: Sequence[NewPartition], *, is_new: bool = True) -> list[Log]:
        """As `create`; many at once share their syncs and are much faster for it."""
        for one in wanted:
            self._check_creatable(one, is_new=is_new)
        missing = [one for one in dict.fromkeys(wanted) if one.partition not in self._logs]
        ids = {one.partition: one.topic_id for one in missing}
        if len(ids) < len(missing):
            raise InconsistentTopicId("one partition was to be created in two ways")
        counts = self._log_counts()
        homes: list[tuple[LogHome, LogConfig]] = []
        for one in missing:
            directory = self.moves.take_preferred(one.partition) or min(
                self._usable(), key=lambda found: counts[found.path]
            )
            counts[directory.path] += 1
            homes.append((self._home(directory, one.partition, one.topic_id), one.config))
        for group in _in_groups(homes):
            self._create_together(group)
        return [self._logs[one.partition] for one in wanted]

    def _check_creatable(self, one: NewPartition, *, is_new: bool) -> None:
        if not names.is_legal_partition(one.partition):
            raise OperatingError(f"illegal name {one.partition!r}")
        if not getattr(one.topic_id, "int", 0):
            raise OperatingError(f"illegal topic id {one.topic_id!r}")
        if not self._usable():
            self._directories[0].check_usable()
        existing = self._logs.get(one.partition)
        if existing is None:
            if one.partition in self._places:
                # A second one elsewhere would be found beside it at the next start.
                place = self._places[one.partition]
                raise StorageFailed(place, f"{one.partition} is there and cannot be used")
            for directory in () if is_new else self._directories:
                directory.check_usable()
            return
        existing.owner.check_usable()
        if existing.home.topic_id is None:
            try:
                existing.adopt_topic_id(one.topic_id)
            except OSError as error:
                raise existing.owner.refused(error) from error
        if existing.home.topic_id != one.topic_id:
            raise InconsistentTopicId(
                f"{one.partition} has topic id {existing.home.topic_id}, not {one.topic_id}"
            )

    def _create_together(self, homes: Sequence[tuple[LogHome, LogConfig]]) -> None:
        """First the logs, then the metadata, whose sync makes the names of both durable."""
        for directory in self._usable():
            mine = [(home, config) for home, config in homes if home.owner is directory]
            made: list[str] = []
            logs: list[Log] = []
            try:
                self._create_in(directory, mine, made, logs)
            except (OSError, OperatingError) as error:
                for log in logs:
                    log.release()
                self._clear_away(made)
                if isinstance(error, OSError):
                    raise directory.refused(error) from error
                raise
            self._logs.update({log.partition: log for log in logs})
            self._places.update({log.partition: directory.path for log in logs})

    def _create_in(
        self,
        directory: LogDirectory,
        homes: Sequence[tuple[LogHome, LogConfig]],
        made: list[str],
        logs: list[Log],
    ) -> None:
        """Adds to `made` and `logs` as it goes: after an error they tell what there is."""
        disk = self._seams.disk
        for home, _ in homes:
            if disk.exists(home.directory):
                raise OperatingError(f"{home.directory} came from elsewhere; start anew")
            directory.forget(home.partition)  # a crash may have kept what it said
            made.append(home.directory)
            disk.make_directories(home.directory)
        for home, config in homes:
            logs.append(create_log(home, config))
        write_all_atomically(
            disk,
            {
                f"{home.directory}/{names.PARTITION_METADATA}": encode_topic_id(topic_id)
                for home, _ in homes
                if (topic_id := home.topic_id) is not None
            },
        )
        if homes:
            disk.sync_directory(directory.path)

    def _clear_away(self, directories: Sequence[str]) -> None:
        """What an interrupted creation left: the next try may choose another place.

        On a disk that failed too. If it stays there after all, the next start settles it.
        """
        for path in directories:
            with suppress(OSError):
                remove_tree(self._seams.disk, path)

    def delete(self, partition: TopicPartition) -> None:
        """Remove the partition: renamed at once, its files later and off the loop."""
        log = self.get(partition)
        del self._logs[partition]
        log.release()
        directory = log.owner
        unique = UUID(bytes=self._seams.randomness.bytes(16)).hex
        doomed = f"{directory.path}/{names.deleted_directory(partition, unique)}"
        try:
            self._seams.disk.rename(log.home.directory, doomed)
            directory.sync_if_possible()
            with suppress(
                DiskFull, TooManyOpenFiles
            ):  # it is tried again before the name is used again
                directory.forget(partition)
        except OSError as error:
            raise directory.failed(error) from error
        del self._places[partition]
        self._doomed.append((directory, doomed))
        self._remove_doomed()

    def _remove_doomed(self) -> None:
        for _ in range(len(self._doomed)):  # what is refused comes back, for the next turn
            directory, path = self._doomed.popleft()
            try:
                self._seams.background.submit(
                    partial(remove_tree, self._seams.disk, path),
                    partial(self._after_removal, directory, path),
                    name=f"remove {path}",
                )
            except BackgroundFullError:
                self._doomed.append((directory, path))
                return  # thousands are being deleted; the next upkeep goes on

    def _after_removal(self, directory: LogDirectory, path: str, outcome: Outcome[None]) -> None:
        if isinstance(outcome.error, OSError):
            if isinstance(directory.refused(outcome.error), TooManyOpenFiles):
                self._doomed.append((directory, path))
        else:
            outcome.result()

    # -- upkeep ----------------------------------------------------------------------------

    def store_checkpoints(self) -> None:
        """Recovery points, high watermarks and log starts of every directory to their files."""
        for directory in self._usable():
            try:
                self._store_all(directory)
            except (StorageFailed, DiskFull, TooManyOpenFiles):
                continue  # noted in the directory, or good enough: old checkpoints mean more work

    def run_retention(self) -> int:
        """Remove what retention allows; returns the number of segments."""
        now_ms = TimestampMs(self._seams.clock.wall_ms())
        removed = 0
        self._remove_doomed()
        for directory in self._usable():
            try:
                removed += run_retention_in(directory, self._in(directory), now_ms)
            except OSError as error:
                directory.refused(error)
            except (StorageFailed, DiskFull, TooManyOpenFiles):
                continue
        self.rubbish.run()
        return removed

    def delete_records(self, partition: TopicPartition, before: Offset) -> Offset:
        """Move the log start up, durably; returns it. Raises OffsetOutOfRange beyond the HW."""
        log = self.get(partition)
        if before > log.high_watermark:
            raise OffsetOutOfRange(asked=before, start=log.log_start, end=log.high_watermark)
        # Stored first: a refusal must leave the log as it was.
        log.owner.store(names.LOG_STARTS, {partition: max(before, log.log_start)})
        log.advance_log_start(before)
        log.remove_segments_below_start()
        return log.log_start

    def flush(self, log: Flushable, done: FlushDone) -> None:
        """Group commit: `done` is called when everything appended so far is durable."""
        self._commits[log.owner.path].request(log, done)

    def flush_due(self) -> None:
        """Start the flushes that `flush.messages`, `flush.ms` or a roll ask for."""
        now_s = self._seams.clock.monotonic_s()
        self.moves.resume()
        for commit in self._commits.values():
            commit.resume()
        for log in self:
            is_late = (now_s - log.last_flush_s) * 1000 >= log.config.flush_ms
            if log.is_flush_due or (is_late and log.recovery_point < log.log_end):
                self.flush(log, lambda _: None)

    def run_cleaner(self) -> None:
        """Let the compaction of logs begin or go on; it chains by itself while there is work."""
        self.cleaner.run_once()

    def expire_producers(self) -> int:
        """Forget idle producers everywhere; returns how many."""
        now_ms = TimestampMs(self._seams.clock.wall_ms())
        return sum(
            log.producers.states.expire(now_ms, log.config.producer_expiration_ms) for log in self
        )

    def _store_all(self, directory: LogDirectory) -> None:
        logs = self._in(directory)
        directory.store(names.RECOVERY_POINTS, {log.partition: log.recovery_start for log in logs})
        directory.store(names.HIGH_WATERMARKS, {log.partition: log.high_watermark for log in logs})
        directory.store(names.LOG_STARTS, {log.partition: log.log_start for log in logs})
        # Late is harmless: a cleaning repeated from an older offset gives the same.
        dirty = {log.partition: log.first_dirty for log in logs if log.config.cleanup_compact}
        directory.store(names.CLEANER_OFFSETS, dirty)

    # -- inside ----------------------------------------------------------------------------

    def _note_moved(self, home: LogHome) -> None:
        self._places[home.partition] = home.owner.path

    def _home(
        self, directory: LogDirectory, partition: TopicPartition, topic_id: TopicId | None
    ) -> LogHome:
        return LogHome(
            partition,
            topic_id,
            directory,
            directory.partition_path(partition),
            self.files,
            self._cache,
            self._seams.clock,
        )

    def _usable(self) -> list[LogDirectory]:
        return [one for one in self._directories if one.failure is None and one.is_open]

    def _in(self, directory: LogDirectory) -> list[Log]:
        return [log for log in self._logs.values() if log.owner is directory]

    def _log_counts(self) -> dict[str, int]:
        counts = {directory.path: 0 for directory in self._usable()}
        for log in self:
            counts[log.owner.path] += 1
        return counts


@contextmanager
def _noting_failure(report: StartReport) -> Iterator[None]:
    """A directory that fails is left out; the start goes on with the others."""
    try:
        yield
    except StorageFailed as failure:
        report.failed_directories[failure.directory] = failure.cause


def _in_groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), LOGS_PER_SYNC_MAX):
        yield items[start : start + LOGS_PER_SYNC_MAX]
