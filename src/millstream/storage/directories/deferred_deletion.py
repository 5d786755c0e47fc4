"""Removes files whose delete delay is over, on time and off the loop.

A file system can take a good part of a second to free a gigabyte, and a topic may need its space
before retention runs next.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.clock import Clock
from millstream.runtime.disk import Disk
from millstream.storage.directories.log_directory import LogDirectory

FILES_PER_JOB_MAX: Final = 256
"""So that the removal of thousands does not keep a thread from everything else."""


class DeferredDeletion:
    """Owned by the thread that owns the logs; one job at a time for each directory."""

    def __init__(
        self, directories: Sequence[LogDirectory], *, clock: Clock, background: Background
    ) -> None:
        self._directories = directories
        """The owner's own list: it may grow before the start."""
        self._clock = clock
        self._background = background
        self._busy: set[str] = set()
        self._is_stopped = False

    def run(self) -> None:
        """Begin to remove what is due in the directories that are in use."""
        now_s = self._clock.monotonic_s()
        for directory in self._directories:
            if directory.failure is None and directory.is_open:
                self._begin(directory, now_s)

    def stop(self) -> None:
        """Begin nothing more; what is left is removed at the next start."""
        self._is_stopped = True

    def _begin(self, directory: LogDirectory, now_s: float) -> None:
        if self._is_stopped or directory.path in self._busy:
            return
        paths = directory.take_due_deletions(now_s, count_max=FILES_PER_JOB_MAX)
        if not paths:
            return
        self._busy.add(directory.path)
        try:
            self._background.submit(
                partial(_remove, directory.disk, paths),
                partial(self._removed, directory, paths),
                name=f"remove old files in {directory.path}",
            )
        except BackgroundFullError:
            self._busy.discard(directory.path)
            directory.discard(paths, due_s=now_s)

    def _removed(self, directory: LogDirectory, paths: list[str], outcome: Outcome[None]) -> None:
        self._busy.discard(directory.path)
        now_s = self._clock.monotonic_s()
        if isinstance(outcome.error, OSError):
            directory.refused(outcome.error)
            directory.discard(paths, due_s=now_s)  # tried again in the next run
            return
        outcome.result()
        if len(paths) == FILES_PER_JOB_MAX and directory.failure is None and directory.is_open:
            self._begin(directory, now_s)


def _remove(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            disk.remove(path)
        except FileNotFoundError:
            continue  # its partition was deleted meanwhile
