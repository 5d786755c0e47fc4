"""The disk seam over the operating system's own calls.

`write_at`, `write_all_at` and `read_into` are on the hot path: one system call each and no layer
between, the loops for short transfers run only when one happened. A file must not be closed while
another thread is inside one of its calls: the number could already belong to a new file.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Final, Self

from millstream.runtime.disk import File, LinkRefused, NotAFile, ReadableBuffer
from millstream.runtime.fatal import end_if_fatal

_CLOSED: Final = 2**31 - 1
"""No kernel gives this number out, so every call on it fails with EBADF (-1 is a ValueError)."""

_BUFFERS_PER_CALL_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024)
"""More buffers than this in one vectored call is EINVAL."""

_SYNC_THREADS_MAX: Final = 8
"""Syncs under way at once. Measured on ext4 with two cores: the first commit takes all names with
it, and more threads than this only wait for each other; sixteen took half as long again.
"""

_TICK_NS_MAX: Final = 20_000_000
"""Two changes of a file within a tick of the kernel's clock, 10 ms at most, may have one time."""

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
"""Records and metadata are for the broker's user only, whatever the umask. What exists keeps its
mode: an operator may have opened it to a group on purpose."""

LOCK_NAME: Final = ".lock"


class OsFile:
    """A descriptor and the path it was opened by."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int | None:
        return self._descriptor if self._descriptor != _CLOSED else None

    def size(self) -> int:
        return os.lseek(self._descriptor, 0, os.SEEK_END)  # a third of the time of fstat

    def state(self) -> tuple[int, int, bool]:
        found = os.fstat(self._descriptor)
        changed_ns = found.st_mtime_ns
        return found.st_size, changed_ns, time.time_ns() - changed_ns > _TICK_NS_MAX

    def now(self) -> int:
        return time.time_ns()

    def is_removed(self) -> bool:
        return not os.fstat(self._descriptor).st_nlink

    def write_at(self, position: int, data: ReadableBuffer) -> None:
        try:
            written = os.pwrite(self._descriptor, data, position)
            if written != len(data):
                self._write_rest(position + written, memoryview(data).cast("B")[written:])
        except OSError as error:
            error.filename = self.path
            raise

    def write_all_at(self, position: int, buffers: Sequence[ReadableBuffer]) -> None:
        # The vectored calls take -1 not as an error but as "at the cursor", which is never moved.
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        try:
            if len(buffers) > _BUFFERS_PER_CALL_MAX:
                self._write_in_groups(position, buffers)
                return
            written = os.pwritev(self._descriptor, buffers, position)
            if written != sum(map(len, buffers)):
                self._write_rest_of_all(position, buffers, written)
        except OSError as error:
            error.filename = self.path
            raise

    def _write_in_groups(self, position: int, buffers: Sequence[ReadableBuffer]) -> None:
        for first in range(0, len(buffers), _BUFFERS_PER_CALL_MAX):
            group = buffers[first : first + _BUFFERS_PER_CALL_MAX]
            self.write_all_at(position, group)
            position += sum(memoryview(buffer).nbytes for buffer in group)

    def _write_rest_of_all(
        self, position: int, buffers: Sequence[ReadableBuffer], written: int
    ) -> None:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if written < len(view):
                self._write_rest(position + written, view[written:])
                written = len(view)
            position += len(view)
            written -= len(view)

    def _write_rest(self, position: int, view: memoryview) -> None:
        while view:
            written = os.pwrite(self._descriptor, view, position)
            if not written:
                raise OSError(errno.EIO, "the disk accepts no more bytes and gives no reason")
            position += written
            view = view[written:]

    def read_at(self, position: int, size_max: int) -> bytes:
        data = os.pread(self._descriptor, size_max, position)
        while len(data) < size_max:
            # A short read is the end of the file or a transfer above the kernel's limit; only an
            # empty read distinguishes the two.
            more = os.pread(self._descriptor, size_max - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, position: int, buffer: memoryview) -> int:
        if position < 0:  # as in write_all_at
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        size = os.preadv(self._descriptor, (buffer,), position)
        while size < buffer.nbytes:
            more = os.preadv(self._descriptor, (buffer.cast("B")[size:],), position + size)
            if not more:
                break
            size += more
        return size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            error.filename = self.path
            raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OsDirectoryLock:
    """An advisory lock on the directory's `.lock` file; the kernel frees it when the process ends.

    The file stays: removing it would let a third process lock a new file of the same name while
    a second still holds the old one.
    """

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def is_in_place(self) -> bool:
        there = _status(self._path)
        return there is not None and os.path.samestat(there, os.fstat(self._descriptor))

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            # Unlocked by name and not only by closing: a forked child may share the description.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class OsDisk:
    """The machine's file system."""

    __slots__ = ()

    def open_read(self, path: str) -> File:
        return _open_regular(path, os.O_RDONLY)

    def open_write(self, path: str) -> File:
        return _open_regular(path, os.O_RDWR | os.O_CREAT)

    def exists(self, path: str) -> bool:
        return _status(path) is not None

    def is_directory(self, path: str) -> bool:
        status = _status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def size(self, path: str) -> int:
        status = os.lstat(path)
        _check_regular(path, status.st_mode)
        return status.st_size

    def modified_ms(self, path: str) -> int | None:
        return os.lstat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        times_ns = (time_ms * 1_000_000, time_ms * 1_000_000)
        os.utime(path, ns=times_ns, follow_symlinks=False)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        missing = []
        while path and not self.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for one in reversed(missing):  # `os.makedirs` gives its mode only to the last of them
            _make_directory(one)
        if path and not self.is_directory(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_many(self, files: Sequence[File], directories: Sequence[str]) -> None:
        _run_all([file.sync for file in files])
        _run_all([partial(self.sync_directory, path) for path in directories])

    def lock_directory(self, path: str) -> OsDirectoryLock:
        name = f"{path}/{LOCK_NAME}"
        descriptor = _open_no_link(name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            error.filename = path
            raise
        return OsDirectoryLock(name, descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize


def _open_regular(path: str, flags: int) -> OsFile:
    """Open a regular file. Without O_NONBLOCK a pipe of that name would block the caller forever;
    the flag has no effect on a file.
    """
    descriptor = _open_no_link(path, flags | os.O_NONBLOCK)
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return OsFile(path, descriptor)


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, _DIRECTORY_MODE)
    except FileExistsError:  # another process made it meanwhile
        if not os.path.isdir(path):
            raise


def _open_no_link(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW, _FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise LinkRefused(path) from error
        raise


def _check_regular(path: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise LinkRefused(path)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise NotAFile(errno.EINVAL, "not a regular file", path)


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    """Run blocking calls in parallel. The threads live for this call only: it is rare and long.

    All of them run to their end. Of several errors a failed sync is raised first: a shortage of
    descriptors may be retried, a failed sync must not be.
    """
    if len(calls) <= 1:
        for call in calls:
            call()
        return
    count = min(_SYNC_THREADS_MAX, len(calls))
    # A share for each thread: a future for every call would cost more than most of the calls.
    shares = [calls[number::count] for number in range(count)]
    with ThreadPoolExecutor(count, "sync") as threads:
        errors = [error for found in threads.map(_errors_of, shares) for error in found]
    for error in sorted(errors, key=_is_harmless):
        raise error


def _errors_of(calls: Sequence[Callable[[], None]]) -> list[BaseException]:
    errors: list[BaseException] = []
    for call in calls:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            end_if_fatal(error)
            errors.append(error)
    return errors


def _is_harmless(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def _status(path: str) -> os.stat_result | None:
    """None when there is no such name.

    Any other failure is raised: a broken disk that was taken for "no such file" would make
    recovery start an empty log.
    """
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
