"""Rows of columns to partitions; described by `partitioner.pyi`."""

from array import array as py_array

import cython
from cython.cimports.cpython.array import array, clone
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint32_t
from cython.cimports.libc.string import memcpy
from cython.cimports.millstream.kernels._compiled.column_buffers import Held, load32
from cython.cimports.millstream.kernels._compiled.column_source import Spans, binary

from millstream.kernels.column_types import flat_view
from millstream.kernels.partition_types import RECORD_COST

__all__ = ["assign", "group", "murmur2", "stick"]

p_u8 = cython.typedef(cython.pointer[uint8_t])
p_i64 = cython.typedef(cython.pointer[int64_t])

SEED = cython.declare(uint32_t, 0x9747B28C)
MIX = cython.declare(uint32_t, 0x5BD1E995)
POSITIVE = cython.declare(uint32_t, 0x7FFFFFFF)
WRONG = cython.declare(int64_t, -2)
COST = cython.declare(int64_t, RECORD_COST)
_NUMBERS = py_array("q")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _store32(at: p_u8, value: int32_t) -> cython.void:
    memcpy(at, cython.address(value), 4)


@cython.cfunc
@cython.exceptval(check=False)
def _murmur2(data: p_u8, size: int64_t) -> uint32_t:
    value: uint32_t = SEED ^ cython.cast(uint32_t, size)
    block: uint32_t
    while size >= 4:
        block = cython.cast(uint32_t, load32(data)) * MIX
        block = (block ^ (block >> 24)) * MIX
        value = (value * MIX) ^ block
        data += 4
        size -= 4
    if size > 0:
        block = data[0]
        if size > 1:
            block |= cython.cast(uint32_t, data[1]) << 8
        if size > 2:
            block |= cython.cast(uint32_t, data[2]) << 16
        value = (value ^ block) * MIX
    value = (value ^ (value >> 13)) * MIX
    return value ^ (value >> 15)


def murmur2(key):
    held: Held = Held(flat_view(key, 0, "key"))
    return cython.cast(int32_t, _murmur2(held.data, held.raw.len))


