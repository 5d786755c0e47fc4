"""One log directory: its lock, its checkpoint files, its health, its rubbish.

A directory that failed once is not used again before a restart: after a failed fsync the kernel
may have dropped the pages and report success the next time.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from millstream.model.errors import LogDirectoryLocked, StorageFailed
from millstream.model.ids import Offset, TopicPartition
from millstream.runtime.disk import DirectoryLock, Disk
from millstream.storage import names
from millstream.storage.checkpoints import (
    CorruptCheckpoint,
    read_offsets,
    write_offsets,
)

OffsetsByPartition = dict[TopicPartition, Offset]

CHECKPOINTS: Final = (
    names.RECOVERY_POINTS,
    names.HIGH_WATERMARKS,
    names.LOG_STARTS,
    names.CLEANER_OFFSETS,
)


class LogDirectory:
    """A place for partitions that lives and fails as one."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.disk = disk
        self.failure: str | None = None
        self._lock: DirectoryLock | None = None
        self._stored: dict[str, OffsetsByPartition] = {name: {} for name in CHECKPOINTS}
        self._rubbish: deque[tuple[float, str]] = deque()
        self.damaged_checkpoints: list[str] = []

    def open(self) -> None:
        """Create and lock it, read its checkpoints. Raises LogDirectoryLocked or StorageFailed."""
        try:
            self.disk.make_directories(self.path)
            self._lock = self.disk.lock_directory(self.path)
        except BlockingIOError as error:
            raise LogDirectoryLocked(f"{self.path} is in use by another process") from error
        except OSError as error:
            raise self.failed(error) from error
        for name in CHECKPOINTS:
            self._stored[name] = self._read(name)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- health ----------------------------------------------------------------------------

    def failed(self, error: OSError) -> StorageFailed:
        """Note the failure and say it as the error to raise; the first cause is kept."""
        if self.failure is None:
            self.failure = f"{error.strerror or error} ({error.filename or self.path})"
        return StorageFailed(self.path, self.failure)

    def check_usable(self) -> None:
        if self.failure is not None:
            raise StorageFailed(self.path, self.failure)

    # -- checkpoints -----------------------------------------------------------------------

    def stored(self, name: str, partition: TopicPartition) -> Offset | None:
        """What the checkpoint file on disk says of the partition."""
        return self._stored[name].get(partition)

    def store(self, name: str, changes: Mapping[TopicPartition, Offset]) -> None:
        """Write the checkpoint file with these changes, durably; no write when nothing changes."""
        current = self._stored[name]
        if all(current.get(partition) == offset for partition, offset in changes.items()):
            return
        updated = {**current, **changes}
        self._write(name, updated)

    def forget(self, partition: TopicPartition) -> None:
        """Drop a deleted partition from every checkpoint file."""
        for name, stored in self._stored.items():
            if partition in stored:
                rest = {key: offset for key, offset in stored.items() if key != partition}
                self._write(name, rest)

    def _read(self, name: str) -> OffsetsByPartition:
        try:
            return read_offsets(self.disk, f"{self.path}/{name}")
        except CorruptCheckpoint:
            # Without it everything is recovered from the logs' beginning: slower, never wrong.
            self.damaged_checkpoints.append(name)
            return {}

    def _write(self, name: str, offsets: OffsetsByPartition) -> None:
        self.check_usable()
        try:
            write_offsets(self.disk, f"{self.path}/{name}", offsets)
        except OSError as error:
            raise self.failed(error) from error
        self._stored[name] = offsets

    # -- rubbish ---------------------------------------------------------------------------

    def discard(self, paths: list[str], *, due_s: float) -> None:
        """Remove these files once `due_s` on the monotonic clock has come."""
        self._rubbish.extend((due_s, path) for path in paths)

    def empty_rubbish(self, now_s: float) -> int:
        """Remove what is due; returns how many files. Blocks for as long as the removals take."""
        removed = 0
        while self._rubbish and self._rubbish[0][0] <= now_s:
            _, path = self._rubbish.popleft()
            try:
                self.disk.remove(path)
                removed += 1
            except FileNotFoundError:
                continue  # its partition was deleted meanwhile
        return removed
