"""Reading a log: by offset in byte-limited slices, by timestamp, never past what may be seen."""

import errno
from enum import Enum
from typing import NamedTuple

from millstream.kernels import batches, records
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    HEADER_BYTES,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    ROW_FIELDS,
    SIZE,
)
from millstream.kernels.compression import Codec, decompress
from millstream.kernels.errors import MalformedRecords, Reason
from millstream.kernels.records import OFFSET_DELTA, SPAN_FIELDS, TIMESTAMP_DELTA
from millstream.model.errors import CorruptRecords, StorageFailed, TooManyOpenFiles
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs
from millstream.model.invariant import invariant
from millstream.model.limits import DECOMPRESSED_BATCH_BYTES_MAX
from millstream.storage.files import PooledFile
from millstream.storage.log_directory import is_descriptor_shortage
from millstream.storage.segment import Segment
from millstream.storage.segments import Segments
from millstream.storage.sparse_index import IndexDamaged
from millstream.storage.txn_index import AbortedTransaction
from millstream.storage.validation import CODEC_MASK, LOG_APPEND_TIME_BIT, walk_whole


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

    def load(self) -> None:
        """Take the bytes themselves: for a few that can be had without waiting. Raises OSError, of
        which the log's owner makes what it means.
        """
        self.raw = self._read()
        self.file = None

    def read(self) -> bytes:
        """The bytes, in one read; raises StorageFailed, or TooManyOpenFiles."""
        try:
            return self._read()
        except OSError as error:
            told = f"{error.strerror or error} ({error.filename or self._path()})"
            if is_descriptor_shortage(error):
                raise TooManyOpenFiles(told) from error
            directory = self._path().rpartition("/")[0].rpartition("/")[0]
            raise StorageFailed(directory, told) from error

    def _path(self) -> str:
        return "" if self.file is None else self.file.path

    def _read(self) -> bytes:
        if self.file is None:
            return b""
        data = self.file.open().read_at(self.position, self.size_bytes)
        if len(data) != self.size_bytes:
            raise OSError(errno.EIO, "segment file is shorter than its batches", self.file.path)
        return data


EMPTY_SLICE = ReadSlice(None, 0, 0)


class RecordPlace(NamedTuple):
    """A record found by time."""

    offset: Offset
    timestamp_ms: TimestampMs
    leader_epoch: LeaderEpoch


def read_slice(
    segments: Segments, start: Offset, *, limit: Offset, log_end: Offset, size_max: int
) -> ReadSlice:
    """Batches from the one that holds `start` on, below `limit`; at least one whole batch."""
    for segment in segments.from_number(segments.number_at(start)):
        if segment.base_offset >= limit:
            break
        place = segment.find_offset(start)
        if place is None:
            continue  # the rest of this segment was compacted away
        end = _end_position(segments, segment, limit=limit, log_end=log_end)
        if place.position >= end:
            break
        if place.position + place.size_bytes > end:
            # No rule of ours put the end there: a length or an offset on the disk was changed.
            raise CorruptRecords(
                f"{segment.log.path}: {Reason.LENGTH.text} at byte {place.position}"
            )
        size = max(min(size_max, end - place.position), place.size_bytes)
        invariant(
            place.position + size <= end,
            "I-07 a slice reaches beyond what its reader may see",
            position=place.position,
            size=size,
            end=end,
        )
        return ReadSlice(segment.log, place.position, size)
    return EMPTY_SLICE


def _end_position(segments: Segments, segment: Segment, *, limit: Offset, log_end: Offset) -> int:
    segment_end = segments.end_of(segment)
    if limit >= (log_end if segment_end is None else segment_end):
        return segment.size_bytes
    place = segment.find_offset(limit)
    return segment.size_bytes if place is None else place.position


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


def find_by_timestamp(
    segments: Segments,
    timestamp_ms: int,
    *,
    log_start: Offset,
    size_max: int = DECOMPRESSED_BATCH_BYTES_MAX,
) -> RecordPlace | None:
    """The first record at or after `log_start` whose timestamp is at least the asked one.

    This and the next raise CorruptRecords for a batch that decompresses to more than `size_max`.
    """
    for segment in segments.from_number(segments.number_at(log_start)):
        if not segment.size_bytes or segment.largest_timestamp().timestamp_ms < timestamp_ms:
            continue
        from_offset = log_start
        while (place := segment.find_timestamp(timestamp_ms, from_offset=from_offset)) is not None:
            batch = OpenBatch(segment.read(place), size_max=size_max)
            found = batch.first_at(timestamp_ms, from_offset=from_offset)
            if found is not None:
                return found
            if batch.last_offset < from_offset:
                raise CorruptRecords(f"{segment.log.path}: OFFSETS at byte {place.position}")
            from_offset = Offset(batch.last_offset + 1)
    return None


