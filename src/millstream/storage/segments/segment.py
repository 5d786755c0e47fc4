"""One segment of a log: a file of record batches and the indexes that lead into it."""

import errno
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from millstream.kernels import batches, slots
from millstream.kernels.batches import (
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    ROW_FIELDS,
)
from millstream.model.errors import CorruptRecords
from millstream.model.ids import NO_LEADER_EPOCH, NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs
from millstream.model.limits import (
    KIB,
    SEGMENT_OFFSET_SPAN_MAX,
    SEGMENT_POSITION_MAX,
)
from millstream.runtime.disk import File, ReadableBuffer, ShortFile
from millstream.storage import names
from millstream.storage.segments.file_walk import FileWalk
from millstream.storage.segments.files import OpenFiles
from millstream.storage.segments.header_check import CheckedRange
from millstream.storage.segments.sparse_index import (
    IndexCache,
    IndexDamaged,
    OffsetIndex,
    SparseIndex,
    TimeIndex,
    TimeIndexEntry,
    unless_full,
)
from millstream.storage.segments.txn_index import TransactionIndex

SEARCH_BYTES: Final = 8 * KIB
"""One read of a search: an index interval and the header that follows it."""

Finder = Callable[[bytes, int, int, int], tuple[int, int]]


_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
T = TypeVar("T")
_HEADER_FIELDS: Final = Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta
_MAGIC: Final = 2
_LENGTH_OVERHEAD: Final = 12
"""The length field does not count itself and the base offset before it."""


class BatchLocation(NamedTuple):
    """Position and size of a batch in its segment's file."""

    position: int
    size_bytes: int


def plausible_rows(
    rows: "array[int]",
    *,
    base_offset: Offset,
    expected: Offset,
    epoch: LeaderEpoch | None = None,
) -> "array[int]":
    """The leading rows that continue a segment from `expected` on: offsets must grow, and where
    `epoch` is given leader epochs must not fall below it or from one row to the next.

    A batch's CRC covers neither, so one flipped bit can put it anywhere.
    """
    next_offset, latest = int(expected), epoch
    for row in range(0, len(rows), ROW_FIELDS):
        is_next = next_offset <= rows[row + BASE_OFFSET]
        is_inside = rows[row + LAST_OFFSET] - base_offset <= SEGMENT_OFFSET_SPAN_MAX
        if not is_next or not is_inside:
            return rows[:row]
        next_offset = rows[row + LAST_OFFSET] + 1
        if latest is not None:
            if rows[row + LEADER_EPOCH] < latest:
                return rows[:row]
            latest = LeaderEpoch(rows[row + LEADER_EPOCH])
    return rows


class SegmentContext(NamedTuple):
    """What every segment of a log shares."""

    directory: str
    files: OpenFiles
    cache: IndexCache
    index_interval_bytes: int


