"""The part of the offline scan that compares an index with the batches of its log.

Both are in order, so one entry and one batch are in memory at a time, whatever their number.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from struct import Struct
from typing import Final

from millstream.model.ids import Offset
from millstream.model.limits import KIB
from millstream.runtime.disk import File
from millstream.storage import names
from millstream.storage.scan.report import ScanReport

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
_CHUNK_BYTES: Final = 48 * KIB
"""A multiple of both entry sizes."""
_NO_KEY: Final = 2**63
"""Above every key: no entry is left."""


class IndexCheck(ABC):
    """Entries are (value, key), both increasing; every key must be a batch's, with its value.

    The offset index has last offsets by position, the time index largest timestamps by last
    offset. Call `check_batch` for every batch whose key is at least `next_key`, then `finish`.
    """

    kind: str
    entry: Struct

    def __init__(self, directory: str, base: Offset, report: ScanReport) -> None:
        self.path = names.segment_path(directory, base, self.kind)
        self.base = base
        self.next_key = _NO_KEY
        self._next_value = -1
        self._report = report
        self._entries: Iterator[tuple[int, int]] = iter(())

    def begin(self, file: File, *, is_newest: bool) -> None:
        """Start with the entries of the open file."""
        self._entries = self._in_order(file, self._entries_end(file, is_newest=is_newest))
        self._advance()

    def check_batch(self, key: int, value: int) -> None:
        """Check a batch: no entry may point before it, and its own entry must be right."""
        while self.next_key <= key:
            if self.next_key < key:
                self._report.add_problem(self.path, self.describe_missing_batch(self._next_value))
            elif self._next_value != value:
                self._report.add_problem(
                    self.path, self.describe_wrong_entry(self._next_value, value)
                )
            self._advance()

    def finish(self) -> None:
        """The log has no more batches, so the index must have no more entries."""
        count = 0
        while self.next_key != _NO_KEY:
            count += 1
            self._advance()
        if count:
            entries = "1 entry points" if count == 1 else f"{count:,} entries point"
            self._report.add_problem(self.path, f"{entries} behind the last whole batch")

    @abstractmethod
    def describe_missing_batch(self, value: int) -> str:
        """The message for an entry whose batch does not exist."""

    @abstractmethod
    def describe_wrong_entry(self, value: int, expected: int) -> str:
        """The message for an entry whose batch has another value."""

    def _advance(self) -> None:
        self._next_value, self.next_key = next(self._entries, (-1, _NO_KEY))

    def _in_order(self, file: File, end: int) -> Iterator[tuple[int, int]]:
        before = (-1, -1)
        for position in range(0, end, _CHUNK_BYTES):
            chunk = file.read_at(position, min(_CHUNK_BYTES, end - position))
            whole = chunk[: len(chunk) - len(chunk) % self.entry.size]
            for value, key in self.entry.iter_unpack(whole):
                if value > before[0] and key > before[1]:
                    before = (value, key)
                    yield before
                else:
                    problem = f"entry ({value}, {key}) comes after ({before[0]}, {before[1]})"
                    self._report.add_problem(self.path, problem)

    def _entries_end(self, file: File, *, is_newest: bool) -> int:
        """Where the entries end; what follows is reported, once.

        Kafka makes the indexes of the segment it writes to longer than needed and cuts them when
        it is stopped. One that was killed leaves them as they are, full of zeros at the end.
        """
        size, entry_bytes = file.size(), self.entry.size
        written = _size_without_zeros(file)
        end = -(-written // entry_bytes) * entry_bytes
        if end == 0 and size == entry_bytes:
            return size  # a first entry can be all zeros, and right
        if size - end >= entry_bytes:
            problem = f"only zeros from byte {end} on"
            if is_newest:
                problem += ", as a broker that was killed leaves it"
                self._report.add_note(self.path, problem)
            else:
                self._report.add_problem(self.path, problem)
            return end
        if size % entry_bytes:
            problem = f"{size} bytes are no multiple of an entry"
            self._report.add_problem(self.path, problem)
        return size - size % entry_bytes


class OffsetIndexCheck(IndexCheck):
    """Entries (relative last offset, position)."""

    kind = names.OFFSET_INDEX
    entry = _OFFSET_ENTRY

    def describe_missing_batch(self, value: int) -> str:
        offset, position = self.base + value, self.next_key
        return f"offset {offset} should be at byte {position}, where no batch begins"

    def describe_wrong_entry(self, value: int, expected: int) -> str:
        found, right = self.base + value, self.base + expected
        return f"the batch at byte {self.next_key} ends with offset {right}, not {found}"


class TimeIndexCheck(IndexCheck):
    """Entries (largest timestamp so far, relative last offset)."""

    kind = names.TIME_INDEX
    entry = _TIME_ENTRY

    def describe_missing_batch(self, value: int) -> str:
        return f"no batch ends with offset {self.base + self.next_key}, as timestamp {value} says"

    def describe_wrong_entry(self, value: int, expected: int) -> str:
        offset = self.base + self.next_key
        return f"{expected} is the largest timestamp up to offset {offset}, not {value}"


def _size_without_zeros(file: File) -> int:
    end = file.size()
    while end:
        start = max(0, end - _CHUNK_BYTES)
        rest = file.read_at(start, end - start).rstrip(b"\0")
        if rest:
            return start + len(rest)
        end = start
    return 0
