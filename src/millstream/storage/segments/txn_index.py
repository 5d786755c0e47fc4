"""The `.txnindex` of a segment: which transactions were aborted by markers in that segment.

A read_committed consumer gets this list with its records and skips what they cover (I-23). Most
segments have no aborted transaction, so the file is not created before the first one.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from millstream.model.ids import Offset, ProducerId
from millstream.model.invariant import invariant
from millstream.runtime.disk import Disk, File
from millstream.storage.segments.sparse_index import IndexDamaged, unless_full

_ENTRY: Final = Struct(">hqqqq")  # version, producer id, first, last and last stable offset
ENTRY_BYTES: Final = _ENTRY.size
_VERSION: Final = 0
_CHUNK_ENTRIES: Final = 120
"""Entries per read of a scan: about one page of the page cache."""


class AbortedTransaction(NamedTuple):
    """One aborted transaction. `last_offset` is its abort marker's; both ends are inclusive."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset
    """Every transaction below this offset was complete when the marker was written."""

    def encode(self) -> bytes:
        return _ENTRY.pack(_VERSION, *self)

    @classmethod
    def decode(cls, raw: bytes) -> "AbortedTransaction":
        """Read one entry; raises IndexDamaged for one that no marker could have caused."""
        if len(raw) != ENTRY_BYTES:
            raise IndexDamaged(f"entry of {len(raw)} bytes")
        version, producer_id, first, last, stable = _ENTRY.unpack(raw)
        if version != _VERSION or producer_id < 0 or not 0 <= first < last:
            raise IndexDamaged(f"version {version}, producer {producer_id}, [{first}, {last}]")
        if not 0 <= stable <= last + 1:
            raise IndexDamaged(f"last stable offset {stable} with a marker at {last}")
        return cls(ProducerId(producer_id), Offset(first), Offset(last), Offset(stable))


class AbortedSearch(NamedTuple):
    """Aborted transactions that touch a range, and whether later segments can add to them."""

    transactions: list[AbortedTransaction]
    is_complete: bool


