"""Many record batches into one set of columns; described by `column_decode.pyi`.

Here are the batch headers and the order of the checks, which the plain twin keeps too; the
records themselves are in `column_sink`. The GIL stays held: to give it up for the few
microseconds of a batch and wait to have it back would cost more than it gains.
"""

from array import array

import cython
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.millstream.kernels._compiled.column_buffers import Held
from cython.cimports.millstream.kernels._compiled.column_sink import Sink

from millstream.kernels._compiled.crc import crc32c
from millstream.kernels.column_types import DECODE_DEFAULTS, Decoded, flat_view
from millstream.kernels.compression import decompress
from millstream.kernels.errors import MalformedRecords, Reason

__all__ = ["decode"]

p_u8 = cython.typedef(cython.pointer[uint8_t])

HEADER_BYTES = cython.declare(cython.Py_ssize_t, 61)
MAGIC_END = cython.declare(cython.Py_ssize_t, 17)
CRC_END = cython.declare(cython.Py_ssize_t, 21)
RECORD_BYTES_MIN = cython.declare(cython.Py_ssize_t, 7)
ROW_COST = cython.declare(int64_t, 32)
OFFSET_MAX = cython.declare(int64_t, 0x7FFFFFFFFFFFFFFF)
GUESS_BYTES_MAX = cython.declare(int64_t, 8 * 1024 * 1024)

# What `_load` and `_add` answer: reasons as plain numbers, or one of the first two.
PARTIAL = cython.declare(cython.int, -1)
FULL = cython.declare(cython.int, -2)
OK = cython.declare(cython.int, 0)
LENGTH = cython.declare(cython.int, 2)
MAGIC = cython.declare(cython.int, 3)
CRC = cython.declare(cython.int, 4)
OFFSETS = cython.declare(cython.int, 5)
COUNT = cython.declare(cython.int, 6)
CODEC = cython.declare(cython.int, 7)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _big(at: p_u8, size: cython.int) -> uint64_t:
    value: uint64_t = 0
    i: cython.int
    for i in range(size):
        value = value << 8 | at[i]
    return value


