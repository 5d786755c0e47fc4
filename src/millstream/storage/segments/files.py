"""Open files, bounded: thousands of segments share a fixed number of descriptors."""

import errno
from collections import deque

from millstream.model.invariant import invariant
from millstream.runtime.disk import Disk, File


class PooledFile:
    """A file that is open while it is used or pinned, and may be closed in between."""

    __slots__ = ("_file", "_gone", "_pins", "_pool", "_used", "path")

    def __init__(self, pool: "OpenFiles", path: str) -> None:
        self.path = path
        self._pool = pool
        self._file: File | None = None
        self._pins = 0
        self._used = False
        self._gone = False

    def open(self) -> File:
        """The open file; valid until control returns to the event loop, or longer if pinned."""
        self._used = True
        file = self._file
        return file if file is not None else self._pool.admit(self)

    def pin(self) -> File:
        """Keep it open until `unpin`: for slices being sent and for jobs in other threads."""
        file = self.open()
        self._pins += 1
        return file

    def unpin(self) -> None:
        invariant(self._pins > 0, "I-37 a file was unpinned more often than pinned", path=self.path)
        self._pins -= 1
        if self._gone and not self._pins:
            self._close()

    def forget(self) -> None:
        """Close now, or when the last pin goes: the segment is leaving the log."""
        self._gone = True
        if not self._pins:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._pool.dropped(self)
            file.close()


class OpenFiles:
    """At most `open_max` unpinned files stay open; the ones unused for longest are closed first.

    Second-chance replacement: using a file only sets a flag, because the append path uses one on
    every call and a move in an ordered dictionary would cost more than the rest of the lookup.
    """

    def __init__(self, disk: Disk, *, open_max: int) -> None:
        invariant(open_max > 0, "I-37 the bound on open files must be positive", open_max=open_max)
        self._disk = disk
        self._open_max = open_max
        self._ring: deque[PooledFile] = deque()
        self._open_count = 0

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def open_count(self) -> int:
        return self._open_count

    def file(self, path: str) -> PooledFile:
        """A handle on an existing file; nothing is opened yet."""
        return PooledFile(self, path)

    def create(self, path: str) -> PooledFile:
        """A handle on a new, empty file."""
        handle = PooledFile(self, path)
        file = self._open(path)
        try:
            file.truncate(0)
        except OSError:
            file.close()
            raise
        self._take(handle, file)
        return handle

    def admit(self, handle: PooledFile) -> File:
        # open_write creates what is missing; a segment that vanished must fail instead of
        # coming back empty.
        if not self._disk.exists(handle.path):
            raise FileNotFoundError(errno.ENOENT, "segment file is gone", handle.path)
        file = self._open(handle.path)
        self._take(handle, file)
        return file

    def _open(self, path: str) -> File:
        while True:
            try:
                return self._disk.open_write(path)
            except OSError as error:
                # Connections took all descriptors: ours are the ones that can be given back.
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._evict_one():
                    raise

    def close_idle(self, count: int) -> int:
        """Close up to that many unpinned files, so that others can be opened; how many."""
        closed = 0
        while closed < count and self._evict_one():
            closed += 1
        return closed

    def dropped(self, handle: PooledFile) -> None:
        self._open_count -= 1
        self._ring.remove(handle)

    def close(self) -> None:
        """Close every unpinned file."""
        for handle in list(self._ring):
            handle.forget()

    def _take(self, handle: PooledFile, file: File) -> None:
        while self._open_count >= self._open_max and self._evict_one():
            pass
        handle._file = file  # noqa: SLF001 - the pool and its handles are one unit
        handle._used = True  # noqa: SLF001
        self._ring.append(handle)
        self._open_count += 1

    def _evict_one(self) -> bool:
        for _ in range(2 * len(self._ring)):
            handle = self._ring[0]
            if handle._pins or handle._used:  # noqa: SLF001
                handle._used = False  # noqa: SLF001
                self._ring.rotate(-1)
                continue
            handle._close()  # noqa: SLF001
            return True
        return False  # everything is pinned: the pins are bounded by connections and jobs
