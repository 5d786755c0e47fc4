"""Producer state of one log: fed from batches, kept in snapshots, rebuilt by replay."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from millstream.kernels import records
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    HEADER_BYTES,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    ROW_FIELDS,
    SIZE,
)
from millstream.kernels.errors import MalformedRecords
from millstream.kernels.records import KEY_BYTES, KEY_START, VALUE_BYTES
from millstream.model.errors import CorruptRecords, InvalidRecords
from millstream.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from millstream.runtime.disk import Disk, ReadableBuffer, read_whole
from millstream.storage import names
from millstream.storage.producers.machine import (
    Duplicate,
    Marker,
    Origin,
    ProducerBatch,
    ProducerStates,
)
from millstream.storage.producers.recall import recall
from millstream.storage.producers.snapshot import CorruptSnapshot, decode, encode
from millstream.storage.segments.batch_attributes import CONTROL_BIT
from millstream.storage.segments.segment import Segment, plausible_rows
from millstream.storage.segments.segment_list import Segments
from millstream.storage.segments.txn_index import AbortedTransaction

_MARKER_KEY: Final = Struct(">hh")  # version, type
_MARKER_VALUE: Final = Struct(">hi")  # version, coordinator epoch
_ABORT: Final = 0
_COMMIT: Final = 1


class ProducerLog:
    """The producers of one log and the files that remember them."""

    __slots__ = (
        "_directory",
        "_disk",
        "_recalled",
        "_snapshots",
        "_unsynced",
        "has_unsynced_names",
        "states",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.states = ProducerStates()
        self.has_unsynced_names = False
        """A snapshot was written or removed; until the directory is synced a crash may undo it."""
        self._snapshots: list[Offset] = []
        """Offsets of the snapshot files, ascending."""
        self._unsynced: set[Offset] = set()
        """Those of them that no flush has synced: a power loss may tear them."""
        self._recalled: set[ProducerId] | None = None
        """Producers whose batches were read from the log: once is enough for each."""

    def move_to(self, directory: str) -> None:
        """The log's files are in another directory now, snapshots and all."""
        self._directory = directory
        self.has_unsynced_names = True

    # -- appends ---------------------------------------------------------------------------

    def check(self, data: ReadableBuffer, rows: "array[int]", origin: Origin) -> Duplicate | None:
        """Whether a leader may append the batches; see `ProducerStates.check`."""
        if len(rows) == ROW_FIELDS and not rows[ATTRIBUTES] & CONTROL_BIT:
            if rows[PRODUCER_ID] < 0:
                return None
            entry = self.states.get(ProducerId(rows[PRODUCER_ID]))
            if entry is not None and entry.is_next(rows, 0):
                return None
            return self.states.check(ProducerBatch.of_row(rows, 0), origin)
        for marker in markers(data, rows):
            self.states.check_marker(marker, transaction_version=0)
        for row in range(0, len(rows), ROW_FIELDS):
            if rows[row + PRODUCER_ID] >= 0 and origin is Origin.CLIENT:
                # As in Kafka. Two batches of one producer could be half new and half a retry.
                raise InvalidRecords("an idempotent producer sends one batch at a time")
        return None

    def check_again(
        self, rows: "array[int]", origin: Origin, segments: Segments, *, log_start: Offset
    ) -> Duplicate | None:
        """`check` for a batch that was out of order, with what the log knows of its producer."""
        batch = ProducerBatch.of_row(rows, 0)
        entry = self.states.get(batch.producer_id)
        recalled = self._recalled = self._recalled or set()
        if entry is not None and batch.producer_id not in recalled:
            recalled.add(batch.producer_id)
            if len(recalled) > len(self.states):  # others were forgotten meanwhile
                recalled.intersection_update(self.states.by_id)
            recall(segments, entry, log_start=log_start)
        return self.states.check(batch, origin)

    def apply(self, data: ReadableBuffer, rows: "array[int]") -> list[AbortedTransaction]:
        """Follow batches that are in the log; the transactions that they abort."""
        aborted: list[AbortedTransaction] = []
        producers = self.states.by_id
        for row in range(0, len(rows), ROW_FIELDS):
            producer_id = rows[row + PRODUCER_ID]
            if producer_id < 0:
                continue
            entry = producers.get(ProducerId(producer_id))
            if entry is not None and entry.take(rows, row):
                continue
            if not rows[row + ATTRIBUTES] & CONTROL_BIT:
                if rows[row + RECORD_COUNT] or rows[row + LAST_OFFSET] >= rows[row + BASE_OFFSET]:
                    self.states.apply(ProducerBatch.of_row(rows, row))
                continue
            marker = read_marker(data, rows, row)
            done = self.states.apply_marker(marker) if marker else None
            if done is not None and done.is_aborted:
                aborted.append(
                    AbortedTransaction(
                        done.producer_id,
                        done.first_offset,
                        done.last_offset,
                        done.last_stable_offset,
                    )
                )
        return aborted

    # -- snapshots -------------------------------------------------------------------------

    @property
    def snapshot_offsets(self) -> list[Offset]:
        return list(self._snapshots)

    def adopt_snapshots(self, offsets: list[Offset], *, recovery_point: Offset | None) -> None:
        """Take note of the snapshot files that exist; None after a clean stop: all are on disk.

        Else they may be in the page cache only, from the one that the flush up to the recovery
        point began with: the recovery point may have moved with the log's start.
        """
        self._snapshots = sorted(offsets)
        if recovery_point is not None:
            first = max(0, bisect_right(self._snapshots, recovery_point) - 1)
            self._unsynced.update(self._snapshots[first:])

    def unsynced_snapshots(self, end_offset: Offset) -> list[Offset]:
        """Those a flush up to `end_offset` has to sync.

        Compaction may thin out what came before one: then only it knows those producers.
        """
        return [offset for offset in self._unsynced if offset <= end_offset]

    def note_synced(self, offsets: Iterable[Offset]) -> None:
        self._unsynced.difference_update(offsets)

    def save_snapshot(self, offset: Offset) -> None:
        """Remember the state that holds before `offset`.

        Not synced here: a snapshot carries a CRC, and one that a crash tore is ignored for an
        older one and a longer replay. The flush that covers its segment syncs it.
        """
        if self._snapshots and self._snapshots[-1] >= offset:
            return
        path = self.snapshot_path(offset)
        with self._disk.open_write(path) as file:
            file.truncate(0)
            file.write_at(0, encode(self.states))
        self._snapshots.append(offset)
        self._unsynced.add(offset)
        self.has_unsynced_names = True

    def delete_all_snapshots(self) -> None:
        self._delete(list(self._snapshots))

    def delete_snapshots_at(self, offsets: Iterable[Offset]) -> None:
        """Remove those of segments that compaction merged into others."""
        self._delete([offset for offset in offsets if offset in self._snapshots])

    def delete_snapshots_below(self, segments: Segments) -> None:
        """Remove those of segments that are gone from the front."""
        first = next(iter(segments)).base_offset
        self._delete([offset for offset in self._snapshots if offset < first])

    def remove_stray_snapshots(self, segments: Segments, log_end: Offset) -> None:
        """Keep those at segment starts and the newest: one of a crash may lie in between."""
        wanted = {segment.base_offset for segment in segments}
        below_end = [offset for offset in self._snapshots if offset <= log_end]
        wanted.update(below_end[-1:])
        self._delete([offset for offset in self._snapshots if offset not in wanted])

    def rebuild(self, segments: Segments, log_start: Offset, log_end: Offset) -> None:
        """State as of `log_end`: newest usable snapshot at or below it, then replay."""
        self._delete([offset for offset in self._snapshots if offset > log_end])
        self._recalled = None
        start = self._load_newest(log_start)
        if start >= log_end:
            return
        for segment in segments.from_number(segments.number_at(start)):
            if segment.base_offset >= log_end:
                break
            location = segment.find_offset(start)
            if location is None:
                continue
            self._replay(segment, location.position, start)

    def _replay(self, segment: Segment, position: int, start: Offset) -> None:
        expected = segment.base_offset
        for step in segment.walk(position):
            rows = plausible_rows(step.rows, base_offset=segment.base_offset, expected=expected)
            if len(rows) < len(step.rows):
                raise CorruptRecords(f"{segment.log.path}: offsets go back after {expected - 1}")
            expected = Offset(step.last_offset + 1)
            self.apply(step.buffer, _rows_from(rows, start))

    def _load_newest(self, log_start: Offset) -> Offset:
        for offset in reversed(list(self._snapshots)):
            if offset < log_start:
                break
            try:
                raw = read_whole(self._disk, self.snapshot_path(offset))
                self.states = decode(raw, end_offset=offset)
            except (CorruptSnapshot, FileNotFoundError):
                self._delete([offset])
                continue
            return offset
        self.states.clear()
        return log_start

    def _delete(self, offsets: list[Offset]) -> None:
        for offset in offsets:
            self.has_unsynced_names = True
            self._snapshots.remove(offset)
            self._unsynced.discard(offset)
            try:
                self._disk.remove(self.snapshot_path(offset))
            except FileNotFoundError:
                continue

    def snapshot_path(self, offset: Offset) -> str:
        return names.segment_path(self._directory, offset, names.SNAPSHOT)


