"""All moves of partitions between the log directories of one broker, one after the other.

Also remembers the directory requested for partitions that do not exist yet: an administrator may
choose it before the topic is created.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from millstream.model.errors import DiskFull, OperatingError, TooManyOpenFiles, UnknownPartition
from millstream.model.ids import TopicId, TopicPartition
from millstream.runtime.background import Background
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.storage import names
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.log.base import LogContext
from millstream.storage.log.log import Log
from millstream.storage.moves.directory_move import DirectoryMove, MoveDependencies, MoveReport
from millstream.storage.throttle import Throttle

PREFERRED_MAX: Final = 10_000
"""Requests for partitions that do not exist: any client may send names, the oldest are dropped.
"""

ContextFactory = Callable[[LogDirectory, TopicPartition, TopicId | None], LogContext]


class LogDirectoryNotFound(OperatingError):
    """The path is not one of this broker's log directories."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} is not a log directory of this broker")


class PartitionNameTooLong(OperatingError):
    """With the suffix of a copy the directory's name would not be a legal file name."""


class FutureLog(NamedTuple):
    """A copy that will replace a partition's log."""

    partition: TopicPartition
    directory: str
    size_bytes: int
    offset_lag: int


class DirectoryMoves:
    """Owned by the thread that owns the logs; one partition is copied at a time."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        logs: Mapping[TopicPartition, Log],
        context_for: ContextFactory,
        *,
        background: Background,
        clock: Clock,
        randomness: Randomness,
        on_moved: Callable[[LogContext], None],
        on_report: Callable[[MoveReport], None] | None = None,
    ) -> None:
        """`on_report` is called at the end of every move."""
        self._directories = directories
        """The owner's own list: it may grow before the start."""
        self._logs = logs
        self._context_for = context_for
        self._randomness = randomness
        self.throttle = Throttle(clock, bytes_per_s=math.inf)
        """Kafka's `replica.alter.log.dirs.io.max.bytes.per.second`; each byte is counted once."""
        self._dependencies = MoveDependencies(background, self.throttle, on_moved, self._ended)
        self._waiting: deque[DirectoryMove] = deque()
        self._newest_moves: dict[TopicPartition, DirectoryMove] = {}
        """The latest move of each partition, until it ends."""
        self._current: DirectoryMove | None = None
        self._preferred: OrderedDict[TopicPartition, str] = OrderedDict()
        self._is_stopped = False
        self._on_report = on_report

    # -- requests --------------------------------------------------------------------------

    def check_directory(self, path: str) -> LogDirectory:
        """The directory; raises LogDirectoryNotFound, or StorageFailed when it is offline."""
        directory = self._at(path)
        if directory is None:
            raise LogDirectoryNotFound(path)
        directory.check_usable()
        return directory

    def check_name(self, partition: TopicPartition) -> None:
        """Raise PartitionNameTooLong when a copy could not be named."""
        if names.future_directory(partition, "0" * 32) is None:
            raise PartitionNameTooLong(f"the name of {partition} is too long to be moved")

    def prefer(self, partition: TopicPartition, path: str) -> None:
        """Create the partition in that directory, should it be created."""
        self._preferred[partition] = path
        self._preferred.move_to_end(partition)
        while len(self._preferred) > PREFERRED_MAX:
            self._preferred.popitem(last=False)

    def take_preferred(self, partition: TopicPartition) -> LogDirectory | None:
        """The directory requested for the partition, once; None if there is none or offline."""
        directory = self._at(self._preferred.pop(partition, ""))
        if directory is None or directory.failure is not None or not directory.is_open:
            return None
        return directory

    def move(self, partition: TopicPartition, path: str) -> None:
        """Move the partition's log to that directory; it is being copied when this returns.

        A move to another directory is cancelled. Nothing to do where it is, or is being moved to.
        Raises LogDirectoryNotFound, PartitionNameTooLong, UnknownPartition, StorageFailed (while
        any directory is offline: the partition might be in there too), DiskFull.
        """
        self.check_name(partition)
        directory = self.check_directory(path)
        log = self._logs.get(partition)
        if log is None:
            raise UnknownPartition(partition)
        log.check_open()
        current = self._of(partition)
        if current is not None:
            if current.target is directory:
                return
            self._cancel(current)
        if log.owner is not directory:
            for one in self._directories:
                one.check_usable()
            self._add(log, directory)

    def in_progress(self) -> list[FutureLog]:
        """The copies that are being made or wait for their turn."""
        return [
            FutureLog(move.log.partition, move.target.path, move.size_bytes, move.offset_lag)
            for move in self._all()
        ]

    # -- upkeep ----------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue what the background had no room for or compaction delayed."""
        if self._current is not None:
            self._current.resume()
        self._start_next()

    def queue_interrupted(self, interrupted: Mapping[TopicPartition, str]) -> None:
        """Queue the moves that the last incarnation did not finish; `resume` starts them."""
        for partition, path in interrupted.items():
            log, directory = self._logs.get(partition), self._at(path)
            if directory is None or log is None or log.owner is directory:
                continue
            try:
                self._enqueue(log, directory)
            except (DiskFull, TooManyOpenFiles):
                continue  # as if it had been refused: the administrator sees that it did not move

    def stop(self) -> None:
        """Begin nothing more and release the logs; before the background is closed."""
        self._is_stopped = True
        if self._current is not None:
            self._current.stop()
        self._current = None
        self._waiting.clear()
        self._newest_moves.clear()

    # -- inside ----------------------------------------------------------------------------

    def _at(self, path: str) -> LogDirectory | None:
        return next((one for one in self._directories if one.path == path), None)

    def _all(self) -> list[DirectoryMove]:
        found = [] if self._current is None else [self._current]
        return [move for move in (*found, *self._waiting) if self._is_valid(move)]

    def _is_valid(self, move: DirectoryMove) -> bool:
        return self._logs.get(move.log.partition) is move.log and not move.is_given_up

    def _of(self, partition: TopicPartition) -> DirectoryMove | None:
        move = self._newest_moves.get(partition)
        return move if move is not None and self._is_valid(move) else None

    def _cancel(self, move: DirectoryMove) -> None:
        # A waiting one stays in the queue: its turn is to clear away what it has made.
        move.abandon()

    def _add(self, log: Log, directory: LogDirectory) -> None:
        self._enqueue(log, directory)
        self._start_next()

    def _enqueue(self, log: Log, directory: LogDirectory) -> None:
        unique = UUID(bytes=self._randomness.bytes(16)).hex
        context = self._context_for(directory, log.partition, log.context.topic_id)
        move = DirectoryMove(log, context, unique, self._dependencies)
        # Made now although it may have to wait: after a restart it shows the requested move.
        try:
            directory.disk.make_directories(move.future)
        except OSError as error:
            raise directory.refused(error) from error
        directory.check_in_place()  # else the copy would be in another file system
        self._waiting.append(move)
        self._newest_moves[log.partition] = move

    def _start_next(self) -> None:
        while self._current is None and self._waiting and not self._is_stopped:
            move = self._waiting.popleft()
            self._current = move
            if self._logs.get(move.log.partition) is not move.log:
                move.abandon()  # deleted while it waited
            move.start()

    def _ended(self, report: MoveReport) -> None:
        ended, self._current = self._current, None
        if ended is not None and self._newest_moves.get(ended.log.partition) is ended:
            del self._newest_moves[ended.log.partition]
        if self._on_report is not None:
            self._on_report(report)
        self._start_next()
