"""Keys and values of many records at once, between the log's batches and their entries.

Loading reads millions of records: the kernels decode the batches, and only the remaining work per
record is done here.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final, NamedTuple

from typing_extensions import Buffer

from millstream.kernels import columns
from millstream.kernels.columns import (
    ATTRIBUTES,
    BATCH_DEFAULTS,
    BATCH_FIELDS,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    ROW_START,
    ROW_STOP,
    BatchOptions,
    BinaryColumn,
    DecodeOptions,
    RecordColumns,
)
from millstream.kernels.crc import crc32c
from millstream.model.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from millstream.shards.effects import Producer

_CONTROL: Final = 0x20

_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Decoded at once: a few reads of a log, so that a segment is never in memory as objects."""

Pair = tuple[bytes, bytes | None]

_SMALL_COUNT: Final = 32
"""Up to so many small records are encoded right here: a commit is one, and converting it to
columns would cost several times more than encoding it."""
_SMALL_BYTES: Final = 500
"""Of a key and a value together: all lengths in such a record have a varint in the table."""
_NULL_AND_END: Final = b"\x01\0"
"""A length of -1 for a null value, and no headers."""


def _varint(number: int) -> bytes:
    """A non-negative number as a zigzag varint."""
    left = number << 1
    parts = bytearray()
    while left > 0x7F:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    parts.append(left)
    return bytes(parts)


_VARINTS: Final = tuple(_varint(number) for number in range(512))

_UNCHECKED: Final = Struct(">qiibI")
"""Base offset, length, leader epoch, magic, CRC: not covered by the CRC."""
_CHECKED: Final = Struct(">hiqqqhii")
"""Attributes, last offset delta, base timestamp, max timestamp, producer id and epoch, base
sequence, record count."""
_LENGTH_END: Final = 12
_MAGIC: Final = 2


class Block(NamedTuple):
    """The records of one batch, by columns. An empty batch (left by compaction) has none."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    producer: Producer | None
    is_control: bool


def read_blocks(records: Buffer) -> Iterator[Block]:
    """The whole batches in `records`; a truncated last one is ignored.

    Raises MalformedRecords for corrupt ones.
    """
    view = memoryview(records)
    position = next_offset = 0
    while position < len(view):
        options = DecodeOptions(
            first_offset=next_offset, with_headers=False, bytes_max=_BLOCK_BYTES
        )
        decoded = columns.decode(view, position, len(view), options)
        if decoded.position == position:
            return
        yield from _split(decoded)
        position, next_offset = decoded.position, decoded.next_offset


def _split(decoded: columns.Decoded) -> Iterator[Block]:
    offsets = memoryview(decoded.offsets).cast("B").cast("q").tolist()
    keys = _cells(decoded.columns.keys, len(offsets))
    values = _cells(decoded.columns.values, len(offsets))
    batches = decoded.batches
    for at in range(0, len(batches), BATCH_FIELDS):
        start, stop = batches[at + ROW_START], batches[at + ROW_STOP]
        producer_id = ProducerId(batches[at + PRODUCER_ID])
        producer = None
        if producer_id != NO_PRODUCER_ID:
            producer = Producer(producer_id, ProducerEpoch(batches[at + PRODUCER_EPOCH]))
        is_control = bool(batches[at + ATTRIBUTES] & _CONTROL)
        rows = slice(start, stop)
        yield Block(offsets[rows], keys[rows], values[rows], producer, is_control)


def _cells(column: BinaryColumn | None, count: int) -> list[bytes | None]:
    if column is None:
        return [None] * count
    ends = memoryview(column.offsets).cast("B").cast("i").tolist()
    data = bytes(column.data)
    cells: list[bytes | None] = [data[start:stop] for start, stop in pairwise(ends)]
    if column.validity is not None:
        bits = memoryview(column.validity)
        for row in range(count):
            if not bits[row >> 3] >> (row & 7) & 1:
                cells[row] = None
    return cells


def build_batch(pairs: Sequence[Pair], timestamp_ms: int, options: BatchOptions) -> bytearray:
    """One batch of at least one record, all with the same timestamp."""
    if 0 < len(pairs) <= _SMALL_COUNT and not options.codec and options.append_time_ms is None:
        records = _encode_small_records(pairs)
        if records is not None:
            return _build_small_batch(records, len(pairs), timestamp_ms, options)
    return build_in_columns(pairs, timestamp_ms, options)


def build_in_columns(pairs: Sequence[Pair], timestamp_ms: int, options: BatchOptions) -> bytearray:
    """The same with the kernel, for any number and size of records."""
    keys = _column([key for key, _ in pairs])
    values = _column([value for _, value in pairs])
    timestamps = array("q", (timestamp_ms,)) * len(pairs)
    rows = RecordColumns(rows=len(pairs), timestamps=timestamps, keys=keys, values=values)
    return columns.encode(rows, 0, len(pairs), options)


def _encode_small_records(pairs: Sequence[Pair]) -> bytes | None:
    """The records of a batch; None if one is not small."""
    records = []
    for delta, (key, value) in enumerate(pairs):
        if len(key) + len(value or b"") > _SMALL_BYTES:
            return None
        # Attributes, timestamp delta and header count are zero.
        body = b"\0\0" + _VARINTS[delta] + _VARINTS[len(key)] + key
        body += _NULL_AND_END if value is None else _VARINTS[len(value)] + value + b"\0"
        records.append(_VARINTS[len(body)] + body)
    return b"".join(records)


def _build_small_batch(
    records: bytes, count: int, timestamp_ms: int, options: BatchOptions
) -> bytearray:
    checked = _CHECKED.pack(
        0
        if options is BATCH_DEFAULTS
        else options.attributes,  # the property computes it every time
        count - 1,
        timestamp_ms,
        timestamp_ms,
        options.producer_id,
        options.producer_epoch,
        options.base_sequence,
        count,
    )
    checked += records
    size = _UNCHECKED.size - _LENGTH_END + len(checked)
    crc = crc32c(checked)
    batch = bytearray(_UNCHECKED.pack(options.base_offset, size, options.leader_epoch, _MAGIC, crc))
    batch += checked
    return batch


def _column(cells: Sequence[bytes | None]) -> BinaryColumn:
    ends = array("i", accumulate((len(cell or b"") for cell in cells), initial=0))
    data = b"".join(cell for cell in cells if cell is not None)
    if None not in cells:
        return BinaryColumn(offsets=ends, data=data)
    bits = bytearray((len(cells) + 7) // 8)
    for row, cell in enumerate(cells):
        bits[row >> 3] |= (cell is not None) << (row & 7)
    return BinaryColumn(offsets=ends, data=data, validity=bits)
