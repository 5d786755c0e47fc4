"""Finds the partitions that a path on the command line means, by the files in it."""

import os
import stat
from typing import Final

from millstream.cli.failure import UnusablePathError
from millstream.runtime.disk import Disk
from millstream.runtime.os_disk import LOCK_NAME
from millstream.storage import names
from millstream.storage.directories.clean_shutdown import CLEAN_SHUTDOWN_FILE
from millstream.storage.directories.log_directory import CHECKPOINTS

_LOG_DIRECTORY_FILES: Final = frozenset({LOCK_NAME, CLEAN_SHUTDOWN_FILE, *CHECKPOINTS})
_PARTITION_FILES: Final = frozenset({names.LEADER_EPOCHS, names.PARTITION_METADATA})


def tidy_path(given: str) -> str:
    """The path without trailing slashes; an empty one, as from an unset variable, is refused."""
    if not given:
        raise UnusablePathError("the path is empty; give a directory")
    return given.rstrip("/") or "/"


def has_segments(disk: Disk, directory: str) -> bool:
    """Whether the directory has segments; its name does not matter, a copy may have any."""
    parsed = (names.parse_segment_file(name) for name in disk.list_directory(directory))
    return any(one is not None and one[1] == names.LOG for one in parsed)


def partition_directories(disk: Disk, path: str) -> tuple[list[str], bool]:
    """The partition directory itself or all those of a log directory, and whether it is one."""
    check_directory(disk, path)
    if has_segments(disk, path):
        return [path], False
    found = [
        f"{path}/{name}"
        for name in disk.list_directory(path)
        if names.parse_partition_directory(name) is not None and disk.is_directory(f"{path}/{name}")
    ]
    if found or not _LOG_DIRECTORY_FILES.isdisjoint(disk.list_directory(path)):
        return found, True
    if names.parse_partition_directory(path.rpartition("/")[2]) is not None:
        return [path], False  # nothing was written yet
    raise UnusablePathError(f"{path}: neither a partition directory nor a log directory")


def check_directory(disk: Disk, path: str) -> None:
    """Raise UnusablePathError unless the path is a directory."""
    if not disk.exists(path):
        raise UnusablePathError(f"{path}: no such directory")
    if not disk.is_directory(path):
        raise UnusablePathError(f"{path}: not a directory")


def check_files(disk: Disk, directory: str) -> None:
    """Raise UnusablePathError for a pipe or device where a file should be: reading could hang."""
    for name in disk.list_directory(directory):
        is_ours = name in _PARTITION_FILES or name in _LOG_DIRECTORY_FILES
        if is_ours or names.parse_segment_file(name) is not None:
            path = f"{directory}/{name}"
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UnusablePathError(f"{path}: not a regular file")
