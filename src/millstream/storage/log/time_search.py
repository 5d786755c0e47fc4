"""Searches a log's records by timestamp, in steps (`runtime/scheduler.py`).

The indexes say which batch holds the record; to find it in there a worker thread reads and
decompresses the batch. Meanwhile the log may change: retention, compaction or a truncation can
remove what is being searched, and then the search starts again.
"""

import errno
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

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
from millstream.model.errors import CorruptRecords
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs
from millstream.runtime.disk import File
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.storage.segments.batch_attributes import CODEC_MASK, LOG_APPEND_TIME_BIT
from millstream.storage.segments.file_walk import FileWalk
from millstream.storage.segments.segment import BatchLocation, Segment
from millstream.storage.segments.segment_list import Segments
from millstream.storage.segments.sparse_index import TimeIndexEntry
from millstream.storage.validation import walk_whole

T = TypeVar("T")

SEGMENTS_PER_TURN: Final = 64
"""Segments whose indexes are searched in one step; each may be a small read."""

_ANY_TIME: Final = -(2**63)


class TimestampAndOffset(NamedTuple):
    """A record found by time."""

    offset: Offset
    timestamp_ms: TimestampMs
    leader_epoch: LeaderEpoch


class SearchableLog(Protocol):
    """What a search needs of a log."""

    @property
    def segments(self) -> Segments: ...

    @property
    def log_start(self) -> Offset: ...

    @property
    def truncations(self) -> int: ...

    def check_open(self) -> None:
        """Raise unless the log can be read."""


def find_timestamp_steps(
    log: SearchableLog, timestamp_ms: int, *, size_max: int
) -> StepGenerator[TimestampAndOffset | None]:
    """The first record at or after the log's start whose timestamp is at least the given one.

    This and the next raise CorruptRecords for a batch that decompresses to more than `size_max`.
    """
    while True:
        view = _View(log)
        try:
            return (yield from _first_at_steps(view, timestamp_ms, size_max))
        except _LogChanged:
            continue


def find_max_timestamp_steps(
    log: SearchableLog, *, size_max: int
) -> StepGenerator[TimestampAndOffset | None]:
    """The first record that has the largest timestamp among those from the log's start on."""
    while True:
        view = _View(log)
        try:
            return (yield from _newest_steps(view, size_max))
        except _LogChanged:
            continue


class _LogChanged(Exception):
    """What is being searched may be gone."""


class _View:
    """The segments from the log's start on, as they are when the search begins."""

    def __init__(self, log: SearchableLog) -> None:
        log.check_open()
        self._log = log
        self.log_start = log.log_start
        self._all = log.segments
        self._facts = self._now()
        self.segments = list(self._all.from_number(self._all.number_at(self.log_start)))

    def check(self) -> None:
        """Raise _LogChanged if the log changed; called after every yield."""
        self._log.check_open()
        if self._log.segments is not self._all or self._now() != self._facts:
            raise _LogChanged

    def _now(self) -> tuple[int, int, int]:
        return self._log.truncations, self._all.removals, self._log.log_start

    def search_steps(self, segment: Segment, search: Callable[[File], T]) -> StepGenerator[T]:
        """Run `search` on the segment's file in a worker thread."""
        file = segment.log.pin()
        try:
            found: T = yield partial(search, file)
        finally:
            segment.log.unpin()
        self.check()
        return found


def _first_at_steps(
    view: _View, timestamp_ms: int, size_max: int
) -> StepGenerator[TimestampAndOffset | None]:
    counter = YieldCounter(SEGMENTS_PER_TURN)
    for segment in view.segments:
        if counter.is_due():
            yield None
            view.check()
        if not segment.size_bytes or segment.largest_timestamp().timestamp_ms < timestamp_ms:
            continue
        start = view.log_start
        while (location := segment.find_timestamp(timestamp_ms, from_offset=start)) is not None:
            search = partial(
                _find_in_batch, segment.log.path, location, size_max, timestamp_ms, start
            )
            found, last_offset = yield from view.search_steps(segment, search)
            if found is not None:
                return found
            if last_offset < start:
                raise CorruptRecords(f"{segment.log.path}: OFFSETS at byte {location.position}")
            start = Offset(last_offset + 1)
    return None


def _newest_steps(view: _View, size_max: int) -> StepGenerator[TimestampAndOffset | None]:
    """The index of a segment that the log start cuts includes deleted records: such a segment is
    scanned only where no other has a newer record.
    """
    counter = YieldCounter(SEGMENTS_PER_TURN)
    cut: Segment | None = None
    newest: tuple[TimeIndexEntry, Segment] | None = None
    for segment in view.segments:
        if counter.is_due():
            yield None
            view.check()
        if not segment.size_bytes:
            continue
        entry = segment.largest_timestamp()
        if segment.base_offset < view.log_start:
            cut = segment
        elif entry.timestamp_ms > (newest[0].timestamp_ms if newest else -1):
            newest = (entry, segment)
    newest_ms = newest[0].timestamp_ms if newest else -1
    if cut is not None and cut.largest_timestamp().timestamp_ms >= newest_ms:
        location = cut.find_offset(view.log_start)
        if location is not None:
            search = partial(
                _find_newest, location.position, cut.size_bytes, size_max, view.log_start
            )
            found = yield from view.search_steps(cut, search)
            if found is not None and found.timestamp_ms >= newest_ms:
                return found
    if newest is None:
        return None
    entry, segment = newest
    location = segment.find_offset(entry.offset)
    if location is None:
        return None
    start = view.log_start
    search_batch = partial(
        _find_in_batch, segment.log.path, location, size_max, entry.timestamp_ms, start
    )
    return (yield from view.search_steps(segment, search_batch))[0]