class Segment:
    """Batches from `base_offset` on. Only the active segment of a log is appended to."""

    __slots__ = (
        "_bytes_since_index",
        "_checked",
        "_context",
        "base_offset",
        "first_batch_timestamp",
        "log",
        "max_timestamp",
        "offset_index",
        "size_bytes",
        "state",
        "time_index",
        "txn_index",
    )

    def __init__(self, context: SegmentContext, base_offset: Offset, *, state: str = "") -> None:
        self._context = context
        self.base_offset = base_offset
        self.state = state
        disk, cache = context.files.disk, context.cache
        self.log = context.files.file(self.path(names.LOG))
        self.offset_index = OffsetIndex(
            disk, self.path(names.OFFSET_INDEX), base_offset, cache=cache
        )
        self.time_index = TimeIndex(disk, self.path(names.TIME_INDEX), base_offset, cache=cache)
        self.txn_index = TransactionIndex(disk, self.path(names.TXN_INDEX))
        self.size_bytes = 0
        self.max_timestamp: TimeIndexEntry | None = None
        """Largest timestamp so far; None until known (closed segments read it from their index)."""
        self.first_batch_timestamp: TimestampMs | None = None
        self._bytes_since_index = 0
        self._checked = CheckedRange()

    @classmethod
    def create(cls, context: SegmentContext, base_offset: Offset, *, state: str = "") -> "Segment":
        """A new, empty, active segment."""
        segment = cls(context, base_offset, state=state)
        segment.log = context.files.create(segment.path(names.LOG))
        segment.start_indexes()
        return segment

    def path(self, suffix: str) -> str:
        """Path of one of the segment's files."""
        return names.segment_path(self._context.directory, self.base_offset, suffix) + self.state

    def start_indexes(self) -> None:
        """Begin with empty indexes, for a new segment or to rebuild them."""
        self.offset_index.start_empty()
        self.time_index.start_empty()
        self.max_timestamp = TimeIndexEntry(NO_TIMESTAMP, self.base_offset)
        self.first_batch_timestamp = None
        self._bytes_since_index = 0

    # -- writing ---------------------------------------------------------------------------

    def append(self, data: ReadableBuffer, rows: "array[int]") -> None:
        """Write walked batches at the end. On an error the file is as before, or unusable."""
        self.append_all((data,), rows, size_bytes=len(data))

    def append_all(
        self, buffers: Sequence[ReadableBuffer], rows: "array[int]", *, size_bytes: int
    ) -> None:
        """The same for batches in several buffers; positions in `rows` count over all of them."""
        position = self.size_bytes
        if self.max_timestamp is None:
            self._load_max_timestamp()  # may find damage: not when the batches are there already
        file = self.log.open()
        size = file.size()
        if size < position:
            # Beyond the end of a file that was cut a write would leave zeros in between.
            raise ShortFile(self.log.path, size=size, expected=position)
        try:
            if len(buffers) == 1:
                file.write_at(position, buffers[0])
            else:
                file.write_all_at(position, buffers)
        except OSError:
            self._cut_partial_write(file, position)
            raise
        self._checked.note_write(file)
        if not position:
            self.first_batch_timestamp = TimestampMs(rows[MAX_TIMESTAMP])
        self.index(rows, position - rows[POSITION])
        self.size_bytes = position + size_bytes

    def index(self, rows: "array[int]", shift: int) -> None:
        """Note walked batches in the indexes; `shift` turns a row's position into the file's."""
        newest = self.max_timestamp or self._load_max_timestamp()
        self._bytes_since_index, newest_ms, newest_offset = slots.index_steps(
            rows,
            self.offset_index.entries,
            self.time_index.entries,
            shift=shift,
            base_offset=self.base_offset,
            interval_bytes=self._context.index_interval_bytes,
            since=(self._bytes_since_index, *newest),
        )
        if newest_ms != newest.timestamp_ms:
            self.max_timestamp = TimeIndexEntry(TimestampMs(newest_ms), Offset(newest_offset))

    def has_room_for(self, *, last_offset: Offset, size_bytes: int) -> bool:
        """Whether the batches can be addressed by this segment's 32-bit indexes."""
        return (
            last_offset - self.base_offset <= SEGMENT_OFFSET_SPAN_MAX
            and self.size_bytes + size_bytes <= SEGMENT_POSITION_MAX
        )

    def stop_writing(self) -> None:
        """The segment is closed: its indexes get their last entries and go to their files."""
        if self.max_timestamp is not None:
            self.time_index.append_if_later(self.max_timestamp)
        self.offset_index.stop_writing(sync=False)
        self.time_index.stop_writing(sync=False)

    def stop_recovering(self) -> None:
        """As `stop_writing`, but a full disk must not keep a log from being read: without room the
        index files are removed and built again when needed. The list of aborted transactions would
        not be built again, so OSError when there is no room for that.
        """
        if self.max_timestamp is not None:
            self.time_index.append_if_later(self.max_timestamp)
        self.txn_index.save()
        self.offset_index.stop_writing_if_room()
        self.time_index.stop_writing_if_room()

    def reopen_for_writing(self) -> None:
        """Make a closed segment the active one again."""
        try:
            self.offset_index.start_writing()
            self.time_index.start_writing()
        except (IndexDamaged, FileNotFoundError):
            self.rebuild_indexes(is_active=True)

    def save_indexes(self) -> None:
        """Bring the index files up to date while the segment stays active."""
        if self.max_timestamp is not None:
            self.time_index.append_if_later(self.max_timestamp)
        self.offset_index.save(sync=False)
        self.time_index.save(sync=False)
        self.txn_index.save()

    @property
    def has_unsynced_indexes(self) -> bool:
        """Whether an index file was written without a sync since the segment was opened."""
        return any(one.is_unsynced for one in (self.offset_index, self.time_index, self.txn_index))

    def truncate(self, *, end_offset: Offset, end_position: int) -> None:
        """Cut off everything from `end_offset` on, durably."""
        self.reopen_for_writing()
        file = self.log.open()
        file.truncate(end_position)
        file.sync()
        self._checked.note_write(file)
        self.size_bytes = end_position
        self.offset_index.truncate(end_offset=end_offset, end_position=end_position)
        self.time_index.truncate(end_offset=end_offset)
        self.txn_index.truncate_to(end_offset)
        self._bytes_since_index = 0
        if end_position:
            self.max_timestamp = None
            # Too late to refuse. The next use of the largest timestamp reports the damage.
            with suppress(CorruptRecords):
                self.max_timestamp = self._search_with_rebuild(self._rescan_max_timestamp)
        else:
            self.start_indexes()
        with unless_full():
            self.save_indexes()

    # -- finding ---------------------------------------------------------------------------

    def find_offset(self, offset: Offset) -> BatchLocation | None:
        """The first batch whose last offset is at least `offset`; None when there is none.

        This and the other searches raise CorruptRecords when the log itself is damaged.
        """
        try:
            before, after = self.offset_index.positions_around(offset)
            return self._batch_at(after, offset) or self._search(before, offset)
        except (IndexDamaged, FileNotFoundError):
            return self._with_new_indexes(
                lambda: self._search(self.offset_index.position_at_or_before(offset), offset)
            )

    def end_before(self, position: int) -> Offset:
        """The offset after the last batch that begins before `position`, a batch's own."""
        return (
            self._search_with_rebuild(lambda: self._end_before(position))
            if position
            else self.base_offset
        )

    def _end_before(self, position: int) -> Offset:
        start = self.offset_index.position_at_or_before(Offset(self._offset_at(position) - 1))
        walk = FileWalk(self.log.open(), start=min(start, position), stop=position, check_crc=False)
        end = self.base_offset
        for step in walk:
            end = Offset(step.last_offset + 1)
        if walk.valid_end != position or start >= position:
            raise IndexDamaged(f"{self.offset_index.path}: entry {start} leads past {position}")
        return end

    def end_bound(self, position: int) -> Offset | None:
        """An offset above all batches before `position`, not far above; None if none is known."""
        try:
            entry = self.offset_index.entry_from(position)
        except (IndexDamaged, FileNotFoundError):
            return None
        if entry is None:
            return None
        last_offset, at = entry
        header = self.log.open().read_at(at, batches.HEADER_BYTES)
        if len(header) < batches.HEADER_BYTES:
            return None
        base, last_delta = _INT64.unpack_from(header)[0], _INT32.unpack_from(header, 23)[0]
        return Offset(base) if base + last_delta == last_offset else None

    def check_transactions(self) -> None:
        """Raise CorruptRecords unless the list of aborted transactions is whole."""
        try:
            self.txn_index.check(self.base_offset)
        except IndexDamaged as error:
            raise CorruptRecords(str(error)) from error

    def _offset_at(self, position: int) -> Offset:
        if position >= self.size_bytes:
            return Offset(self.base_offset + SEGMENT_OFFSET_SPAN_MAX)
        header = self.log.open().read_at(position, 8)
        return Offset(int.from_bytes(header, "big", signed=True))

    def find_timestamp(self, timestamp_ms: int, *, from_offset: Offset) -> BatchLocation | None:
        """The first batch from `from_offset` on whose max timestamp is at least the given one."""
        return self._search_with_rebuild(lambda: self._find_timestamp(timestamp_ms, from_offset))

    def _find_timestamp(self, timestamp_ms: int, from_offset: Offset) -> BatchLocation | None:
        entry = self._verify_entry(self.time_index.at_or_before(timestamp_ms - 1))
        offset = max(from_offset, entry.offset if entry else self.base_offset)
        location = self.find_offset(Offset(offset))
        if location is None:
            return None
        return self._scan(batches.find_timestamp, location.position, timestamp_ms)

    def rolling_timestamp(self) -> TimestampMs | None:
        """Timestamp of the first batch, from which the age for `segment.ms` is measured."""
        if self.first_batch_timestamp is None and self.size_bytes:
            header = self.log.open().read_at(0, batches.HEADER_BYTES)
            if len(header) < batches.HEADER_BYTES:
                raise ShortFile(self.log.path)
            self.first_batch_timestamp = TimestampMs(_INT64.unpack_from(header, 35)[0])
        return self.first_batch_timestamp

    def largest_timestamp(self) -> TimeIndexEntry:
        """Largest timestamp in the segment (-1 when none) and the last offset of its batch."""
        return self.max_timestamp or self._load_max_timestamp()

    def newest_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last batch; NO_LEADER_EPOCH when there is none."""
        return self._search_with_rebuild(self._newest_epoch) if self.size_bytes else NO_LEADER_EPOCH

    def _newest_epoch(self) -> LeaderEpoch:
        position = self.offset_index.last_position()
        if position >= self.size_bytes:
            raise IndexDamaged(f"{self.offset_index.path}: position {position} is past the end")
        walk = self.walk(position)
        epoch = NO_LEADER_EPOCH
        for step in walk:
            epoch = LeaderEpoch(step.rows[LEADER_EPOCH - ROW_FIELDS])
        if walk.valid_end != self.size_bytes:
            raise IndexDamaged(f"{self.log.path}: {walk.reason.text} at byte {walk.valid_end}")
        return epoch

    def read(self, location: BatchLocation) -> bytes:
        """The bytes of one batch."""
        data = self.log.open().read_at(location.position, location.size_bytes)
        if len(data) != location.size_bytes:
            raise ShortFile(self.log.path)
        return data

    def check_file(self) -> None:
        """Raise OSError unless the file has a name and all that was written to it.

        An append would not notice: beyond the end of a file that was cut it leaves zeros between,
        and one that was removed takes everything with it when it is closed.
        """
        file = self.log.open()
        size = file.size()
        if size < self.size_bytes:
            raise ShortFile(self.log.path, size=size, expected=self.size_bytes)
        if file.is_removed():
            raise FileNotFoundError(errno.ENOENT, "a file in use was removed", self.log.path)

    def check_range(self, position: int, stop: int, *, offset: Offset) -> None:
        """Raise ShortFile or CorruptRecords unless the batches that begin in [position, stop) can
        be read: before a range is sent straight from the file. See `CheckedRange`.
        """
        self._checked.check(self.log.open(), position, stop, end=self.size_bytes, offset=offset)

    # -- walking ---------------------------------------------------------------------------

    def walk(self, position: int = 0, *, check_crc: bool = False) -> FileWalk:
        """All batches from `position` on, many at a time."""
        return FileWalk(self.log.open(), start=position, stop=self.size_bytes, check_crc=check_crc)

    def rebuild_indexes(self, *, is_active: bool = False) -> None:
        """Write the offset and time index again from the batches; see `reopen_for_writing`.

        Raises CorruptRecords, and does not touch the indexes, when the log is damaged: behind the
        damage they may be the only way to a batch.
        """
        self._check_whole()
        is_active |= self.offset_index.is_writable
        self.start_indexes()
        for step in self.walk():
            self.index(step.rows, step.shift)
        if is_active:
            with unless_full():
                self.save_indexes()
            return
        self.time_index.append_if_later(self.largest_timestamp())
        self.offset_index.replace_file()
        self.time_index.replace_file()

    def _check_whole(self) -> None:
        walk = self.walk()
        expected = self.base_offset
        for step in walk:
            rows = plausible_rows(step.rows, base_offset=self.base_offset, expected=expected)
            if len(rows) < len(step.rows):
                at = step.shift + step.rows[len(rows) + POSITION]
                raise CorruptRecords(f"{self.log.path}: OFFSETS at byte {at}")
            expected = Offset(step.last_offset + 1)
        if walk.valid_end != self.size_bytes:
            size = self.log.open().size()
            if size < self.size_bytes:
                raise ShortFile(self.log.path, size=size, expected=self.size_bytes)
            raise CorruptRecords(f"{self.log.path}: {walk.reason.text} at byte {walk.valid_end}")

    def _search_with_rebuild(self, search: Callable[[], T]) -> T:
        """What `search` finds; repeated with new indexes if these turn out to be damaged."""
        try:
            return search()
        except (IndexDamaged, FileNotFoundError):
            return self._with_new_indexes(search)

    def _with_new_indexes(self, search: Callable[[], T]) -> T:
        self.rebuild_indexes()
        try:
            return search()
        except IndexDamaged as error:
            # The indexes were just built from the log, so it is the log that is damaged.
            raise CorruptRecords(str(error)) from error

    # -- leaving ---------------------------------------------------------------------------

    def file_paths(self) -> list[str]:
        """Every file the segment may have; some may not exist."""
        return [self.path(suffix) for suffix in names.SEGMENT_SUFFIXES]

    def change_state(self, state: str) -> list[str]:
        """Rename all files to another state (e.g. '.deleted'), the log last; the new paths."""
        new = self.rename_indexes(state)
        target = names.segment_path(self._context.directory, self.base_offset, names.LOG) + state
        self._context.files.disk.rename(self.log.path, target)
        self.adopt_state(state)
        return [*new, target]

    def rename_indexes(self, state: str) -> list[str]:
        """The first half of `change_state`, for a caller that syncs between the halves."""
        disk, directory = self._context.files.disk, self._context.directory
        indexes: list[SparseIndex | TransactionIndex]
        indexes = [self.offset_index, self.time_index, self.txn_index]
        new = []
        for index, suffix in zip(indexes, names.SEGMENT_SUFFIXES[1:], strict=True):
            target = names.segment_path(directory, self.base_offset, suffix) + state
            if disk.exists(index.path):
                if index.path != target:
                    disk.rename(index.path, target)
                new.append(target)
            index.path = target
        return new

    def adopt_state(self, state: str) -> None:
        """Follow a renaming that was done."""
        self.state = state
        self.log.path = self.path(names.LOG)
        self.offset_index.path = self.path(names.OFFSET_INDEX)
        self.time_index.path = self.path(names.TIME_INDEX)
        self.txn_index.path = self.path(names.TXN_INDEX)

    def forget(self) -> None:
        """Release memory and descriptors; the files stay."""
        self.offset_index.forget()
        self.time_index.forget()
        self.log.forget()

    # -- inside ----------------------------------------------------------------------------

    def _cut_partial_write(self, file: File, position: int) -> None:
        # A part may be written: cut it off, or the next append would leave it in the middle.
        try:
            file.truncate(position)
            self._checked.note_write(file)
        except OSError as error:
            detail = "a failed append could not be undone"
            raise OSError(errno.EIO, detail, self.log.path) from error

    def _rescan_max_timestamp(self) -> TimeIndexEntry:
        """Largest timestamp of what a truncation left: the index knows it only in steps."""
        last = self._verify_entry(self.time_index.last())
        newest = last or TimeIndexEntry(NO_TIMESTAMP, self.base_offset)
        location = self.find_offset(newest.offset)
        for step in self.walk(location.position if location else 0):
            rows = plausible_rows(
                step.rows, base_offset=self.base_offset, expected=self.base_offset
            )
            for row in range(0, len(rows), ROW_FIELDS):
                if rows[row + MAX_TIMESTAMP] > newest.timestamp_ms and rows[row + RECORD_COUNT]:
                    stamp = TimestampMs(rows[row + MAX_TIMESTAMP])
                    newest = TimeIndexEntry(stamp, Offset(rows[row + LAST_OFFSET]))
        return newest

    def _load_max_timestamp(self) -> TimeIndexEntry:
        last = self._search_with_rebuild(lambda: self._verify_entry(self.time_index.last()))
        self.max_timestamp = last or TimeIndexEntry(NO_TIMESTAMP, self.base_offset)
        return self.max_timestamp

    def _verify_entry(self, entry: TimeIndexEntry | None) -> TimeIndexEntry | None:
        """The entry if its batch confirms it: retention and searches depend on a single one."""
        if entry is None:
            return None
        location = self.find_offset(entry.offset)
        header = (
            self.log.open().read_at(location.position, batches.HEADER_BYTES) if location else b""
        )
        if len(header) == batches.HEADER_BYTES:
            base, stamp = _INT64.unpack_from(header)[0], _INT64.unpack_from(header, 35)[0]
            if base <= entry.offset and stamp == entry.timestamp_ms:
                return entry
        raise IndexDamaged(f"{self.time_index.path}: no batch matches {entry}")

    def _batch_at(self, position: int, offset: Offset) -> BatchLocation | None:
        """The batch at `position` if it holds the offset: batches of more than an index interval
        have entries of their own, and then this is the whole search.
        """
        if not 0 <= position <= self.size_bytes - batches.HEADER_BYTES:
            return None
        header = self.log.open().read_at(position, batches.HEADER_BYTES)
        if len(header) < batches.HEADER_BYTES:
            raise IndexDamaged(f"{self.log.path}: the file ends in the batch at {position}")
        base, length, magic, delta = _HEADER_FIELDS.unpack_from(header)
        size = length + _LENGTH_OVERHEAD
        is_whole = batches.HEADER_BYTES <= size <= self.size_bytes - position
        if magic != _MAGIC or not is_whole or base < self.base_offset:
            raise IndexDamaged(f"{self.offset_index.path}: no batch at position {position}")
        return BatchLocation(position, size) if base <= offset <= base + delta else None

    def _search(self, position: int, offset: Offset) -> BatchLocation | None:
        if position and not 0 < position < self.size_bytes:
            raise IndexDamaged(f"{self.offset_index.path}: position {position} is past the end")
        location = self._scan(batches.find_offset, position, offset)
        if (
            position
            and location
            and location.position == position
            and self._offset_at(position) > offset
        ):
            # A damaged entry leads past the batch that was meant.
            raise IndexDamaged(f"{self.offset_index.path}: entry leads past offset {offset}")
        return location

    def _scan(self, find: Finder, position: int, wanted: int) -> BatchLocation | None:
        file = self.log.open()
        while position < self.size_bytes:
            size = min(SEARCH_BYTES, self.size_bytes - position)
            chunk = file.read_at(position, size)
            at, found = find(chunk, 0, len(chunk), wanted)
            if 0 <= found <= self.size_bytes - position - at:
                return BatchLocation(position + at, found)
            # Without a step forward the file is shorter than it was.
            if found != -1 or at == 0 or at > self.size_bytes - position:
                raise IndexDamaged(f"{self.log.path}: no batch at position {position + at}")
            position += at
        return None
