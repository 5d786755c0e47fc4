"""Many record batches into one set of columns; described by `column_decode.pyi`.

This module has the batch headers and the order of the checks, which the plain twin follows too; the
records themselves are in `column_sink`. The GIL stays held: releasing it for the few
microseconds of a batch and acquiring it again would cost more than it gains.
"""

from array import array

import cython
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.millstream.kernels._compiled import batch_layout as layout
from cython.cimports.millstream.kernels._compiled import reasons
from cython.cimports.millstream.kernels._compiled.column_buffers import Held
from cython.cimports.millstream.kernels._compiled.column_sink import Sink

from millstream.kernels._compiled.crc import crc32c
from millstream.kernels.column_types import DECODE_DEFAULTS, Decoded, flat_view
from millstream.kernels.compression import decompress
from millstream.kernels.errors import MalformedRecords, Reason

__all__ = ["decode"]

p_u8 = cython.typedef(cython.pointer[uint8_t])

OFFSET_MAX = cython.declare(int64_t, 0x7FFFFFFFFFFFFFFF)


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
        """The header at the position: it decides whether the batch is decoded at all."""
        at: p_u8 = self.source.data + self.position
        remaining: cython.Py_ssize_t = self.stop - self.position
        if remaining < layout.MAGIC_END:
            return PARTIAL
        if at[layout.MAGIC_AT] != layout.MAGIC_V2:
            return reasons.MAGIC
        length: int64_t = cython.cast(int32_t, _big(at + layout.LENGTH_AT, 4))
        if length < layout.HEADER_BYTES - layout.UNCOUNTED_BYTES:
            return reasons.LENGTH
        self.batch_bytes = length + layout.UNCOUNTED_BYTES
        if remaining < self.batch_bytes:
            return PARTIAL
        base_offset: int64_t = cython.cast(int64_t, _big(at + layout.BASE_OFFSET_AT, 8))
        delta: int64_t = cython.cast(int32_t, _big(at + layout.LAST_OFFSET_DELTA_AT, 4))
        if base_offset < 0 or delta < 0 or base_offset >= OFFSET_MAX - delta:
            return reasons.OFFSETS
        sink: Sink = self.sink
        sink.base_offset = base_offset
        sink.last_offset = base_offset + delta
        sink.attributes = cython.cast(cython.int, _big(at + layout.ATTRIBUTES_AT, 2))
        sink.base_timestamp = cython.cast(int64_t, _big(at + layout.BASE_TIMESTAMP_AT, 8))
        sink.max_timestamp = cython.cast(int64_t, _big(at + layout.MAX_TIMESTAMP_AT, 8))
        sink.count = cython.cast(int32_t, _big(at + layout.RECORD_COUNT_AT, 4))
        self.crc = cython.cast(uint32_t, _big(at + layout.CRC_AT, 4))
        return reasons.NONE

    @cython.cfunc
    def add(self) -> cython.int:
        """The batch's records into the columns, after the checks that cost more."""
        sink: Sink = self.sink
        stop: cython.Py_ssize_t = self.position + self.batch_bytes
        if self.check_crc:
            crc: uint32_t = crc32c(self.view[self.position + layout.ATTRIBUTES_AT : stop])
            if crc != self.crc:
                return reasons.CRC
        codec: cython.int = sink.attributes & layout.CODEC_MASK
        if codec > layout.CODEC_MAX:
            return reasons.CODEC
        if sink.count < 0 or sink.count > sink.last_offset - sink.base_offset + 1:
            return reasons.COUNT
        data: p_u8 = self.source.data + self.position + layout.HEADER_BYTES
        size: cython.Py_ssize_t = self.batch_bytes - layout.HEADER_BYTES
        held: Held
        if codec != 0 and size > 0:
            held = Held(self.decompressed(codec, self.position + layout.HEADER_BYTES, stop))
            data = held.data
            size = held.raw.len
        if sink.count > size // layout.RECORD_BYTES_MIN:
            return reasons.COUNT
        cost: int64_t = size + DECODE_ROW_COST * sink.count
        if self.spent + cost > self.bytes_max and len(self.batches) > 0:
            return FULL
        self.spent += cost
        if codec == 0 and len(self.batches) == 0:
            # All values to come are part of the bytes in the buffer.
            rest: int64_t = self.stop - self.position
            sink.values.data.fit(min(rest, max(self.bytes_max, size)))
        sink.fit(sink.count, size)
        row_start: cython.Py_ssize_t = sink.rows
        reason: cython.int = sink.add_records(data, size)
        if reason == reasons.NONE and len(self.batches) == 0:
            self.foresee(size, OFFSET_MAX if codec == 0 else GUESS_BYTES_MAX)
        self.describe(row_start)
        return reason

    @cython.cfunc
    def decompressed(self, codec: cython.int, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
        try:
            return decompress(codec, self.view[start:stop], self.batch_bytes_max)
        except MalformedRecords as error:
            # The caller needs the position of the batch, not of a byte inside it.
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
            (FLAG_CONTROL if sink.attributes & layout.CONTROL else 0)
            | (FLAG_TRANSACTIONAL if sink.attributes & layout.TRANSACTIONAL else 0)
            | (FLAG_LOG_APPEND_TIME if sink.attributes & layout.LOG_APPEND_TIME else 0)
        )
        memset(sink.flags.at + row_start, flags, sink.rows - row_start)
        self.batches.extend(
            (
                row_start, sink.rows, sink.base_offset, sink.last_offset,
                cython.cast(int64_t, _big(at + layout.PRODUCER_ID_AT, 8)),
                cython.cast(cython.short, _big(at + layout.PRODUCER_EPOCH_AT, 2)),
                cython.cast(cython.short, sink.attributes),
                cython.cast(int32_t, _big(at + layout.LEADER_EPOCH_AT, 4)),
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
    answer: cython.int = reasons.NONE
    while next_offset < sink.end_offset:
        answer = run.load()
        if answer == reasons.NONE and sink.base_offset <= previous:
            answer = reasons.OFFSETS
        if answer != reasons.NONE:
            break
        previous = sink.last_offset
        if sink.last_offset >= sink.first_offset and sink.base_offset < sink.end_offset:
            answer = run.add()
            if answer != reasons.NONE:
                break
        if sink.last_offset >= sink.end_offset:
            next_offset = sink.end_offset
            break
        run.position += run.batch_bytes
        next_offset = max(next_offset, sink.last_offset + 1)
    if answer > reasons.NONE:
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
