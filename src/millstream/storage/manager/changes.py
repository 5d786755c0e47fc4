"""Creation and deletion of partitions and deletion of records, for many logs at once.

All of it is step generators (`runtime/scheduler.py`): what waits for the disk is a job for a worker
thread, and between the jobs only a few logs are touched, so that other requests need not wait. The
caller ensures that only one of them creates or deletes partitions at a time.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from millstream.model.errors import (
    DiskFull,
    InconsistentTopicId,
    OffsetOutOfRange,
    OperatingError,
    StorageFailed,
    TooManyOpenFiles,
    UnknownPartition,
    without_frames,
)
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.model.limits import LOGS_PER_SYNC_MAX
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.clock import Clock
from millstream.runtime.disk import Disk, remove_tree, write_all_atomically
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import StepGenerator, chunked, run_blocking
from millstream.storage import names
from millstream.storage.config import LogConfig
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.directories.partition_metadata import encode_topic_id
from millstream.storage.log.base import LogContext
from millstream.storage.log.log import Log
from millstream.storage.log_steps import LOGS_PER_TURN, make_current_check, remove_segments_steps
from millstream.storage.moves.queue import DirectoryMoves
from millstream.storage.recovery.loader import make_log_file, new_log
from millstream.storage.segments.files import OpenFiles
from millstream.storage.segments.sparse_index import IndexCache

T = TypeVar("T")

TREES_PER_JOB: Final = 64
"""Deleted partitions that one job removes: one job at a time, to leave threads for flushes."""

Starts = Mapping[TopicPartition, Offset]


class NewPartition(NamedTuple):
    """A partition to be created."""

    partition: TopicPartition
    topic_id: TopicId
    config: LogConfig


@dataclass(frozen=True, slots=True)
class StorageDependencies:
    """What the log manager gets from the process."""

    disk: Disk
    clock: Clock
    randomness: Randomness
    background: Background


class LogRegistry:
    """The part of `LogManager` that creates, finds and deletes logs."""

    moves: DirectoryMoves
    files: OpenFiles

    def __init__(
        self, dependencies: StorageDependencies, directories: Sequence[LogDirectory]
    ) -> None:
        self._dependencies = dependencies
        self._directories = list(directories)
        self._cache: IndexCache
        self._logs: dict[TopicPartition, Log] = {}
        self._partition_paths: dict[TopicPartition, str] = {}
        """Log directory of every partition that was found or created, usable or not."""
        self._deleted_paths: deque[tuple[LogDirectory, str]] = deque()
        """Deleted partitions whose files are still to be removed."""
        self._is_removing = False
        self._is_stopping = False

    # -- creation --------------------------------------------------------------------------

    def create(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        *,
        is_new: bool = True,
    ) -> Log:
        """A new, empty log in the directory with the fewest; the existing one when it matches.

        Without `is_new` the partition existed on this broker before: it may be in a directory that
        is offline, and an empty second one would take its place.
        """
        return self.create_many([NewPartition(partition, topic_id, config)], is_new=is_new)[0]

    def create_many(self, wanted: Sequence[NewPartition], *, is_new: bool = True) -> list[Log]:
        """As `create`; many at once share their syncs and are much faster for it."""
        return run_blocking(self.create_steps(wanted, is_new=is_new))

    def create_steps(
        self, wanted: Sequence[NewPartition], *, is_new: bool = True
    ) -> StepGenerator[list[Log]]:
        """`create_many` in steps. After an error some of them may exist."""
        for part in chunked(wanted, LOGS_PER_TURN):
            for one in part:
                self._check_creatable(one, is_new=is_new)
            if part[-1] is not wanted[-1]:
                yield None
        missing = [one for one in dict.fromkeys(wanted) if one.partition not in self._logs]
        ids = {one.partition: one.topic_id for one in missing}
        if len(ids) < len(missing):
            raise InconsistentTopicId("one partition was to be created with two topic ids")
        counts = self._log_counts()
        for group in chunked(missing, LOGS_PER_SYNC_MAX):
            yield from self._create_together_steps(self._contexts(group, counts))
        return [self._logs[one.partition] for one in wanted]

    def _contexts(
        self, wanted: Sequence[NewPartition], counts: dict[str, int]
    ) -> list[tuple[LogContext, LogConfig]]:
        contexts = []
        for one in wanted:
            usable = self._usable()
            if not usable:
                self._directories[0].check_usable()
            directory = self.moves.take_preferred(one.partition) or min(
                usable, key=lambda found: counts[found.path]
            )
            counts[directory.path] += 1
            contexts.append((self._context(directory, one.partition, one.topic_id), one.config))
        return contexts

    def _check_creatable(self, one: NewPartition, *, is_new: bool) -> None:
        if not names.is_legal_partition(one.partition):
            raise OperatingError(f"illegal name {one.partition!r}")
        if not getattr(one.topic_id, "int", 0):
            raise OperatingError(f"illegal topic id {one.topic_id!r}")
        if not self._usable():
            self._directories[0].check_usable()
        existing = self._logs.get(one.partition)
        if existing is None:
            if one.partition in self._partition_paths:
                # A second one in another directory would be a duplicate at the next start.
                path = self._partition_paths[one.partition]
                raise StorageFailed(path, f"{one.partition} exists and cannot be used")
            for directory in () if is_new else self._directories:
                directory.check_usable()
            return
        existing.owner.check_usable()
        if existing.context.topic_id is None:
            try:
                existing.adopt_topic_id(one.topic_id)
            except OSError as error:
                raise existing.owner.refused(error) from error
        if existing.context.topic_id != one.topic_id:
            raise InconsistentTopicId(
                f"{one.partition} has topic id {existing.context.topic_id}, not {one.topic_id}"
            )

    def _create_together_steps(
        self, contexts: Sequence[tuple[LogContext, LogConfig]]
    ) -> StepGenerator[None]:
        for directory in self._usable():
            mine = [(context, config) for context, config in contexts if context.owner is directory]
            if not mine:
                continue
            yield from self._make_files_steps(directory, [context for context, _ in mine])
            for part in chunked(mine, LOGS_PER_TURN):
                for context, config in part:
                    self._logs[context.partition] = new_log(context, config)
                    self._partition_paths[context.partition] = directory.path
                yield None

    def _make_files_steps(
        self, directory: LogDirectory, contexts: Sequence[LogContext]
    ) -> StepGenerator[None]:
        """Create the files of empty logs, durably; nothing of them stays after an error."""
        job = partial(_make_files, self._dependencies.disk, directory, contexts)
        try:
            yield job
        except TooManyOpenFiles:
            # Connections took all descriptors: those of idle segments can be given back.
            if not self.files.close_idle(len(contexts)):
                raise
            yield job

    # -- deletion --------------------------------------------------------------------------

    def delete(self, partition: TopicPartition) -> None:
        """Remove the partition: renamed at once, its files later and off the loop."""
        self.get(partition)
        for error in run_blocking(self.delete_steps([partition])).values():
            raise error

    def delete_steps(
        self, partitions: Iterable[TopicPartition]
    ) -> StepGenerator[dict[TopicPartition, OperatingError]]:
        """`delete` for many, in steps; the partitions that could not be deleted, and why."""
        failures: dict[TopicPartition, OperatingError] = {}
        for group in chunked(list(partitions), LOGS_PER_SYNC_MAX):
            logs: list[Log] = []
            for part in chunked(group, LOGS_PER_TURN):
                for one in part:
                    try:
                        logs.append(self.get(one))
                    except OperatingError as error:
                        failures[one] = without_frames(error)
                        continue
                    del self._logs[one]
                    logs[-1].release()
                yield None
            for directory in self._directories:
                mine = [log for log in logs if log.owner is directory]
                if mine:
                    failures.update((yield from self._mark_deleted_steps(directory, mine)))
        return failures

    def _mark_deleted_steps(
        self, directory: LogDirectory, logs: Sequence[Log]
    ) -> StepGenerator[dict[TopicPartition, OperatingError]]:
        """Rename the partitions of released logs, durably."""
        renames: dict[TopicPartition, tuple[str, str]] = {}
        for log in logs:
            unique = UUID(bytes=self._dependencies.randomness.bytes(16)).hex
            deleted_path = f"{directory.path}/{names.deleted_directory(log.partition, unique)}"
            renames[log.partition] = (log.context.directory, deleted_path)
        try:
            yield partial(_rename_all, self._dependencies.disk, directory, renames)
        except OSError as error:
            failure = directory.failed(error)
            return dict.fromkeys(renames, failure)
        except StorageFailed as failure:
            return dict.fromkeys(renames, without_frames(failure))
        for partition, (_, deleted_path) in renames.items():
            del self._partition_paths[partition]
            self._deleted_paths.append((directory, deleted_path))
        self._remove_deleted()
        return {}

    def _remove_deleted(self) -> None:
        """Submit a job for the next of them; not one each, or flushes would wait for all."""
        if self._is_removing or self._is_stopping or not self._deleted_paths:
            return
        directory = self._deleted_paths[0][0]
        paths: list[str] = []
        while (
            self._deleted_paths
            and self._deleted_paths[0][0] is directory
            and len(paths) < TREES_PER_JOB
        ):
            paths.append(self._deleted_paths.popleft()[1])
        self._is_removing = True
        try:
            self._dependencies.background.submit(
                partial(_remove_trees, self._dependencies.disk, paths),
                partial(self._after_removal, directory, paths),
                name=f"remove deleted partitions from {directory.path}",
            )
        except BackgroundFullError:
            self._is_removing = False
            self._deleted_paths.extendleft((directory, path) for path in reversed(paths))

    def _after_removal(
        self, directory: LogDirectory, paths: Sequence[str], outcome: Outcome[None]
    ) -> None:
        self._is_removing = False
        if isinstance(outcome.error, OSError):
            if isinstance(directory.refused(outcome.error), TooManyOpenFiles):
                self._deleted_paths.extend((directory, path) for path in paths)
                return  # the next run of retention tries again
        else:
            outcome.result()
        self._remove_deleted()

    # -- deletion of records ---------------------------------------------------------------

    def delete_records(self, partition: TopicPartition, before: Offset) -> Offset:
        """Move the log start up, durably; returns it. Raises OffsetOutOfRange beyond the HW."""
        outcome = run_blocking(self.delete_records_steps({partition: before}))[partition]
        if isinstance(outcome, OperatingError):
            raise outcome
        return outcome

    def delete_records_steps(
        self, before: Starts
    ) -> StepGenerator[dict[TopicPartition, Offset | OperatingError]]:
        """The same for many, in steps: where each log starts now, or the error."""
        outcomes: dict[TopicPartition, Offset | OperatingError] = {}
        wanted: dict[Log, Offset] = {}
        for part in chunked(list(before.items()), LOGS_PER_TURN):
            for partition, offset in part:
                try:
                    log = self.get(partition)
                    log.check_open()
                    if offset > log.high_watermark:
                        raise OffsetOutOfRange(
                            requested=offset, start=log.log_start, end=log.high_watermark
                        )
                    wanted[log] = offset
                except OperatingError as error:
                    outcomes[partition] = without_frames(error)
            if len(before) > LOGS_PER_TURN:
                yield None
        while wanted:
            outcomes.update((yield from self._raise_starts_steps(wanted)))
            # For a log that was moved to another directory meanwhile it is repeated there.
            wanted = {log: one for log, one in wanted.items() if log.partition not in outcomes}
        return {partition: outcomes[partition] for partition in before}

    def _raise_starts_steps(
        self, wanted: Mapping[Log, Offset]
    ) -> StepGenerator[dict[TopicPartition, Offset | OperatingError]]:
        """Store the new starts, then move the logs': after a refusal they are as before."""
        outcomes: dict[TopicPartition, Offset | OperatingError] = {}
        for directory in self._directories:
            starts = {
                log: max(offset, log.log_start)
                for log, offset in wanted.items()
                if log.owner is directory
            }
            if not starts:
                continue
            offsets = {log.partition: offset for log, offset in starts.items()}
            try:
                yield partial(
                    directory.store_current,
                    names.LOG_STARTS,
                    offsets,
                    make_current_check(list(starts)),
                )
            except OperatingError as error:
                outcomes.update(dict.fromkeys(offsets, without_frames(error)))
                continue
            for part in chunked(list(starts.items()), LOGS_PER_TURN):
                for log, offset in part:
                    if log.owner is directory:
                        outcomes[log.partition] = yield from self._begin_at_steps(log, offset)
                if len(starts) > LOGS_PER_TURN:
                    yield None
        return outcomes

    def _begin_at_steps(self, log: Log, offset: Offset) -> StepGenerator[Offset | OperatingError]:
        try:
            if self.get(log.partition) is not log:
                raise UnknownPartition(log.partition)
            log.advance_log_start(offset)
            start = log.log_start
            yield from remove_segments_steps(log)
        except OSError as error:
            return log.failed(error)
        except OperatingError as error:
            return without_frames(error)
        return start

    # -- shared with the rest of the manager -----------------------------------------------

    def get(self, partition: TopicPartition) -> Log:
        """The partition's log; raises UnknownPartition, or StorageFailed when it is offline."""
        log = self._logs.get(partition)
        if log is None:
            raise UnknownPartition(partition)
        log.owner.check_usable()
        return log

    def is_gone(self, partition: TopicPartition) -> bool:
        """Whether no directory contains anything that a start could take for the partition."""
        return partition not in self._partition_paths and not any(
            one.failure is not None or one.has_leftovers for one in self._directories
        )

    def __iter__(self) -> Iterator[Log]:
        """All logs that are online."""
        return (log for log in list(self._logs.values()) if log.failure is None)

    def __len__(self) -> int:
        return len(self._logs)

    def _context(
        self, directory: LogDirectory, partition: TopicPartition, topic_id: TopicId | None
    ) -> LogContext:
        return LogContext(
            partition,
            topic_id,
            directory,
            directory.partition_path(partition),
            self.files,
            self._cache,
            self._dependencies.clock,
        )

    def _usable(self) -> list[LogDirectory]:
        return [one for one in self._directories if one.failure is None and one.is_open]

    def _in(self, directory: LogDirectory) -> list[Log]:
        """Its logs, without those that failed."""
        inside = (log for log in self._logs.values() if log.owner is directory)
        return [log for log in inside if log.failure is None or directory.failure is not None]

    def _log_counts(self) -> dict[str, int]:
        counts = {directory.path: 0 for directory in self._usable()}
        for log in self:
            counts[log.owner.path] += 1
        return counts