class TransactionIndex:
    """Entries in the order of their markers. Nothing is read before it is needed.

    A crash can leave part of an entry at the end: it is not seen, and the next append overwrites
    it. On a full disk new entries wait in memory: the marker is in the log, so the file can be
    built from it again, and a directory must not fail because it is full. `path` may be changed by
    the owner after it renamed the file.
    """

    __slots__ = (
        "_disk",
        "_is_new",
        "_last_offset",
        "_size_bytes",
        "_unsynced",
        "_waiting",
        "path",
    )

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._size_bytes: int | None = None
        self._last_offset: Offset | None = None
        self._unsynced = False
        self._is_new = False
        self._waiting: list[AbortedTransaction] = []
        """Newer than all in the file, in order; not written yet."""

    def __len__(self) -> int:
        return self._size() // ENTRY_BYTES + len(self._waiting)

    @property
    def is_unsynced(self) -> bool:
        return self._unsynced

    @property
    def has_waiting(self) -> bool:
        """Whether there are entries that the disk had no room for."""
        return bool(self._waiting)

    def append(self, entry: AbortedTransaction) -> None:
        """Add the entry of a newer marker."""
        invariant(
            not len(self) or entry.last_offset > self._newest_marker(),
            "I-23 aborted transactions out of order",
            entry=entry,
            path=self.path,
        )
        self._waiting.append(entry)
        with unless_full():
            self.save()

    def save(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        size = self._size()
        self._is_new |= size == 0 and not self._disk.exists(self.path)
        raw = b"".join(entry.encode() for entry in self._waiting)
        with self._disk.open_write(self.path) as file:
            file.write_at(size, raw)
        self._size_bytes = size + len(raw)
        self._last_offset = self._waiting[-1].last_offset
        self._waiting.clear()
        self._unsynced = True

    def entries(self) -> list[AbortedTransaction]:
        """All entries; raises IndexDamaged."""
        if not self._size():
            return list(self._waiting)
        with self._disk.open_read(self.path) as file:
            return [*self._scan(file, 0), *self._waiting]

    def collect(self, start_offset: Offset, end_offset: Offset) -> AbortedSearch:
        """The aborted transactions with records in [start, end); raises IndexDamaged.

        Complete when a marker was written at a time when everything below `end_offset` was
        decided: markers in later segments then belong to transactions that begin later.
        """
        found: list[AbortedTransaction] = []
        for entry in self._reaching(start_offset):
            if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return AbortedSearch(found, is_complete=True)
        return AbortedSearch(found, is_complete=False)

    def _reaching(self, offset: Offset) -> Iterator[AbortedTransaction]:
        if self._size():
            with self._disk.open_read(self.path) as file:
                yield from self._scan(file, self._first_reaching(file, offset))
        yield from self._waiting

    def truncate_to(self, end_offset: Offset) -> None:
        """Drop the entries whose markers lie at or after `end_offset`."""
        self._waiting = [entry for entry in self._waiting if entry.last_offset < end_offset]
        if not self._size():
            return
        with self._disk.open_write(self.path) as file:
            kept_count = self._first_reaching(file, end_offset)
            if kept_count < self._written_count:
                self._cut(file, kept_count)

    def reset(self) -> None:
        """Drop all entries, also damaged ones, before a rebuild."""
        self._waiting.clear()
        if self._disk.exists(self.path):
            with self._disk.open_write(self.path) as file:
                self._cut(file, 0)
        self._size_bytes = 0

    def check(self, base_offset: Offset) -> None:
        """Raise IndexDamaged unless the entries can be those of a segment with this base offset."""
        marker_before = base_offset - 1
        for entry in self.entries():
            if entry.last_offset <= marker_before:
                raise IndexDamaged(f"{self.path}: marker {entry.last_offset} is out of order")
            marker_before = entry.last_offset

    def sync(self) -> None:
        """Make what was appended durable, and the file's name when it is new."""
        if not self._unsynced:
            return
        with self._disk.open_write(self.path) as file:
            file.sync()
        if self._is_new:
            self._disk.sync_directory(self.path.rpartition("/")[0])
        self._unsynced = self._is_new = False

    @property
    def _written_count(self) -> int:
        return self._size() // ENTRY_BYTES

    def _size(self) -> int:
        size = self._size_bytes
        if size is None:
            try:
                size = self._disk.size(self.path)
            except FileNotFoundError:
                size = 0
            size -= size % ENTRY_BYTES
            self._size_bytes = size
        return size

    def _newest_marker(self) -> Offset:
        if self._waiting:
            return self._waiting[-1].last_offset
        if self._last_offset is None:
            with self._disk.open_read(self.path) as file:
                self._last_offset = self._read(file, self._written_count - 1).last_offset
        return self._last_offset

    def _first_reaching(self, file: File, offset: Offset) -> int:
        """Number of the first entry with a marker at or after `offset`: they are in order."""
        low, high = 0, self._written_count
        while low < high:
            middle = (low + high) // 2
            if self._read(file, middle).last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _scan(self, file: File, number: int) -> Iterator[AbortedTransaction]:
        for first in range(number, self._written_count, _CHUNK_ENTRIES):
            count = min(_CHUNK_ENTRIES, self._written_count - first)
            chunk = file.read_at(first * ENTRY_BYTES, count * ENTRY_BYTES)
            for at in range(0, count * ENTRY_BYTES, ENTRY_BYTES):
                yield AbortedTransaction.decode(chunk[at : at + ENTRY_BYTES])

    def _read(self, file: File, number: int) -> AbortedTransaction:
        return AbortedTransaction.decode(file.read_at(number * ENTRY_BYTES, ENTRY_BYTES))

    def _cut(self, file: File, kept_count: int) -> None:
        file.truncate(kept_count * ENTRY_BYTES)
        self._size_bytes = kept_count * ENTRY_BYTES
        self._last_offset = None
        self._unsynced = True