@cython.cclass
class Run:
    """One call of `decode`."""

    view: object
    source: Held
    sink: Sink
    batches: object
    position: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    batch_bytes: cython.Py_ssize_t
    crc: uint32_t
    check_crc: cython.bint
    batch_bytes_max: int64_t
    bytes_max: int64_t
    spent: int64_t

    def __cinit__(self, view, start, stop, options):
        self.view = view
        self.source = Held(view)
        self.sink = Sink(options.with_headers)
        self.sink.first_offset = options.first_offset
        self.sink.end_offset = OFFSET_MAX if options.end_offset is None else options.end_offset
        self.batches = array("q")
        self.position = start
        self.stop = stop
        self.check_crc = options.check_crc
        self.batch_bytes_max = options.batch_bytes_max
        self.bytes_max = options.bytes_max
        self.spent = 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def load(self) -> cython.int:
        """The header at the position: what decides whether the batch is wanted at all."""
        at: p_u8 = self.source.data + self.position
        remaining: cython.Py_ssize_t = self.stop - self.position
        if remaining < MAGIC_END:
            return PARTIAL
        if at[16] != 2:
            return MAGIC
        length: int64_t = cython.cast(int32_t, _big(at + 8, 4))
        if length < HEADER_BYTES - 12:
            return LENGTH
        self.batch_bytes = length + 12
        if remaining < self.batch_bytes:
            return PARTIAL
        base_offset: int64_t = cython.cast(int64_t, _big(at, 8))
        delta: int64_t = cython.cast(int32_t, _big(at + 23, 4))
        if base_offset < 0 or delta < 0 or base_offset >= OFFSET_MAX - delta:
            return OFFSETS
        sink: Sink = self.sink
        sink.base_offset = base_offset
        sink.last_offset = base_offset + delta
        sink.attributes = cython.cast(cython.int, _big(at + 21, 2))
        sink.base_timestamp = cython.cast(int64_t, _big(at + 27, 8))
        sink.max_timestamp = cython.cast(int64_t, _big(at + 35, 8))
        sink.count = cython.cast(int32_t, _big(at + 57, 4))
        self.crc = cython.cast(uint32_t, _big(at + 17, 4))
        return OK

    @cython.cfunc
    def add(self) -> cython.int:
        """The batch's records into the columns, after the checks that cost more."""
        sink: Sink = self.sink
        stop: cython.Py_ssize_t = self.position + self.batch_bytes
        if self.check_crc:
            crc: uint32_t = crc32c(self.view[self.position + CRC_END : stop])
            if crc != self.crc:
                return CRC
        codec: cython.int = sink.attributes & 7
        if codec > 4:
            return CODEC
        if sink.count < 0 or sink.count > sink.last_offset - sink.base_offset + 1:
            return COUNT
        data: p_u8 = self.source.data + self.position + HEADER_BYTES
        size: cython.Py_ssize_t = self.batch_bytes - HEADER_BYTES
        held: Held
        if codec != 0 and size > 0:
            held = Held(self.decompressed(codec, self.position + HEADER_BYTES, stop))
            data = held.data
            size = held.raw.len
        if sink.count > size // RECORD_BYTES_MIN:
            return COUNT
        cost: int64_t = size + ROW_COST * sink.count
        if self.spent + cost > self.bytes_max and len(self.batches) > 0:
            return FULL
        self.spent += cost
        if codec == 0 and len(self.batches) == 0:
            # All values to come are among the bytes that are there.
            rest: int64_t = self.stop - self.position
            sink.values.data.fit(min(rest, max(self.bytes_max, size)))
        sink.fit(sink.count, size)
        row_start: cython.Py_ssize_t = sink.rows
        reason: cython.int = sink.add_records(data, size)
        if reason == OK and len(self.batches) == 0:
            self.foresee(size, OFFSET_MAX if codec == 0 else GUESS_BYTES_MAX)
        self.describe(row_start)
        return reason

    @cython.cfunc
    def decompressed(self, codec: cython.int, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
        try:
            return decompress(codec, self.view[start:stop], self.batch_bytes_max)
        except MalformedRecords as error:
            # The caller looks for the batch, not for a place inside it.
            raise MalformedRecords(
                error.reason, position=self.position, detail=str(error)
            ) from error

    @cython.cfunc
    def foresee(self, size: cython.Py_ssize_t, bytes_max: int64_t) -> cython.int:
        """Room for the batches to come, as if they were like the first one, now decoded.

        So the columns rarely move. What compressed batches hold is a guess, which must not become
        a large claim on memory.
        """
        sink: Sink = self.sink
        rest: cython.Py_ssize_t = self.stop - self.position
        rest = min(rest, self.bytes_max)
        times: cython.Py_ssize_t = (rest + self.batch_bytes - 1) // self.batch_bytes
        times = min(times, min(bytes_max, self.bytes_max) // (size + 1) + 1)
        if times < 2:
            return 0
        sink.fit_rows(sink.rows * times)
        sink.keys.data.fit(sink.keys.data.used * times + size)
        sink.values.data.fit(sink.values.data.used * times)
        return 0

    @cython.cfunc
    def describe(self, row_start: cython.Py_ssize_t):
        sink: Sink = self.sink
        at: p_u8 = self.source.data + self.position
        flags: cython.int = (
            (sink.attributes >> 5 & 1) | (sink.attributes >> 3 & 2) | (sink.attributes >> 1 & 4)
        )
        memset(sink.flags.at + row_start, flags, sink.rows - row_start)
        self.batches.extend(
            (
                row_start, sink.rows, sink.base_offset, sink.last_offset,
                cython.cast(int64_t, _big(at + 43, 8)),
                cython.cast(cython.short, _big(at + 51, 2)),
                cython.cast(cython.short, sink.attributes),
                cython.cast(int32_t, _big(at + 12, 4)),
            )
        )  # fmt: skip


def decode(buffer, start, stop, options=DECODE_DEFAULTS):
    view = flat_view(buffer, 0, "buffer")
    if not 0 <= start <= stop <= len(view):
        raise ValueError(f"[{start}, {stop}) is not inside a buffer of {len(view)} bytes")
    run: Run = Run(view, start, stop, options)
    sink: Sink = run.sink
    next_offset: int64_t = sink.first_offset
    previous: int64_t = -1
    answer: cython.int = OK
    while next_offset < sink.end_offset:
        answer = run.load()
        if answer == OK and sink.base_offset <= previous:
            answer = OFFSETS
        if answer != OK:
            break
        previous = sink.last_offset
        if sink.last_offset >= sink.first_offset and sink.base_offset < sink.end_offset:
            answer = run.add()
            if answer != OK:
                break
        if sink.last_offset >= sink.end_offset:
            next_offset = sink.end_offset
            break
        run.position += run.batch_bytes
        next_offset = max(next_offset, sink.last_offset + 1)
    if answer > OK:
        raise MalformedRecords(Reason(answer), position=run.position)
    columns = sink.columns()
    return Decoded(
        columns=columns,
        offsets=sink.offsets.take(8 * sink.rows),
        flags=sink.flags.take(sink.rows),
        batches=run.batches,
        position=run.position,
        next_offset=next_offset,
    )