# -- jobs ---------------------------------------------------------------------------------------


def _make_files(disk: Disk, directory: LogDirectory, contexts: Sequence[LogContext]) -> None:
    """First the logs, then the metadata, whose sync makes the names of both durable."""
    directory.check_in_place()
    made: list[str] = []
    try:
        for context in contexts:
            if disk.exists(context.directory):
                raise OperatingError(
                    f"{context.directory} was not created by us; restart the broker"
                )
        partitions = [context.partition for context in contexts]
        directory.forget(*partitions)  # a crash may have kept old offsets
        for context in contexts:
            made.append(context.directory)
            disk.make_directories(context.directory)
            make_log_file(context)
        write_all_atomically(
            disk,
            {
                f"{context.directory}/{names.PARTITION_METADATA}": encode_topic_id(topic_id)
                for context in contexts
                if (topic_id := context.topic_id) is not None
            },
        )
        # Recovery must know of them before they roll, and the roll must not wait for the disk.
        # With the checkpoint's name the names of the partitions become durable.
        directory.store(names.RECOVERY_POINTS, dict.fromkeys(partitions, Offset(0)))
        directory.check_in_place()  # else they may be where no restart finds them
    except (OSError, OperatingError) as error:
        _clear_away(disk, directory, made)
        if isinstance(error, OSError):
            raise directory.refused(error) from error
        raise


def _clear_away(disk: Disk, directory: LogDirectory, paths: Sequence[str]) -> None:
    """Remove what an interrupted creation left: the next try may choose another directory.

    On a failed disk too. If something stays nevertheless, the next start resolves it.
    """
    is_clear = True
    for path in paths:
        try:
            if disk.exists(path):
                remove_tree(disk, path)
        except OSError:
            is_clear = False
    try:
        disk.sync_directory(directory.path)
    except OSError:
        is_clear = False
    if not is_clear:
        directory.has_leftovers = True


def _rename_all(
    disk: Disk, directory: LogDirectory, renames: Mapping[TopicPartition, tuple[str, str]]
) -> None:
    for source, target in renames.values():
        try:
            disk.rename(source, target)
        except FileNotFoundError:
            directory.check_health()
            directory.check_usable()  # else only the partition was removed
    directory.sync_if_possible()
    with suppress(DiskFull, TooManyOpenFiles):  # retried before the name is used again
        directory.forget(*renames)


def _remove_trees(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):  # a job that was refused halfway is repeated
            remove_tree(disk, path)
