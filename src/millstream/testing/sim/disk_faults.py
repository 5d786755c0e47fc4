"""The faults planned for a simulated disk: which call fails, when, and how."""

import errno
import os
from dataclasses import dataclass
from typing import Literal

from millstream.runtime.randomness import Randomness

DiskOperation = Literal[
    "open",
    "read",
    "write",
    "truncate",
    "sync",
    "stat",
    "list",
    "make_directory",
    "remove",
    "rename",
    "sync_directory",
    "lock",
]


def os_error(number: int, path: str) -> OSError:
    """The error the operating system would give; Python picks the subclass by its number."""
    return OSError(number, os.strerror(number), path)


@dataclass(slots=True, kw_only=True)
class DiskFault:
    """One planned failure.

    `skip` calls pass before it strikes, `times` calls then fail (None: every one from then on).
    `partial_bytes` of a failing write are written before it fails. `drops_cache` makes a failing
    sync throw the unsynced changes away for readers too, as some file systems do.
    """

    operation: DiskOperation
    errno: int
    path_part: str = ""
    skip: int = 0
    times: int | None = 1
    probability: float = 1.0
    partial_bytes: int = 0
    drops_cache: bool = False

    def strikes(self, operation: DiskOperation, path: str, randomness: Randomness) -> bool:
        """Whether this call fails; counts the call."""
        if operation != self.operation or self.path_part not in path or self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.probability < 1.0 and not randomness.chance(self.probability):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class DiskFaults:
    """The faults planned for one disk, and the directories that have failed completely."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._planned: list[DiskFault] = []
        self._failed_directories: dict[str, int] = {}
        self.active = False
        """False: calls skip the lookup."""

    def plan(self, fault: DiskFault) -> None:
        self._planned.append(fault)
        self.active = True

    def fail_next(
        self, operation: DiskOperation, number: int = errno.EIO, *, path_part: str = ""
    ) -> None:
        """The next such call on a path that contains `path_part` fails."""
        self.plan(DiskFault(operation=operation, errno=number, path_part=path_part))

    def fail_directory(self, path: str, number: int = errno.EIO) -> None:
        """Every call on the path and below it fails from now on, through open files too."""
        self._failed_directories[path.rstrip("/")] = number
        self.active = True

    def heal(self) -> None:
        """Take back every planned fault and failed directory; what was lost stays lost."""
        self._planned.clear()
        self._failed_directories.clear()
        self.active = False

    def strike(self, operation: DiskOperation, path: str, other: str = "") -> DiskFault | None:
        """The fault this call meets, or None; a rename has a second path."""
        for directory, number in self._failed_directories.items():
            if any(f"{one}/".startswith(f"{directory}/") for one in (path, other)):
                return DiskFault(operation=operation, errno=number)
        paths = f"{path}\n{other}" if other else path
        for fault in self._planned:
            if fault.strikes(operation, paths, self._randomness):
                return fault
        return None
