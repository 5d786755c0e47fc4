"""One log directory: its lock, its checkpoint files, its health, its deferred deletions.

A directory that failed once is not used again before a restart: after a failed fsync the kernel
may have dropped the pages and report success the next time.

The checkpoint files are written by jobs in other threads too, and by the owner of the logs where it
cannot wait for one. A lock keeps the writers apart: each sees what the one before it stored.
"""

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from millstream.model.errors import (
    DiskFull,
    LogDirectoryClosed,
    LogDirectoryLocked,
    OperatingError,
    StorageFailed,
    TooManyOpenFiles,
)
from millstream.model.ids import Offset, TopicPartition
from millstream.runtime.disk import DirectoryLock, Disk, NotAFile, is_disk_full, remove_tree
from millstream.storage import names
from millstream.storage.directories.checkpoints import (
    CorruptCheckpoint,
    read_offsets,
    replace_offsets,
)
from millstream.storage.directories.free_space import Room

OffsetsByPartition = dict[TopicPartition, Offset]

CHECKPOINTS: Final = (
    names.RECOVERY_POINTS,
    names.HIGH_WATERMARKS,
    names.LOG_STARTS,
    names.CLEANER_OFFSETS,
)


def is_descriptor_shortage(error: OSError) -> bool:
    """Whether the process or the machine was out of descriptors: not a failure of the disk."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class MissingDirectory(NamedTuple):
    """A directory that is in the metadata and missing on disk."""

    name: str
    """As it is reported: its path, with its id where another directory has that path now."""
    path: str
    reason: str


def add_missing(
    directories: "list[LogDirectory]", missing: Iterable[MissingDirectory], *, disk: Disk
) -> None:
    """Keep missing directories offline. Those that are not in the list are added to it, so that
    checks whether every directory is usable include them.
    """
    for one in missing:
        directory = next((other for other in directories if other.path == one.name), None)
        if directory is None:
            directory = LogDirectory(disk, one.name)
            directories.append(directory)
        directory.failure = one.reason
        directory.absent_from = one.path


class LogDirectory:
    """A directory of partitions that fails as a whole."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.disk = disk
        self.failure: str | None = None
        self.room = Room(disk, path)
        self.has_leftovers = False
        """Remains of deleted partitions may be in it, or come back, at the next start."""
        self.absent_from: str | None = None
        """The path where it should be, if something else or nothing is there."""
        self.failed_partitions: dict[TopicPartition, str] = {}
        """Those that failed while the directory did not, and why."""
        self.damaged_partitions: dict[TopicPartition, str] = {}
        """Those of which some records cannot be read while the others can, and why."""
        self.failure_count = 0
        """Grows with every failure, of the directory or of a partition in it."""
        self.expected_names: tuple[str, ...] = ()
        """Names that must exist in it while it is used."""
        self._lock: DirectoryLock | None = None
        self._stored: dict[str, OffsetsByPartition] = {name: {} for name in CHECKPOINTS}
        self._behind: set[str] = set()
        """Checkpoints whose file still names a deleted partition."""
        self._checkpoint_lock = threading.RLock()
        self._deletions: list[tuple[float, int, str]] = []
        """A heap by due time, then insertion order: topics have their own delays."""
        self._deletion_numbers = count()
        self.damaged_checkpoints: list[str] = []

    def open(self) -> None:
        """Create and lock it, read its checkpoints. Raises LogDirectoryLocked or StorageFailed."""
        if self.failure is not None:
            raise StorageFailed(self.path, self.failure)
        try:
            self.disk.make_directories(self.path)
            self._lock = self.disk.lock_directory(self.path)
            for name in CHECKPOINTS:
                self._stored[name] = self._read(name)
        except BlockingIOError as error:
            raise LogDirectoryLocked(f"{self.path} is in use by another process") from error
        except OSError as error:
            raise self.flush_failed(error) from error

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- health ----------------------------------------------------------------------------

    def failed(self, error: OSError) -> StorageFailed:
        """Record the failure and return the error to raise; the first cause is kept."""
        if self.failure is None:
            self.failure = f"{error.strerror or error} ({error.filename or self.path})"
            self.failure_count += 1
        return StorageFailed(self.path, self.failure)

    def partition_failed(self, partition: TopicPartition, cause: str) -> None:
        """One partition cannot be used any more; the others can."""
        self.failed_partitions[partition] = cause
        self.failure_count += 1

    def note_damage(self, partition: TopicPartition, cause: str) -> None:
        """Some records of a partition cannot be read; it is used without them. The first cause is
        kept.
        """
        self.damaged_partitions.setdefault(partition, cause)

    @contextmanager
    def fail_on_error(self) -> Iterator[None]:
        """Any error of the disk inside is a failure of this directory; raises StorageFailed, or
        TooManyOpenFiles, which says nothing about the disk.
        """
        try:
            yield
        except OSError as error:
            raise self.flush_failed(error) from error

    def refused(self, error: OSError) -> OperatingError:
        """The error to raise for a call that may be retried: a full disk, or a process without
        free descriptors, is not a failure of the directory. Never for a failed sync.
        """
        if is_disk_full(error):
            return self.full()
        if is_descriptor_shortage(error):
            return TooManyOpenFiles(f"{error.strerror} ({error.filename or self.path})")
        if isinstance(error, NotAFile):  # it concerns one partition, or no file of ours
            return StorageFailed(self.path, f"{error.strerror} ({error.filename})")
        return self.failed(error)

    def full(self) -> DiskFull:
        """Record that there was no room for a write and return the error to raise."""
        self.room.refuse()
        return DiskFull(self.path)

    @property
    def is_full(self) -> bool:
        """Whether it refuses writes only because there is no room."""
        return self.room.is_full and self.failure is None

    def check_room(self) -> None:
        """After a write was refused: whether there is room again. Blocks; any thread."""
        if self._lock is None or self.failure is not None:
            return
        try:
            self.room.check()
        except OSError as error:
            self.refused(error)

    def flush_failed(self, error: OSError) -> OperatingError:
        """The error to raise for a flush. A file that could not be opened was not synced and may
        be retried; a sync that failed for whatever reason, a full disk included, may not.
        """
        return self.refused(error) if is_descriptor_shortage(error) else self.failed(error)

    def check_health(self) -> None:
        """Fail it if its path is missing, or leads to another directory. Blocks; any thread.

        Nothing else would notice: open files can be written to long after their names, or the
        whole mount, are gone, and all of it is lost at the next start.
        """
        lock = self._lock
        if lock is None or self.failure is not None:
            return
        try:
            gone = [] if lock.is_in_place() else [self.path]
            gone += [one for one in self.expected_names if not self.disk.exists(self._inside(one))]
        except OSError as error:
            self.failed(error)
            return
        if gone and self._lock is lock:  # not after a stop
            detail = "removed, renamed or unmounted while it was in use"
            self.failed(OSError(errno.ENOENT, detail, gone[0]))

    def check_in_place(self) -> None:
        """Check the directory, and raise StorageFailed if it is not the one that was opened.

        Called before names are created in it: its path may lead to an empty mount point.
        """
        self.check_health()
        self.check_usable()

    def _inside(self, name: str) -> str:
        return f"{self.path}/{name}"

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    def check_usable(self) -> None:
        """Raise StorageFailed after a failure, LogDirectoryClosed without the lock."""
        if self.failure is not None:
            raise StorageFailed(self.path, self.failure)
        if self._lock is None:
            raise LogDirectoryClosed(self.path)

    # -- checkpoints -----------------------------------------------------------------------

    def stored(self, name: str, partition: TopicPartition) -> Offset | None:
        """What the checkpoint file on disk says of the partition."""
        return self._stored[name].get(partition)

    def store(self, name: str, changes: Mapping[TopicPartition, Offset]) -> None:
        """Write the checkpoint file with these changes, durably; no write when nothing changes.

        Raises DiskFull or TooManyOpenFiles, with the file as it was, or StorageFailed.
        """
        with self._checkpoint_lock:
            current = self._stored[name]
            is_same = all(current.get(partition) == offset for partition, offset in changes.items())
            if is_same and name not in self._behind:
                return
            updated = {**current, **changes}
            self._write(name, updated)

    def store_current(
        self, name: str, offsets: OffsetsByPartition, is_current: Callable[[TopicPartition], bool]
    ) -> None:
        """The same for a job that was made a while ago: only what still holds is written.

        A log start never goes back: a later one may have been stored since.
        """
        with self._checkpoint_lock:
            current = self._stored[name]
            changes = {one: offset for one, offset in offsets.items() if is_current(one)}
            if name == names.LOG_STARTS:
                changes = {
                    one: max(offset, current.get(one, offset)) for one, offset in changes.items()
                }
            self.store(name, changes)

    def lower(self, name: str, partition: TopicPartition, offset: Offset) -> None:
        """Store `offset` if the file has a higher one, after any write that is in progress."""
        with self._checkpoint_lock:
            stored = self.stored(name, partition)
            if stored is not None and stored > offset:
                self.store(name, {partition: offset})

    def forget(self, *partitions: TopicPartition) -> None:
        """Drop deleted partitions from every checkpoint file.

        Its offsets must never be taken for those of a new partition of the same name. Where there
        is no room to write (a partition may be deleted to make some) or no descriptor, DiskFull or
        TooManyOpenFiles is raised at the end and the file stays outdated until the next `store` or
        `forget`.
        """
        refusal: DiskFull | TooManyOpenFiles | None = None
        for one in partitions:
            self.failed_partitions.pop(one, None)
            self.damaged_partitions.pop(one, None)
        with self._checkpoint_lock:
            for name, stored in self._stored.items():
                if name not in self._behind and not any(one in stored for one in partitions):
                    continue
                rest = dict(stored)
                for one in partitions:
                    rest.pop(one, None)
                self._stored[name] = rest
                self._behind.add(name)
                try:
                    self._write(name, rest, is_forgetting=True)
                except (DiskFull, TooManyOpenFiles) as error:
                    refusal = error
        if refusal is not None:
            raise refusal

    def _read(self, name: str) -> OffsetsByPartition:
        try:
            return read_offsets(self.disk, f"{self.path}/{name}")
        except CorruptCheckpoint:
            # Without it everything is recovered from the logs' beginning: slower, never wrong.
            self.damaged_checkpoints.append(name)
            return {}

    def _write(
        self, name: str, offsets: OffsetsByPartition, *, is_forgetting: bool = False
    ) -> None:
        self.check_usable()
        try:
            replace_offsets(self.disk, f"{self.path}/{name}", offsets)
        except OSError as error:
            with suppress(OSError):
                self.disk.remove(f"{self.path}/{name}{names.TEMPORARY}")
            raise self.refused(error) from error
        self._sync_names(is_forgetting=is_forgetting)
        self._stored[name] = offsets
        self._behind.discard(name)

    def _sync_names(self, *, is_forgetting: bool) -> None:
        """Make the name of a replaced checkpoint durable, or fail for good.

        This cannot be refused as if nothing had changed: a power loss might leave the old file or
        the new one, and the stored offsets would no longer be known. Without a descriptor no sync
        was tried, so one retry is allowed. Where partitions are forgotten both files agree on all
        others, so there the next write may do it.
        """
        try:
            try:
                self.disk.sync_directory(self.path)
            except OSError as error:
                if not is_descriptor_shortage(error):
                    raise
                self.disk.sync_directory(self.path)
        except OSError as error:
            if is_forgetting and is_descriptor_shortage(error):
                raise self.refused(error) from error
            raise self.failed(error) from error

    def sync_if_possible(self) -> None:
        """Make names durable that a power loss may undo without harm; raises OSError.

        Without a descriptor it is left to the next sync of the directory.
        """
        try:
            self.disk.sync_directory(self.path)
        except OSError as error:
            if not is_descriptor_shortage(error):
                raise
            self.has_leftovers = True

    # -- partitions ------------------------------------------------------------------------

    def partition_path(self, partition: TopicPartition) -> str:
        return f"{self.path}/{names.partition_directory(partition)}"

    def find_partitions(self) -> list[TopicPartition]:
        """The partitions in it; what is left of deleted ones is removed. Raises OSError."""
        found = []
        for name in self.disk.list_directory(self.path):
            path = f"{self.path}/{name}"
            if names.is_deleted_directory(name) and self.disk.is_directory(path):
                remove_tree(self.disk, path)
                continue
            if name == names.ROOM_PROBE:  # left by a crash
                self.disk.remove(path)
            partition = names.parse_partition_directory(name)
            if partition is not None and self.disk.is_directory(path):
                found.append(partition)
        return found

    # -- deferred deletions ----------------------------------------------------------------

    def discard(self, paths: list[str], *, due_s: float) -> None:
        """Remove these files once the monotonic clock has reached `due_s`."""
        for path in paths:
            heappush(self._deletions, (due_s, next(self._deletion_numbers), path))

    def take_due_deletions(self, now_s: float, *, count_max: int) -> list[str]:
        """Files that are due, the oldest first; the caller must remove them."""
        due: list[str] = []
        while len(due) < count_max and self._deletions and self._deletions[0][0] <= now_s:
            due.append(heappop(self._deletions)[2])
        return due

    def delete_due(self, now_s: float) -> int:
        """Remove what is due, blocking, for callers without a background; how many files."""
        removed = 0
        for path in self.take_due_deletions(now_s, count_max=len(self._deletions)):
            with suppress(FileNotFoundError):  # its partition was deleted meanwhile
                self.disk.remove(path)
                removed += 1
        return removed
