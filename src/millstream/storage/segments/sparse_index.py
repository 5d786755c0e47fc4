"""Sparse indexes of a segment: offset to file position, timestamp to offset.

Entries live in memory while the segment is active and are written when it is flushed, rolled or
closed: an index that a crash loses is rebuilt from the log above the recovery point, so it never
costs a system call on the append path. Closed segments load theirs on first use, through a cache
bounded in bytes.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Final, NamedTuple

from millstream.model.ids import NO_TIMESTAMP, Offset, TimestampMs
from millstream.runtime.disk import Disk, File, is_disk_full, read_whole, write_atomically

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


class IndexDamaged(Exception):
    """The index file cannot be what we wrote; the segment rebuilds it from its log."""


@contextmanager
def unless_full() -> Iterator[None]:
    """Save an index if there is room: it is in memory and, once forgotten, is built again."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


class IndexCache:
    """Indexes of closed segments in memory, at most `bytes_max` of them."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[SparseIndex, int] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def used(self, index: "SparseIndex", size_bytes: int) -> None:
        """Note a use; evict others when the bound is passed."""
        if index in self._kept:
            self._kept.move_to_end(index)
            return
        self._kept[index] = size_bytes
        self._bytes += size_bytes
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            oldest, freed = self._kept.popitem(last=False)
            self._bytes -= freed
            oldest.unload()

    def forget(self, index: "SparseIndex") -> None:
        self._bytes -= self._kept.pop(index, 0)


class SparseIndex:
    """What both indexes share: fixed-size entries, memory first, file later."""

    __slots__ = (
        "_cache",
        "_disk",
        "_entries",
        "_entry",
        "_has_stale_end",
        "_saved_bytes",
        "_unsynced",
        "_writable",
        "base",
        "path",
    )

    def __init__(
        self, disk: Disk, path: str, base: Offset, *, entry: Struct, cache: IndexCache
    ) -> None:
        self.path = path
        self.base = base
        self._disk = disk
        self._entry = entry
        self._cache = cache
        self._entries: bytearray | None = None
        self._saved_bytes = 0
        self._unsynced = False
        self._has_stale_end = False
        """The file is longer than its valid entries: some were cut since it was written."""
        self._writable = False

    def start_empty(self) -> None:
        """Start with no entries in memory; the file is replaced when saved."""
        self._entries = bytearray()
        self._saved_bytes = -1
        self._writable = True

    def take_over(self, other: "SparseIndex") -> None:
        """Continue with the entries of the same segment's index in another directory."""
        entries = other._load()  # noqa: SLF001 - one of us
        self.start_empty()
        self._entries = entries

    def start_writing(self) -> None:
        """Load all entries and keep them in memory, for the active segment."""
        self._load()
        self._cache.forget(self)
        self._writable = True

    def save(self, *, sync: bool) -> None:
        """Write what the file does not have yet."""
        entries = self._entries
        if entries is None or not self._writable:
            return
        if not sync and not self._has_stale_end and self._saved_bytes == len(entries):
            return
        with self._disk.open_write(self.path) as file:
            self._write_missing(file, entries)
            self._unsynced = not sync
            if sync:
                file.sync()
        self._saved_bytes = len(entries)
        self._has_stale_end = False

    def stop_writing(self, *, sync: bool) -> None:
        """The segment is closed: the file is complete, memory becomes a cache."""
        self.save(sync=sync)
        self._become_cache()

    def stop_writing_if_room(self) -> None:
        """As `stop_writing`; where there is no room for the file it is gone afterwards."""
        try:
            self.save(sync=False)
        except OSError as error:
            self._leave_out(error)
        self._become_cache()

    def _become_cache(self) -> None:
        self._writable = False
        if self._entries is not None:
            self._cache.used(self, len(self._entries))

    def replace_file(self) -> None:
        """Put the rebuilt entries of a closed segment in place, durably and at once.

        A trusted segment's index is not checked after a crash: a partial one would stay.
        """
        entries = self._load()
        try:
            write_atomically(self._disk, self.path, bytes(entries))
        except OSError as error:
            self._leave_out(error)
        self._saved_bytes = len(entries)
        self._has_stale_end = False
        self._writable = False
        self._cache.used(self, len(entries))

    def unload(self) -> None:
        """Called by the cache: forget the entries, the file has them."""
        if not self._writable:
            self._entries = None

    def forget(self) -> None:
        """The segment leaves the log."""
        self._cache.forget(self)
        self._entries = None
        self._writable = False

    @property
    def entries(self) -> bytearray:
        """All of them as the file has them, to be added to by the active segment."""
        entries = self._entries
        return entries if entries is not None and self._writable else self._load()

    @property
    def is_writable(self) -> bool:
        return self._writable

    @property
    def is_unsynced(self) -> bool:
        return self._unsynced

    @property
    def entry_count(self) -> int:
        return len(self._load()) // self._entry.size

    @property
    def size_bytes(self) -> int:
        entries = self._entries
        return len(entries if entries is not None else self._load())

    def _write_missing(self, file: File, entries: bytearray) -> None:
        start = max(self._saved_bytes, 0)
        if start < len(entries):
            file.write_at(start, bytes(memoryview(entries)[start:]))
        # Truncation is slow on a journalling file system and hardly ever needed.
        if file.size() > len(entries):
            file.truncate(len(entries))

    def _leave_out(self, error: OSError) -> None:
        """No room for the file of a closed segment: better none than a part, or what it was."""
        if not is_disk_full(error):
            raise error
        for path in (self.path + ".tmp", self.path):
            with suppress(FileNotFoundError):
                self._disk.remove(path)
        self._unsynced = False

    def _load(self) -> bytearray:
        entries = self._entries
        if entries is None:
            entries = bytearray(read_whole(self._disk, self.path))
            self._check(entries)
            self._entries = entries
            self._saved_bytes = len(entries)
        if not self._writable:
            self._cache.used(self, len(entries))
        return entries

    def _check(self, entries: bytearray) -> None:
        if len(entries) % self._entry.size:
            raise IndexDamaged(f"{self.path}: {len(entries)} bytes are no multiple of an entry")

    def _cut(self, entry_count: int) -> None:
        entries = self._load()
        size = entry_count * self._entry.size
        if size < len(entries):
            del entries[size:]
            self._has_stale_end |= self._saved_bytes > size
            self._saved_bytes = min(self._saved_bytes, size)

    def _count_at_most(self, wanted: int, field: int) -> int:
        """Entries, from the first on, whose `field` is at most `wanted`."""
        entries, entry = self._load(), self._entry
        low, high = 0, len(entries) // entry.size
        while low < high:
            middle = (low + high) >> 1
            if entry.unpack_from(entries, middle * entry.size)[field] <= wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry_at(self, number: int) -> tuple[int, ...]:
        return self._entry.unpack_from(self._load(), number * self._entry.size)


