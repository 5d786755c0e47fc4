"""Reading a log by offset, in byte-limited slices, never past what may be seen."""

from enum import Enum

from millstream.kernels.errors import Reason
from millstream.kernels.header_chain import check_bytes
from millstream.model.errors import CorruptRecords, StorageFailed, TooManyOpenFiles
from millstream.model.ids import Offset
from millstream.model.invariant import invariant
from millstream.runtime.disk import ShortFile
from millstream.storage.directories.log_directory import is_descriptor_shortage
from millstream.storage.segments.files import PooledFile
from millstream.storage.segments.segment import Segment
from millstream.storage.segments.segment_list import Segments
from millstream.storage.segments.sparse_index import IndexDamaged
from millstream.storage.segments.txn_index import AbortedTransaction


class Isolation(Enum):
    """How far a reader may see."""

    LOG_END = "log end"
    """Followers: everything that was appended."""
    HIGH_WATERMARK = "read_uncommitted"
    COMMITTED = "read_committed"


class ReadSlice:
    """A range of a segment file: whole batches, except that a byte limit may cut the last one.

    Pin the file before control returns to the event loop, unpin when the bytes are sent.
    """

    __slots__ = ("file", "is_fresh", "position", "raw", "size_bytes")

    def __init__(
        self, file: PooledFile | None, position: int, size_bytes: int, *, is_fresh: bool = False
    ) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes
        self.is_fresh = is_fresh
        """The newest batches, seen by few readers yet: they are in the page cache."""
        self.raw: bytes | None = None
        """The bytes, once `load` was called; then the file is not needed any more."""

    def load(self, offset: int) -> None:
        """Read the bytes into memory: for small slices of whole batches from `offset` on that are
        in the page cache. Raises OSError and CorruptRecords, which the log's owner interprets.
        """
        raw = self._read()
        if not check_bytes(raw, offset):
            raise CorruptRecords(
                f"{self._path()}: bytes {self.position} to {self.position + self.size_bytes}"
                f" are not the records from offset {offset} on"
            )
        self.raw = raw
        self.file = None

    def read(self) -> bytes:
        """The bytes, in one read; raises StorageFailed, or TooManyOpenFiles."""
        try:
            return self._read()
        except OSError as error:
            detail = f"{error.strerror or error} ({error.filename or self._path()})"
            if is_descriptor_shortage(error):
                raise TooManyOpenFiles(detail) from error
            directory = self._path().rpartition("/")[0].rpartition("/")[0]
            raise StorageFailed(directory, detail) from error

    def _path(self) -> str:
        return "" if self.file is None else self.file.path

    def _read(self) -> bytes:
        if self.file is None:
            return b""
        data = self.file.open().read_at(self.position, self.size_bytes)
        if len(data) != self.size_bytes:
            raise ShortFile(self.file.path)
        return data


EMPTY_SLICE = ReadSlice(None, 0, 0)


def read_slice(
    segments: Segments, start: Offset, *, limit: Offset, log_end: Offset, size_max: int
) -> ReadSlice:
    """Batches from the one that holds `start` on, below `limit`; at least one whole batch."""
    for segment in segments.from_number(segments.number_at(start)):
        if segment.base_offset >= limit:
            break
        location = segment.find_offset(start)
        if location is None:
            continue  # the rest of this segment was compacted away
        end = _end_position(segments, segment, limit=limit, log_end=log_end)
        if location.position >= end:
            break
        if location.position + location.size_bytes > end:
            # We never end a batch there: a length or an offset on the disk was changed.
            raise CorruptRecords(
                f"{segment.log.path}: {Reason.LENGTH.text} at byte {location.position}"
            )
        size = max(min(size_max, end - location.position), location.size_bytes)
        stop = location.position + size
        segment.check_range(location.position, stop, offset=segment.base_offset)
        invariant(
            location.position + size <= end,
            "I-07 a slice reaches beyond what its reader may see",
            position=location.position,
            size=size,
            end=end,
        )
        return ReadSlice(segment.log, location.position, size)
    return EMPTY_SLICE


def _end_position(segments: Segments, segment: Segment, *, limit: Offset, log_end: Offset) -> int:
    segment_end = segments.end_of(segment)
    if limit >= (log_end if segment_end is None else segment_end):
        return segment.size_bytes
    location = segment.find_offset(limit)
    return segment.size_bytes if location is None else location.position


def aborted_in(
    data: ReadSlice, segments: Segments, start: Offset, limit: Offset
) -> list[AbortedTransaction]:
    """Aborted transactions with records in a slice that was read from `start` below `limit`.

    Not of everything below `limit`: that list would grow with the reader's lag. Raises
    CorruptRecords when it cannot be known.
    """
    if data.file is None or not _has_aborted(segments, start):
        return []
    segment = next(
        one for one in segments.from_number(segments.number_at(start)) if one.log is data.file
    )
    end = segment.end_bound(data.position + data.size_bytes) or segments.end_of(segment) or limit
    try:
        return aborted_between(segments, start, min(limit, end))
    except IndexDamaged as error:
        raise CorruptRecords(str(error)) from error


def _has_aborted(segments: Segments, start: Offset) -> bool:
    """Most logs never have an aborted transaction, and need no search for where a slice ends."""
    return any(len(one.txn_index) for one in segments.from_number(segments.number_at(start)))


def aborted_between(segments: Segments, start: Offset, end: Offset) -> list[AbortedTransaction]:
    """Aborted transactions with records in [start, end), in the order of their first offset."""
    found: list[AbortedTransaction] = []
    for segment in segments.from_number(segments.number_at(start)):
        search = segment.txn_index.collect(start, end)
        found += search.transactions
        if search.is_complete:
            break
    return sorted(found, key=lambda aborted: aborted.first_offset)