# -- in a worker thread --------------------------------------------------------------------------


def _find_in_batch(
    path: str,
    location: BatchLocation,
    size_max: int,
    timestamp_ms: int,
    from_offset: Offset,
    file: File,
) -> tuple[TimestampAndOffset | None, Offset]:
    """The first record of the batch at or after that time, and the batch's last offset."""
    data = file.read_at(location.position, location.size_bytes)
    if len(data) != location.size_bytes:
        raise OSError(errno.EIO, "segment file is shorter than its batches", path)
    batch = OpenBatch(data, size_max=size_max)
    return batch.first_at(timestamp_ms, from_offset=from_offset), batch.last_offset


def _find_newest(
    position: int, end: int, size_max: int, log_start: Offset, file: File
) -> TimestampAndOffset | None:
    """The newest record from the log start on, in all batches from `position` on."""
    best: TimestampAndOffset | None = None
    for step in FileWalk(file, start=position, stop=end, check_crc=False):
        rows = step.rows
        for row in range(0, len(rows), ROW_FIELDS):
            if rows[row + MAX_TIMESTAMP] <= (best.timestamp_ms if best else -1):
                continue
            at = rows[row + POSITION]
            batch = OpenBatch(bytes(step.buffer[at : at + rows[row + SIZE]]), size_max=size_max)
            found = batch.newest(from_offset=log_start)
            if found is not None and found.timestamp_ms > (best.timestamp_ms if best else -1):
                best = found
    return best


class OpenBatch:
    """One stored batch, decompressed to search its records."""

    __slots__ = ("payload", "rows")

    def __init__(self, data: bytes, *, size_max: int) -> None:
        self.rows = walk_whole(data, check_crc=True)
        codec = Codec(self.rows[ATTRIBUTES] & CODEC_MASK)
        body = memoryview(data)[HEADER_BYTES:]
        try:
            # Bounded again, though the leader did at the append: a follower takes what it gets.
            self.payload = body if codec is Codec.NONE else decompress(codec, body, size_max)
        except MalformedRecords as error:
            raise CorruptRecords(str(error)) from error

    @property
    def last_offset(self) -> Offset:
        return Offset(self.rows[batches.LAST_OFFSET])

    def newest(self, *, from_offset: Offset) -> TimestampAndOffset | None:
        """The first record from `from_offset` on with the largest timestamp among those."""
        rows, size = self.rows, len(self.payload)
        first = self._seek(from_offset=from_offset, timestamp_ms=None)
        if first is None:
            return None
        index, position, offset_delta, _ = first
        if rows[ATTRIBUTES] & LOG_APPEND_TIME_BIT:
            return self._make_result(offset_delta, rows[MAX_TIMESTAMP])
        reason, _, newest, newest_at, _ = records.inspect(
            self.payload, position, size, rows[RECORD_COUNT] - index, contiguous=False
        )
        if reason:
            raise CorruptRecords(f"{Reason(reason).name} in a batch at {self.last_offset}")
        return self._make_result(newest_at, rows[BASE_TIMESTAMP] + newest)

    def first_at(self, timestamp_ms: int, *, from_offset: Offset) -> TimestampAndOffset | None:
        """The first record from `from_offset` on with at least that timestamp."""
        rows = self.rows
        if rows[ATTRIBUTES] & LOG_APPEND_TIME_BIT:
            if rows[MAX_TIMESTAMP] < timestamp_ms:
                return None
            first = self._seek(from_offset=from_offset, timestamp_ms=None)
            return None if first is None else self._make_result(first[2], rows[MAX_TIMESTAMP])
        first = self._seek(from_offset=from_offset, timestamp_ms=timestamp_ms)
        return (
            None if first is None else self._make_result(first[2], rows[BASE_TIMESTAMP] + first[3])
        )

    def _seek(
        self, *, from_offset: Offset, timestamp_ms: int | None
    ) -> tuple[int, int, int, int] | None:
        rows = self.rows
        time_min = _ANY_TIME if timestamp_ms is None else timestamp_ms - rows[BASE_TIMESTAMP]
        try:
            return records.seek(
                self.payload,
                0,
                len(self.payload),
                rows[RECORD_COUNT],
                offset_min=from_offset - rows[BASE_OFFSET],
                time_min=min(max(time_min, _ANY_TIME), -_ANY_TIME - 1),
            )
        except MalformedRecords as error:
            raise CorruptRecords(str(error)) from error

    def _make_result(self, offset_delta: int, timestamp_ms: int) -> TimestampAndOffset:
        rows = self.rows
        return TimestampAndOffset(
            Offset(rows[BASE_OFFSET] + offset_delta),
            TimestampMs(timestamp_ms),
            LeaderEpoch(rows[LEADER_EPOCH]),
        )