def find_max_timestamp(
    segments: Segments, *, log_start: Offset, size_max: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> RecordPlace | None:
    """The first record that has the largest timestamp among those from `log_start` on."""
    best: RecordPlace | None = None
    for segment in segments.from_number(segments.number_at(log_start)):
        if segment.base_offset < log_start:
            best = _max_timestamp_from(segment, log_start, size_max)
            continue
        newest = segment.largest_timestamp() if segment.size_bytes else None
        if newest is not None and newest.timestamp_ms > (best.timestamp_ms if best else -1):
            place = segment.find_offset(newest.offset)
            if place is not None:
                batch = OpenBatch(segment.read(place), size_max=size_max)
                best = batch.first_at(newest.timestamp_ms, from_offset=log_start)
    return best


def _max_timestamp_from(segment: Segment, log_start: Offset, size_max: int) -> RecordPlace | None:
    """As above for the segment that the log start may cut: its index also counts what is gone."""
    best: RecordPlace | None = None
    place = segment.find_offset(log_start) if segment.size_bytes else None
    for step in segment.walk(place.position) if place is not None else ():
        rows = step.rows
        for row in range(0, len(rows), ROW_FIELDS):
            if rows[row + MAX_TIMESTAMP] <= (best.timestamp_ms if best else -1):
                continue
            at = rows[row + POSITION]
            batch = OpenBatch(bytes(step.buffer[at : at + rows[row + SIZE]]), size_max=size_max)
            best = batch.newest(from_offset=log_start) or best
    return best


class OpenBatch:
    """One stored batch, opened to look at its records."""

    __slots__ = ("payload", "rows", "spans")

    def __init__(self, data: bytes, *, size_max: int) -> None:
        self.rows = walk_whole(data, check_crc=True)
        codec = Codec(self.rows[ATTRIBUTES] & CODEC_MASK)
        body = memoryview(data)[HEADER_BYTES:]
        try:
            # Bounded again, though a leader did when it was appended: a follower takes what comes.
            self.payload = body if codec is Codec.NONE else decompress(codec, body, size_max)
            self.spans = records.locate(self.payload, 0, len(self.payload), self.rows[RECORD_COUNT])
        except MalformedRecords as error:
            raise CorruptRecords(str(error)) from error

    @property
    def last_offset(self) -> Offset:
        return Offset(self.rows[batches.LAST_OFFSET])

    def newest(self, *, from_offset: Offset) -> RecordPlace | None:
        """The first record from `from_offset` on with the largest timestamp among those."""
        rows, spans = self.rows, self.spans
        stamps = [
            rows[BASE_TIMESTAMP] + spans[span + TIMESTAMP_DELTA]
            for span in range(0, len(spans), SPAN_FIELDS)
            if rows[BASE_OFFSET] + spans[span + OFFSET_DELTA] >= from_offset
        ]
        if not stamps:
            return None
        largest = rows[MAX_TIMESTAMP] if rows[ATTRIBUTES] & LOG_APPEND_TIME_BIT else max(stamps)
        return self.first_at(largest, from_offset=from_offset)

    def first_at(self, timestamp_ms: int, *, from_offset: Offset) -> RecordPlace | None:
        """The first record from `from_offset` on with at least that timestamp."""
        rows, spans = self.rows, self.spans
        is_append_time = rows[ATTRIBUTES] & LOG_APPEND_TIME_BIT
        for span in range(0, len(spans), SPAN_FIELDS):
            offset = rows[BASE_OFFSET] + spans[span + OFFSET_DELTA]
            stamp = rows[BASE_TIMESTAMP] + spans[span + TIMESTAMP_DELTA]
            if is_append_time:
                stamp = rows[MAX_TIMESTAMP]
            if stamp >= timestamp_ms and offset >= from_offset:
                return RecordPlace(
                    Offset(offset), TimestampMs(stamp), LeaderEpoch(rows[LEADER_EPOCH])
                )
        return None
