"""Reads a partition's batches and records from its files, to show them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from millstream.kernels import batches as rows_of
from millstream.kernels import columns
from millstream.kernels.compression import Codec
from millstream.kernels.errors import MalformedRecords
from millstream.model.ids import Offset
from millstream.runtime.disk import Disk
from millstream.storage import names
from millstream.storage.scan.report import describe_damage
from millstream.storage.segments.batch_attributes import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)
from millstream.storage.segments.file_walk import FileWalk, WalkStep

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DamagedBatch(Exception):
    """Bytes in a segment that are not a complete, valid batch."""


class StoredRecord(NamedTuple):
    """One record."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes | None, bytes | None]]


class StoredBatch(NamedTuple):
    """One batch: the header fields that the kernel returned, and its bytes."""

    path: str
    position: int
    row: tuple[int, ...]
    data: bytes

    @property
    def last_offset(self) -> int:
        return self.row[rows_of.LAST_OFFSET]

    @property
    def is_control(self) -> bool:
        return bool(self.row[rows_of.ATTRIBUTES] & CONTROL_BIT)

    def describe(self) -> str:
        """All header fields of the batch, in one line."""
        row = self.row
        attributes = row[rows_of.ATTRIBUTES]
        line = (
            f"batch [{row[rows_of.BASE_OFFSET]}, {self.last_offset + 1}) "
            f"position {self.position} size {row[rows_of.SIZE]} "
            f"records {row[rows_of.RECORD_COUNT]} epoch {row[rows_of.LEADER_EPOCH]} "
            f"codec {Codec(attributes & CODEC_MASK).name.lower()} "
            f"time {row[rows_of.BASE_TIMESTAMP]}..{row[rows_of.MAX_TIMESTAMP]}"
        )
        if row[rows_of.PRODUCER_ID] >= 0:
            line += (
                f" producer {row[rows_of.PRODUCER_ID]}/{row[rows_of.PRODUCER_EPOCH]} "
                f"sequence {row[rows_of.BASE_SEQUENCE]}"
            )
        flags = {
            CONTROL_BIT: "control",
            TRANSACTIONAL_BIT: "transactional",
            LOG_APPEND_TIME_BIT: "append-time",
        }
        return " ".join([line, *(name for bit, name in flags.items() if attributes & bit)])

    def records(self) -> Iterator[StoredRecord]:
        """The records of the batch; raises DamagedBatch."""
        try:
            decoded = columns.decode(self.data, 0, len(self.data))
        except MalformedRecords as error:
            damage = describe_damage(error.reason, self.position)
            raise DamagedBatch(f"{self.path}: {damage}") from error
        table = decoded.columns
        offsets, stamps = _numbers(decoded.offsets, "q"), _numbers(table.timestamps, "q")
        keys, values = _cells(table.keys, table.rows), _cells(table.values, table.rows)
        headers = _headers(table.headers, table.rows)
        for row in range(table.rows):
            yield StoredRecord(offsets[row], stamps[row], keys[row], values[row], headers[row])


def stored_batches(
    disk: Disk, directory: str, *, from_offset: int | None = None
) -> Iterator[StoredBatch]:
    """Batches in order, from the one that contains `from_offset`; raises DamagedBatch.

    A batch's CRC is checked before it is yielded.
    """
    first = from_offset or 0
    bases = _bases(disk, directory)
    earlier = [base for base in bases if base <= first]
    for base in bases[max(0, len(earlier) - 1) :]:
        path = names.segment_path(directory, base, names.LOG)
        with disk.open_read(path) as file:
            size = file.size()
            walk = FileWalk(file, start=0, stop=size, check_crc=True)
            for step in walk:
                for batch in _batches_of(path, step):
                    if batch.last_offset >= first:
                        yield batch
            if walk.valid_end != size:
                raise DamagedBatch(f"{path}: {describe_damage(walk.reason, walk.valid_end)}")


def end_offset(disk: Disk, directory: str) -> int:
    """Where the log ends, by its newest segment; raises DamagedBatch."""
    newest = _bases(disk, directory)[-1]
    end = int(newest)
    for batch in stored_batches(disk, directory, from_offset=newest):
        end = batch.last_offset + 1
    return end


def _bases(disk: Disk, directory: str) -> list[Offset]:
    parsed = [names.parse_segment_file(name) for name in disk.list_directory(directory)]
    return sorted(one[0] for one in parsed if one is not None and one[1:] == (names.LOG, ""))


def _batches_of(path: str, step: WalkStep) -> Iterator[StoredBatch]:
    fields = rows_of.ROW_FIELDS
    for at in range(0, len(step.rows), fields):
        row = tuple(step.rows[at : at + fields])
        start = row[rows_of.POSITION]
        data = bytes(step.buffer[start : start + row[rows_of.SIZE]])
        yield StoredBatch(path, start + step.shift, row, data)


def _numbers(buffer: "Buffer", code: Literal["i", "q"]) -> memoryview:
    return memoryview(buffer).cast("B").cast(code)


def _cells(column: columns.BinaryColumn | None, rows: int) -> list[bytes | None]:
    """Arrow's binary column as a list."""
    if column is None:
        return [None] * rows
    ends, data = _numbers(column.offsets, "i"), memoryview(column.data)
    bits = None if column.validity is None else memoryview(column.validity).cast("B")
    found: list[bytes | None] = []
    for row in range(column.first, column.first + rows):
        is_there = bits is None or bits[row >> 3] >> (row & 7) & 1
        found.append(bytes(data[ends[row] : ends[row + 1]]) if is_there else None)
    return found


def _headers(
    column: columns.HeaderColumn | None, rows: int
) -> list[list[tuple[bytes | None, bytes | None]]]:
    if column is None:
        return [[] for _ in range(rows)]
    ends = _numbers(column.list_offsets, "i")
    pairs = list(
        zip(_cells(column.keys, column.rows), _cells(column.values, column.rows), strict=True)
    )
    first = column.first
    return [pairs[ends[first + row] : ends[first + row + 1]] for row in range(rows)]