def _rows_from(rows: "array[int]", start: Offset) -> "array[int]":
    """The rows of batches that end at or after `start`."""
    for row in range(0, len(rows), ROW_FIELDS):
        if rows[row + LAST_OFFSET] >= start:
            return rows[row:]
    return rows[:0]


def read_marker(data: ReadableBuffer, rows: "array[int]", row: int) -> Marker | None:
    """The end-of-transaction marker in a control batch; None for other control records.

    Raises InvalidRecords when the batch cannot be one.
    """
    start = rows[row + POSITION] + HEADER_BYTES
    stop = rows[row + POSITION] + rows[row + SIZE]
    if not rows[row + RECORD_COUNT]:
        return None  # compaction emptied it
    try:
        spans = records.locate(data, start, stop, rows[row + RECORD_COUNT])
        key_at, key_bytes = spans[KEY_START], spans[KEY_BYTES]
        if key_bytes < _MARKER_KEY.size:
            raise InvalidRecords("a control record without a key")
        _, kind = _MARKER_KEY.unpack_from(data, key_at)
        if kind not in (_ABORT, _COMMIT):
            return None
        if spans[VALUE_BYTES] < _MARKER_VALUE.size:
            raise InvalidRecords("an end-of-transaction marker without a value")
        value_at = _value_start(data, key_at + key_bytes)
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(data, value_at)
    except MalformedRecords as error:
        raise InvalidRecords(str(error)) from error
    return Marker(
        ProducerId(rows[row + PRODUCER_ID]),
        ProducerEpoch(rows[row + PRODUCER_EPOCH]),
        coordinator_epoch,
        kind == _COMMIT,
        Offset(rows[row + BASE_OFFSET]),
        TimestampMs(rows[row + MAX_TIMESTAMP]),
    )


def _value_start(data: ReadableBuffer, length_at: int) -> int:
    """The position after the varint of the value's length; `locate` checked it."""
    while data[length_at] & 0x80:
        length_at += 1
    return length_at + 1


def markers(data: ReadableBuffer, rows: "array[int]") -> Iterator[Marker]:
    """All end-of-transaction markers among the batches."""
    for row in range(0, len(rows), ROW_FIELDS):
        if rows[row + ATTRIBUTES] & CONTROL_BIT:
            marker = read_marker(data, rows, row)
            if marker is not None:
                yield marker
