"""Columns into record batches; described by `column_encode.pyi`."""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.millstream.kernels._compiled import batch_layout as layout
from cython.cimports.millstream.kernels._compiled.column_buffers import Growing
from cython.cimports.millstream.kernels._compiled.column_source import Source

from millstream.kernels._compiled.crc import crc32c
from millstream.kernels.column_types import BATCH_DEFAULTS
from millstream.kernels.compression import compress

__all__ = ["encode", "encode_many", "rows_that_fit"]

p_u8 = cython.typedef(cython.pointer[uint8_t])

GUESS_BYTES_MAX = cython.declare(int64_t, 1 << 20)
BATCH_BYTES_MAX = cython.declare(int64_t, cython.cast(int64_t, 0x7FFFFFFF) + layout.UNCOUNTED_BYTES)
"""The batch length field is an int32 and does not count itself and the base offset."""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_big(to: p_u8, size: cython.int, value: uint64_t) -> p_u8:
    i: cython.int
    for i in range(size):
        to[i] = cython.cast(uint8_t, value >> (8 * (size - 1 - i)))
    return to + size


@cython.cclass
class Packer:
    """One batch after another out of one source."""

    source: Source
    options: object
    position: int64_t
    stop: int64_t
    base_offset: int64_t
    base_sequence: int64_t
    base_timestamp: int64_t
    max_timestamp: int64_t

    def __cinit__(self, columns, start, stop, options, selection):
        self.source = Source(columns, selection)
        if not 0 <= start <= stop <= self.source.selected:
            raise ValueError(f"[{start}, {stop}) is not inside {self.source.selected} rows")
        self.position = start
        self.stop = stop
        self.options = options
        self.base_offset = options.base_offset
        self.base_sequence = options.base_sequence

    @cython.cfunc
    def count(self, size_max: int64_t) -> int64_t:
        """Records from the position that one batch holds; at least one."""
        source: Source = self.source
        used: int64_t = layout.HEADER_BYTES
        index: int64_t = self.position
        self.base_timestamp = source.timestamp_at(index)
        while index < self.stop:
            used += source.measure(index, index - self.position, self.base_timestamp)
            if used > size_max and index > self.position:
                break
            index += 1
        return index - self.position

    @cython.cfunc
    def fill(self, out: Growing, size_max: int64_t) -> int64_t:
        """Write records until the batch is full; returns how many."""
        source: Source = self.source
        index: int64_t = self.position
        self.base_timestamp = source.timestamp_at(index)
        self.max_timestamp = self.base_timestamp
        while index < self.stop:
            size: int64_t = source.measure(index, index - self.position, self.base_timestamp)
            if out.used + size > size_max and index > self.position:
                break
            if out.used + size > BATCH_BYTES_MAX:
                raise ValueError("a record is larger than a batch can be")
            out.fit(out.used + size)
            source.write(out.at + out.used, index - self.position)
            out.used += size
            self.max_timestamp = max(self.max_timestamp, source.timestamp)
            index += 1
        return index - self.position

    @cython.cfunc
    def next_batch(self, size_max: int64_t):
        """(batch, rows); the position moves on."""
        out: Growing = Growing()
        # A first guess, as if all records were as large as the first: growing means copying.
        first: int64_t = self.source.measure(
            self.position, 0, self.source.timestamp_at(self.position)
        )
        rest: int64_t = self.stop - self.position
        guess: int64_t = layout.HEADER_BYTES + (first + first // 8 + 16) * rest
        out.fit(min(size_max, GUESS_BYTES_MAX, guess))
        out.used = layout.HEADER_BYTES
        rows: int64_t = self.fill(out, size_max)
        if self.options.codec != 0:
            out = self.compressed(out)
        self.seal(out, rows)
        self.position += rows
        self.base_offset += rows
        if self.base_sequence >= 0:
            # Sequences wrap from the largest int32 to zero.
            self.base_sequence = (self.base_sequence + rows) & layout.SEQUENCE_MASK
        return out.take(out.used), rows

    @cython.cfunc
    def compressed(self, out: Growing) -> Growing:
        records = out.take(out.used)
        payload: bytes = compress(
            self.options.codec, memoryview(records)[layout.HEADER_BYTES :], self.options.level
        )
        small: Growing = Growing()
        small.used = layout.HEADER_BYTES + len(payload)
        if small.used > BATCH_BYTES_MAX:
            raise ValueError("a compressed batch is larger than a batch can be")
        small.fit(small.used)
        memcpy(small.at + layout.HEADER_BYTES, cython.cast(p_u8, payload), len(payload))
        return small

    @cython.cfunc
    def seal(self, out: Growing, rows: int64_t) -> cython.int:
        options = self.options
        if options.append_time_ms is not None:
            self.max_timestamp = options.append_time_ms
        to: p_u8 = _put_big(out.at, 8, self.base_offset)
        to = _put_big(to, 4, out.used - layout.UNCOUNTED_BYTES)
        to = _put_big(to, 4, cython.cast(int64_t, options.leader_epoch))
        to = _put_big(to, 1, layout.MAGIC_V2)
        # The CRC comes last: it covers everything from the attributes on.
        to = _put_big(out.at + layout.ATTRIBUTES_AT, 2, cython.cast(int64_t, options.attributes))
        to = _put_big(to, 4, rows - 1)
        to = _put_big(to, 8, self.base_timestamp)
        to = _put_big(to, 8, self.max_timestamp)
        to = _put_big(to, 8, cython.cast(int64_t, options.producer_id))
        to = _put_big(to, 2, cython.cast(int64_t, options.producer_epoch))
        to = _put_big(to, 4, self.base_sequence)
        _put_big(to, 4, rows)
        crc = crc32c(memoryview(out.held)[layout.ATTRIBUTES_AT : out.used])
        _put_big(out.at + layout.CRC_AT, 4, cython.cast(int64_t, crc))
        return 0


def encode(columns, start, stop, options=BATCH_DEFAULTS, *, selection=None):
    if start == stop:
        raise ValueError("a batch of no records")
    packer: Packer = Packer(columns, start, stop, options, selection)
    batch, rows = packer.next_batch(BATCH_BYTES_MAX)
    if start + rows != stop:
        raise ValueError(f"{stop - start} records are more than one batch can hold")
    return batch


def encode_many(columns, start, stop, options=BATCH_DEFAULTS, *, size_max, selection=None):
    packer: Packer = Packer(columns, start, stop, options, selection)
    limit: int64_t = max(0, min(size_max, BATCH_BYTES_MAX))
    batches = []
    while packer.position < packer.stop:
        batches.append(packer.next_batch(limit))
    return batches


def rows_that_fit(columns, start, stop, *, size_max, selection=None):
    packer: Packer = Packer(columns, start, stop, BATCH_DEFAULTS, selection)
    if start == stop:
        return 0
    return packer.count(max(0, min(size_max, BATCH_BYTES_MAX)))
