"""Rows of columns to partitions; described by `partitioner.pyi`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from millstream.kernels.column_types import BinaryColumn, RecordColumns, flat_view
from millstream.kernels.partition_types import RECORD_COST, Int32Column

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["assign", "group", "murmur2", "stick"]

_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_ROWS_MAX: Final = 2**60


def murmur2(key: Buffer) -> int:
    value = _murmur2(bytes(memoryview(key).cast("B")))
    return value - 2**32 if value > _POSITIVE else value


def _murmur2(data: bytes) -> int:
    size = len(data)
    value = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        block = int.from_bytes(data[at : at + 4], "little") * _MIX & _MASK
        block = (block ^ block >> 24) * _MIX & _MASK
        value = value * _MIX & _MASK ^ block
    if whole < size:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MIX & _MASK
    value = (value ^ value >> 13) * _MIX & _MASK
    return value ^ value >> 15


class _Numbers:
    """An int32 column; None for a null."""

    def __init__(self, column: Int32Column, rows: int, what: str) -> None:
        first = column.first
        if first not in range(2**31):
            raise ValueError(f"{what} cannot begin at {first}")
        view = flat_view(column.values, 4 * (first + rows), what)
        self._values = view[4 * first : 4 * (first + rows)].cast("i")
        self._first = first
        self._validity = None
        if column.validity is not None:
            self._validity = flat_view(column.validity, (first + rows + 7) // 8, what)

    def at(self, row: int) -> int | None:
        bit = self._first + row
        if self._validity is not None and not self._validity[bit >> 3] >> (bit & 7) & 1:
            return None
        return self._values[row]


class _Values:
    """A binary column, or nulls where there is none."""

    def __init__(self, column: BinaryColumn | None, rows: int, what: str) -> None:
        self._offsets = None
        if column is None:
            return
        first = column.first
        if first not in range(2**31):
            raise ValueError(f"{what} cannot begin at {first}")
        view = flat_view(column.offsets, 4 * (first + rows + 1), what)
        self._offsets = view[4 * first : 4 * (first + rows + 1)].cast("i")
        self._data = flat_view(column.data, 0, what)
        self._first = first
        self._validity = None
        if column.validity is not None:
            self._validity = flat_view(column.validity, (first + rows + 7) // 8, what)

    def at(self, row: int) -> memoryview | None:
        if self._offsets is None:
            return None
        bit = self._first + row
        if self._validity is not None and not self._validity[bit >> 3] >> (bit & 7) & 1:
            return None
        begin, end = self._offsets[row], self._offsets[row + 1]
        if not 0 <= begin <= end <= len(self._data):
            raise ValueError(f"key or value offsets of row {row} are wrong")
        return self._data[begin:end]

    def bytes_at(self, row: int) -> int:
        value = self.at(row)
        return 0 if value is None else len(value)


def assign(
    rows: int,
    counts: Buffer,
    *,
    topics: Buffer | None = None,
    explicit: Int32Column | None = None,
    keys: BinaryColumn | None = None,
) -> tuple[bytearray, int, int]:
    _check_rows(rows)
    sizes, bases = _topics(counts)
    which = None if topics is None else flat_view(topics, 4 * rows, "topics")[: 4 * rows].cast("i")
    wanted = None if explicit is None else _Numbers(explicit, rows, "partitions")
    by_key = _Values(keys, rows, "keys")
    targets = array("i", bytes(4 * rows))
    without = 0
    for row in range(rows):
        topic = 0 if which is None else which[row]
        if not 0 <= topic < len(sizes):
            raise ValueError(f"row {row} is of topic {topic} of {len(sizes)}")
        partition = None if wanted is None else wanted.at(row)
        if partition is None:
            key = by_key.at(row)
            if key is None:
                targets[row] = -1 - topic
                without += 1
                continue
            partition = (_murmur2(bytes(key)) & _POSITIVE) % sizes[topic]
        elif not 0 <= partition < sizes[topic]:
            return bytearray(targets.tobytes()), without, row
        targets[row] = bases[topic] + partition
    return bytearray(targets.tobytes()), without, -1


def _topics(counts: Buffer) -> tuple[list[int], list[int]]:
    """Partitions of each topic, and the target of its first one."""
    view = flat_view(counts, 4, "counts")
    sizes = view[: len(view) // 4 * 4].cast("i").tolist()
    bases, total = [], 0
    for size in sizes:
        if size < 1:
            raise ValueError(f"a topic of {size} partitions")
        bases.append(total)
        total += size
    if total > _POSITIVE:
        raise ValueError(f"{total} partitions are too many")
    return sizes, bases


def _check_rows(rows: int) -> None:
    if rows not in range(_ROWS_MAX):
        raise ValueError(f"columns cannot have {rows} rows")


def stick(
    targets: bytearray,
    columns: RecordColumns,
    *,
    topic: int,
    target: int,
    start: int,
    bytes_max: int,
) -> tuple[int, int]:
    rows = columns.rows
    _check_rows(rows)
    if not 0 <= start <= rows or not 0 <= target <= _POSITIVE or not 0 <= topic <= _POSITIVE:
        raise ValueError(f"row {start} of {rows}, target {target}, topic {topic}")
    whole = flat_view(targets, 4 * rows, "targets")
    if whole.readonly:
        raise ValueError("targets cannot be written")
    with whole[: 4 * rows].cast("i") as view:
        keys = _Values(columns.keys, rows, "keys")
        values = _Values(columns.values, rows, "values")
        used = 0
        while start < rows and used < bytes_max:
            if view[start] == -1 - topic:
                used += keys.bytes_at(start) + values.bytes_at(start) + RECORD_COST
                view[start] = target
            start += 1
    return start, used


def group(targets: Buffer, rows: int, target_count: int) -> tuple[bytearray, array[int]]:
    _check_rows(rows)
    if not 0 <= target_count <= _POSITIVE:
        raise ValueError(f"{target_count} targets")
    view = flat_view(targets, 4 * rows, "targets")[: 4 * rows].cast("i")
    members: list[list[int]] = [[] for _ in range(target_count)]
    for row, target in enumerate(view):
        if not 0 <= target < target_count:
            raise ValueError(f"row {row} has target {target} of {target_count}")
        members[target].append(row)
    bounds, selection = array("q", [0]), array("q")
    for one in members:
        selection.extend(one)
        bounds.append(len(selection))
    return bytearray(selection.tobytes()), bounds
