"""Whether a log directory has room. A full disk refuses writes and is not a failure (ADR 0006).

An episode begins with the first write that is refused. It ends when a probe was written and nothing
was refused for a whole check: free bytes prove nothing, because a file system without inodes
has plenty, and a small append may fit where the next one does not.
"""

import threading
from contextlib import suppress

from millstream.model.limits import ROOM_PROBE_BYTES
from millstream.runtime.disk import Disk, is_disk_full
from millstream.storage import names


class Room:
    """Of one log directory. Refusals are noted by any thread, checks are made by one at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = threading.Lock()
        self.is_full = False
        self.free_bytes: int | None = None
        """When the episode began, or ended; None where the file system does not say."""
        self.refused_writes = 0
        """Since the start of the process."""
        self.refused_in_episode = 0
        """In this one, or in the last."""
        self._refused_before_check = 0

    def refuse(self) -> None:
        """There was no room for a write."""
        with self._lock:
            is_first = not self.is_full
            self.refused_writes += 1
            self.refused_in_episode = 1 if is_first else self.refused_in_episode + 1
            self.is_full = True
        if is_first:
            self.free_bytes = self._free_bytes()

    def check(self) -> None:
        """End the episode if there is room again. Blocks; raises OSError for any other trouble."""
        refused = self.refused_writes
        is_quiet, self._refused_before_check = refused == self._refused_before_check, refused
        if not self.is_full or not is_quiet or not self._can_write():
            return
        free_bytes = self._free_bytes()
        with self._lock:
            if self.refused_writes == refused:
                self.is_full, self.free_bytes = False, free_bytes

    def _can_write(self) -> bool:
        free_bytes = self._free_bytes()
        if free_bytes is not None and free_bytes < 2 * ROOM_PROBE_BYTES:
            return False  # the probe must not take the last bytes from a client
        path = f"{self._directory}/{names.ROOM_PROBE}"
        try:
            with self._disk.open_write(path) as file:
                file.write_at(0, bytes(ROOM_PROBE_BYTES))
        except OSError as error:
            if not is_disk_full(error):
                raise
            return False
        finally:
            with suppress(FileNotFoundError):
                self._disk.remove(path)
        return True

    def _free_bytes(self) -> int | None:
        try:
            return self._disk.free_bytes(self._directory)
        except OSError:
            return None
