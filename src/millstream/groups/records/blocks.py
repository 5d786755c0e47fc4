"""Keys and values of many records at once, between the log's batches and the entries they hold.

Loading reads millions of records: the kernels take the batches apart, and only what remains per
record is done here.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from typing_extensions import Buffer

from millstream.kernels import columns
from millstream.kernels.columns import (
    ATTRIBUTES,
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
from millstream.model.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId

_CONTROL: Final = 0x20

_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Decoded at a time: a few of a log's reads, so that not all of a segment is there as objects."""

Pair = tuple[bytes, bytes | None]


class Producer(NamedTuple):
    """Whose transaction a record belongs to."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Block(NamedTuple):
    """The records of one batch, by columns. An empty batch (compaction leaves them) has none."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    producer: Producer | None
    is_control: bool


def read_blocks(records: Buffer) -> Iterator[Block]:
    """The whole batches in `records`; one that is cut off at the end is left out.

    Raises MalformedRecords for damaged ones.
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
    """One batch of at least one record, all of the same time."""
    keys = _column([key for key, _ in pairs])
    values = _column([value for _, value in pairs])
    timestamps = array("q", (timestamp_ms,)) * len(pairs)
    rows = RecordColumns(rows=len(pairs), timestamps=timestamps, keys=keys, values=values)
    return columns.encode(rows, 0, len(pairs), options)


def _column(cells: Sequence[bytes | None]) -> BinaryColumn:
    ends = array("i", accumulate((len(cell or b"") for cell in cells), initial=0))
    data = b"".join(cell for cell in cells if cell is not None)
    if None not in cells:
        return BinaryColumn(offsets=ends, data=data)
    bits = bytearray((len(cells) + 7) // 8)
    for row, cell in enumerate(cells):
        bits[row >> 3] |= (cell is not None) << (row & 7)
    return BinaryColumn(offsets=ends, data=data, validity=bits)
