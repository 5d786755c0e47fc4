"""Which file systems should be mounted on this machine and are not.

A directory on a disk that is not mounted looks like an empty one. Where nothing else remembers what
was in it, `/etc/fstab` does: an empty log must not be created in a mount point that it names and
that nothing is mounted on.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

FSTAB: Final = Path("/etc/fstab")
MOUNTED: Final = Path("/proc/self/mountinfo")

_POINT_IN_FSTAB: Final = 1
_POINT_IN_MOUNTED: Final = 4
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def unmounted_point(path: str, *, fstab: Path = FSTAB, mounted: Path = MOUNTED) -> str | None:
    """The mount point at or above the path that should have a file system and has none."""
    declared, present = "", ""
    with suppress(OSError, UnicodeDecodeError):  # without the tables nothing is known to be missing
        declared, present = fstab.read_text(), mounted.read_text()
    return find_unmounted(os.path.realpath(path), declared=declared, present=present)


def find_unmounted(path: str, *, declared: str, present: str) -> str | None:
    """The same for the text of `/etc/fstab` and `/proc/self/mountinfo`; the path is a real one."""
    there = _points(present, _POINT_IN_MOUNTED)
    for point in sorted(_points(declared, _POINT_IN_FSTAB) - there):
        if path == point or path.startswith(f"{point}/"):
            return point
    return None


def _points(text: str, field: int) -> set[str]:
    """Mount points of a table, without the root, which is always there."""
    found = set()
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > field and not fields[0].startswith("#"):
            point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[field])
            if point.startswith("/") and point.rstrip("/"):
                found.add(point.rstrip("/"))
    return found