class OffsetIndex(SparseIndex):
    """(offset relative to the base, file position) of every few kilobytes of batches."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: str, base: Offset, *, cache: IndexCache) -> None:
        super().__init__(disk, path, base, entry=_OFFSET_ENTRY, cache=cache)

    def position_at_or_before(self, offset: Offset) -> int:
        """Where to start the search for the batch with `offset`."""
        number = self._count_at_most(offset - self.base, 0)
        return self._entry_at(number - 1)[1] if number else 0

    def positions_around(self, offset: Offset) -> tuple[int, int]:
        """As above, and where the first indexed batch that ends at or after `offset` begins (-1
        when there is none).
        """
        entries, entry = self._load(), _OFFSET_ENTRY
        number = self._count_at_most(offset - self.base - 1, 0)
        before = entry.unpack_from(entries, (number - 1) * entry.size)[1] if number else 0
        at = number * entry.size
        return before, entry.unpack_from(entries, at)[1] if at < len(entries) else -1

    def entry_from(self, position: int) -> tuple[Offset, int] | None:
        """Last offset and position of the first indexed batch at or behind `position`."""
        number = self._count_at_most(position - 1, 1)
        if number == self.entry_count:
            return None
        relative, found = self._entry_at(number)
        return Offset(self.base + relative), found

    def last_position(self) -> int:
        """Position of the last indexed batch."""
        count = self.entry_count
        return self._entry_at(count - 1)[1] if count else 0

    def truncate(self, *, end_offset: Offset, end_position: int) -> None:
        """Forget entries of batches that are no longer in the log."""
        count = self._count_at_most(end_offset - self.base - 1, 0)
        self._cut(min(count, self._count_at_most(end_position - 1, 1)))

    def _check(self, entries: bytearray) -> None:
        super()._check(entries)
        if entries:
            relative, position = _OFFSET_ENTRY.unpack_from(entries, len(entries) - 8)
            if relative < 0 or position < 0 or (len(entries) > 8 and not position):
                raise IndexDamaged(f"{self.path}: last entry is ({relative}, {position})")


class TimeIndexEntry(NamedTuple):
    """Largest timestamp so far and the offset of the batch that brought it."""

    timestamp_ms: TimestampMs
    offset: Offset


class TimeIndex(SparseIndex):
    """(largest timestamp so far, relative offset), strictly increasing in both."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: str, base: Offset, *, cache: IndexCache) -> None:
        super().__init__(disk, path, base, entry=_TIME_ENTRY, cache=cache)

    def append_if_later(self, entry: TimeIndexEntry) -> None:
        """Add it unless the newest entry already has that timestamp or a later one."""
        entries = self._load()
        timestamp_ms, offset = entry
        newest, relative = NO_TIMESTAMP, -1
        if entries:
            newest, relative = _TIME_ENTRY.unpack_from(entries, len(entries) - _TIME_ENTRY.size)
        if timestamp_ms > newest and offset - self.base > relative:
            entries += _TIME_ENTRY.pack(timestamp_ms, offset - self.base)

    def last(self) -> TimeIndexEntry | None:
        count = self.entry_count
        return self._typed(count - 1) if count else None

    def at_or_before(self, timestamp_ms: int) -> TimeIndexEntry | None:
        """Newest entry whose timestamp is at most the given one."""
        count = self._count_at_most(timestamp_ms, 0)
        return self._typed(count - 1) if count else None

    def truncate(self, *, end_offset: Offset) -> None:
        self._cut(self._count_at_most(end_offset - self.base - 1, 1))

    def _typed(self, number: int) -> TimeIndexEntry:
        timestamp_ms, relative = self._entry_at(number)
        return TimeIndexEntry(TimestampMs(timestamp_ms), Offset(self.base + relative))

    def _check(self, entries: bytearray) -> None:
        super()._check(entries)
        if entries:
            timestamp_ms, relative = _TIME_ENTRY.unpack_from(entries, len(entries) - 12)
            if relative < 0 or timestamp_ms < -1:
                raise IndexDamaged(f"{self.path}: last entry is ({timestamp_ms}, {relative})")
