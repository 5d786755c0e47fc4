"""The disk seam: everything that storage needs from a file system, and nothing else.

Rules both implementations keep (the simulated one checks that they suffice):
- Writes are positional; a file has no cursor.
- Data is durable after `File.sync`, a created, renamed or removed name after `sync_directory`
  of the directory that holds it.
- Every failure is an `OSError` with an errno (ENOSPC, EIO, ENOENT, ...).
"""

import errno
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

ReadableBuffer = bytes | bytearray | memoryview

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotAFile(OSError):
    """A name that should be a file's belongs to a pipe or a device: the disk did not fail."""


class LinkRefused(NotAFile):
    """A symbolic link inside a data directory: following it would read, or overwrite, a file that
    is not ours.
    """

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, "a symbolic link, which is not followed", path)


class ShortFile(OSError):
    """A file is shorter than what was written to it: it was cut, or the file system lost data."""

    def __init__(self, path: str, *, size: int | None = None, expected: int = 0) -> None:
        detail = "the file is shorter than what was written to it"
        if size is not None:
            detail += f": {size} of {expected} bytes"
        super().__init__(errno.EIO, detail, path)


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> str: ...

    @property
    def descriptor(self) -> int | None:
        """The operating system's number, for sendfile and RWF_NOWAIT; None when simulated."""

    def size(self) -> int: ...

    def state(self) -> tuple[int, int, bool]:
        """Its size, a stamp that every change of its content changes, by any process, and whether
        that is certain: times of a file system are as coarse as a tick of its clock.
        """

    def now(self) -> int:
        """A stamp that no change so far is above."""

    def is_removed(self) -> bool:
        """Whether it has no name any more: what is written is lost with the last close."""

    def write_at(self, position: int, data: ReadableBuffer) -> None:
        """Write all of `data`, or raise; after an error the range's content is undefined."""

    def write_all_at(self, position: int, buffers: Sequence[ReadableBuffer]) -> None:
        """`write_at` of the buffers one after the other, in one system call where possible."""

    def read_at(self, position: int, size_max: int) -> bytes:
        """At most `size_max` bytes; fewer only at the end of the file."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer`, return the bytes read; fewer than its size only at the end of the file."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make content and size durable (fdatasync). After a failure nothing may be trusted."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class DirectoryLock(Protocol):
    """Held while a process owns a log directory; freed by `release` or by the process's end."""

    def is_in_place(self) -> bool:
        """Whether the path still leads to what was locked: not after it was removed, renamed or
        unmounted, or something else was mounted there. For any thread; raises OSError.
        """

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system."""

    def open_read(self, path: str) -> File:
        """Open an existing file for reading; ENOENT when missing, NotAFile for a pipe or a link."""

    def open_write(self, path: str) -> File:
        """Open for reading and writing, created empty when missing, never truncated; NotAFile
        for a pipe or a link. Only its owner may use a new file.
        """

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def is_link(self, path: str) -> bool:
        """Whether the name is a symbolic link, whatever it leads to."""

    def size(self, path: str) -> int:
        """Size of the file at `path` in bytes; ENOENT when missing, NotAFile for a pipe or a
        link.
        """

    def modified_ms(self, path: str) -> int | None:
        """When the file was last changed, in milliseconds of the wall clock, or what was set;
        None if unknown. Only a hint: a crash may leave a later time.
        """

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Set the file's modification time."""

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def make_directories(self, path: str) -> None:
        """Create the directory and its parents, for their owner only; no error when it exists."""

    def remove(self, path: str) -> None:
        """Remove a file; ENOENT when missing."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a file at `target`. Works on directories too."""

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory durable."""

    def sync_many(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Make all the files durable, then all the directories' names; raises the first failure.

        One call because a journal commits many waiting syncs at once: a hundred together cost
        about as much as three one after the other.
        """

    def lock_directory(self, path: str) -> DirectoryLock:
        """Take the directory's `.lock` file; raises BlockingIOError when another holds it."""

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Size of the volume the path is on."""


def is_disk_full(error: OSError) -> bool:
    """Whether a write failed for want of space, of the file system or of a user's quota."""
    return error.errno in _DISK_FULL


def read_whole(disk: Disk, path: str) -> bytes:
    """All bytes of a small file."""
    with disk.open_read(path) as file:
        return file.read_at(0, file.size())


def write_atomically(disk: Disk, path: str, data: ReadableBuffer) -> None:
    """Replace the file so that a crash leaves the old or the new content, never a mixture."""
    write_all_atomically(disk, {path: data})


def write_all_atomically(disk: Disk, contents: Mapping[str, ReadableBuffer]) -> None:
    """`write_atomically` for many files, whose syncs go together."""
    with ExitStack() as opened:
        files = []
        for path, data in contents.items():
            file = opened.enter_context(disk.open_write(path + ".tmp"))
            file.truncate(0)
            file.write_at(0, data)
            files.append(file)
        disk.sync_many(files, [])
    for path in contents:
        disk.rename(path + ".tmp", path)
    disk.sync_many([], sorted({path.rpartition("/")[0] for path in contents}))


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a directory and everything in it; of a symbolic link only the link itself."""
    if disk.is_link(path) or not disk.is_directory(path):
        disk.remove(path)
        return
    for name in disk.list_directory(path):
        remove_tree(disk, f"{path}/{name}")
    disk.remove_directory(path)
