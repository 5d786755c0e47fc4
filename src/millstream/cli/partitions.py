"""Which partitions a path on the command line means, by the files that are there."""

from millstream.cli.failure import refuse
from millstream.runtime.disk import Disk
from millstream.storage import names


def is_partition(disk: Disk, directory: str) -> bool:
    """Whether the directory holds segments; its name does not matter, a copy may have any."""
    parsed = (names.parse_segment_file(name) for name in disk.list_directory(directory))
    return any(one is not None and one[1] == names.LOG for one in parsed)


def partition_directories(disk: Disk, path: str) -> list[str]:
    """The partition directory itself, or all of a log directory; exits when it is neither."""
    check_directory(disk, path)
    if is_partition(disk, path):
        return [path]
    found = [
        f"{path}/{name}"
        for name in disk.list_directory(path)
        if names.parse_partition_directory(name) is not None and disk.is_directory(f"{path}/{name}")
    ]
    if not found:
        refuse(f"{path}: neither a partition directory nor a log directory")
    return found


def check_directory(disk: Disk, path: str) -> None:
    """Exit with one line unless there is a directory."""
    if not disk.exists(path):
        refuse(f"{path}: no such directory")
    if not disk.is_directory(path):
        refuse(f"{path}: not a directory")