@cython.cclass
class Numbers:
    """An int32 column held as long as it is read."""

    values_held: Held
    bits_held: Held
    values: p_u8
    bits: p_u8
    first: int64_t

    def __cinit__(self, column, rows, what):
        first = column.first
        if first not in range(2**31):
            raise ValueError(f"{what} cannot begin at {first}")
        self.first = first
        self.values_held = Held(flat_view(column.values, 4 * (first + rows), what))
        self.values = self.values_held.data + 4 * self.first
        self.bits = cython.NULL
        if column.validity is not None:
            self.bits_held = Held(flat_view(column.validity, (first + rows + 7) // 8, what))
            self.bits = self.bits_held.data

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def is_null(self, row: int64_t) -> cython.bint:
        bit: int64_t = self.first + row
        return self.bits != cython.NULL and not (self.bits[bit >> 3] >> (bit & 7)) & 1


@cython.cfunc
def _topics(counts) -> array:
    """Of each topic the partitions, then of each the target of its first one."""
    held: Held = Held(flat_view(counts, 4, "counts"))
    count: int64_t = held.raw.len // 4
    both: array = clone(_NUMBERS, 2 * count, False)
    numbers: p_i64 = cython.cast(p_i64, both.data.as_longlongs)
    total: int64_t = 0
    index: int64_t
    for index in range(count):
        size: int64_t = load32(held.data + 4 * index)
        if size < 1:
            raise ValueError(f"a topic of {size} partitions")
        numbers[index] = size
        numbers[count + index] = total
        total += size
    if total > 0x7FFFFFFF:
        raise ValueError(f"{total} partitions are too many")
    return both


@cython.cfunc
def _check_rows(rows) -> cython.int:
    if rows not in range(2**60):
        raise ValueError(f"columns cannot have {rows} rows")
    return 0


def assign(rows, counts, *, topics=None, explicit=None, keys=None):
    _check_rows(rows)
    row_count: int64_t = rows
    both: array = _topics(counts)
    topic_count: int64_t = len(both) // 2
    sizes: p_i64 = cython.cast(p_i64, both.data.as_longlongs)
    which: p_u8 = cython.NULL
    if topics is not None:
        topics_held: Held = Held(flat_view(topics, 4 * rows, "topics"))
        which = topics_held.data
    wanted: Numbers = None if explicit is None else Numbers(explicit, rows, "partitions")
    by_key: Spans = binary(keys, rows, "keys")
    made = PyByteArray_FromStringAndSize(cython.NULL, 4 * rows)
    targets: p_u8 = cython.cast(p_u8, PyByteArray_AS_STRING(made))
    without: int64_t = 0
    topic: int64_t = 0
    partition: int64_t
    size: int64_t
    key: p_u8 = cython.NULL
    row: int64_t
    for row in range(row_count):
        if which != cython.NULL:
            topic = load32(which + 4 * row)
            if topic < 0 or topic >= topic_count:
                raise ValueError(f"row {row} is of topic {topic} of {topic_count}")
        if wanted is not None and not wanted.is_null(row):
            partition = load32(wanted.values + 4 * row)
            if partition < 0 or partition >= sizes[topic]:
                return made, without, row
        else:
            size = by_key.size(row, cython.address(key))
            if size == WRONG:
                raise ValueError(f"key or value offsets of row {row} are wrong")
            if size < 0:
                _store32(targets + 4 * row, cython.cast(int32_t, -1 - topic))
                without += 1
                continue
            partition = (_murmur2(key, size) & POSITIVE) % sizes[topic]
        _store32(targets + 4 * row, cython.cast(int32_t, sizes[topic_count + topic] + partition))
    return made, without, -1


def stick(targets, columns, *, topic, target, start, bytes_max):
    rows = columns.rows
    _check_rows(rows)
    if not 0 <= start <= rows or not 0 <= target < 2**31 or not 0 <= topic < 2**31:
        raise ValueError(f"row {start} of {rows}, target {target}, topic {topic}")
    held: Held = Held(flat_view(targets, 4 * rows, "targets"))
    if held.raw.readonly:
        raise ValueError("targets cannot be written")
    keys: Spans = binary(columns.keys, rows, "keys")
    values: Spans = binary(columns.values, rows, "values")
    row: int64_t = start
    stop: int64_t = rows
    used: int64_t = 0
    limit: int64_t = min(bytes_max, 2**62)
    mark: int64_t = -1 - cython.cast(int64_t, topic)
    given: int32_t = target
    key_size: int64_t
    value_size: int64_t
    at: p_u8 = cython.NULL
    while row < stop and used < limit:
        if load32(held.data + 4 * row) == mark:
            key_size = keys.size(row, cython.address(at))
            value_size = values.size(row, cython.address(at))
            if key_size == WRONG or value_size == WRONG:
                raise ValueError(f"key or value offsets of row {row} are wrong")
            used += max(key_size, 0) + max(value_size, 0) + COST
            _store32(held.data + 4 * row, given)
        row += 1
    return row, used


def group(targets, rows, target_count):
    _check_rows(rows)
    if not 0 <= target_count < 2**31:
        raise ValueError(f"{target_count} targets")
    held: Held = Held(flat_view(targets, 4 * rows, "targets"))
    row_count: int64_t = rows
    count: int64_t = target_count
    bounds: array = clone(_NUMBERS, count + 1, True)
    ends: p_i64 = cython.cast(p_i64, bounds.data.as_longlongs)
    target: int64_t
    row: int64_t
    for row in range(row_count):
        target = load32(held.data + 4 * row)
        if target < 0 or target >= count:
            raise ValueError(f"row {row} has target {target} of {count}")
        ends[target + 1] += 1
    for target in range(count):
        ends[target + 1] += ends[target]
    made = PyByteArray_FromStringAndSize(cython.NULL, 8 * rows)
    selection: p_u8 = cython.cast(p_u8, PyByteArray_AS_STRING(made))
    # Where the next row of each target goes; behind the last it is where the next target begins.
    following: array = bounds[:]
    nexts: p_i64 = cython.cast(p_i64, following.data.as_longlongs)
    for row in range(row_count):
        target = load32(held.data + 4 * row)
        # Checked again: another owner of the buffer may have changed it.
        if target < 0 or target >= count or nexts[target] >= ends[target + 1]:
            raise ValueError(f"row {row} has target {target} of {count}")
        memcpy(selection + 8 * nexts[target], cython.address(row), 8)
        nexts[target] += 1
    return made, bounds
