"""What goes into and comes out of the column kernels; both twins share these types.

Buffers have Arrow's layout (numbers in the machine's byte order, validity bitmaps least
significant bit first), so the client wraps them without a copy. Nothing here needs pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from array import array

    from typing_extensions import Buffer

# One row of numbers per decoded batch, all rows in one flat array: what a read_committed reader
# needs to leave out aborted transactions. LAST_OFFSET is inclusive; rows are [ROW_START, ROW_STOP).
BATCH_FIELDS: Final = 8
ROW_START: Final = 0
ROW_STOP: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
PRODUCER_ID: Final = 4
PRODUCER_EPOCH: Final = 5
ATTRIBUTES: Final = 6
LEADER_EPOCH: Final = 7

# Bits of the flags column, one byte a row.
FLAG_CONTROL: Final = 1
FLAG_TRANSACTIONAL: Final = 2
FLAG_LOG_APPEND_TIME: Final = 4

COLUMN_BYTES_MAX: Final = 2**31 - 1
"""A 32-bit Arrow column cannot address more; nor can one batch claim more."""

DECODE_ROW_COST: Final = 32
"""What one record counts in `DecodeOptions.bytes_max` beside its own bytes."""

_INT16 = range(-(2**15), 2**15)
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryColumn:
    """Arrow `binary`: int32 offsets into data, and a bitmap or None when nothing is null.

    `first` is Arrow's own array offset, so that a slice is taken as it stands.
    """

    offsets: Buffer
    data: Buffer
    validity: Buffer | None = None
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderColumn:
    """Arrow `list<struct<key, value>>`: int32 offsets into `rows` header rows of keys and values.

    The kernels do not check that header keys are UTF-8: code that makes strings of them does.
    """

    list_offsets: Buffer
    rows: int
    keys: BinaryColumn
    values: BinaryColumn
    validity: Buffer | None = None
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records as columns; a missing key or value column means null in every row."""

    rows: int
    timestamps: Buffer
    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: HeaderColumn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Decoded records, and where the next call continues.

    `decode(buffer, position, stop, first_offset=next_offset)` gives exactly what follows.
    """

    columns: RecordColumns
    offsets: Buffer
    flags: Buffer
    batches: array[int]
    position: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Which records to decode, [first_offset, end_offset), and how large the result may be.

    `batch_bytes_max` bounds one decompressed batch. `bytes_max` bounds the whole: the record
    bytes of every batch plus DECODE_ROW_COST a record; only a single batch may exceed it.
    """

    first_offset: int = 0
    end_offset: int | None = None
    with_headers: bool = True
    check_crc: bool = True
    batch_bytes_max: int = 64 * 1024 * 1024
    bytes_max: int = COLUMN_BYTES_MAX

    def __post_init__(self) -> None:
        _must_be(self.first_offset, range(2**63), "first_offset")
        if self.end_offset is not None:
            _must_be(self.end_offset, range(2**63), "end_offset")
        _must_be(self.batch_bytes_max, range(COLUMN_BYTES_MAX + 1), "batch_bytes_max")
        _must_be(self.bytes_max, range(COLUMN_BYTES_MAX + 1), "bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The header fields of an encoded batch. With `append_time_ms` it is LogAppendTime."""

    codec: int = 0
    level: int | None = None
    base_offset: int = 0
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False
    append_time_ms: int | None = None

    def __post_init__(self) -> None:
        _must_be(self.codec, range(5), "codec")
        # The last offset of the batch must stay an int64 too.
        _must_be(self.base_offset, range(2**63 - 2**31), "base_offset")
        _must_be(self.leader_epoch, _INT32, "leader_epoch")
        _must_be(self.producer_id, _INT64, "producer_id")
        _must_be(self.producer_epoch, _INT16, "producer_epoch")
        _must_be(self.base_sequence, range(-1, 2**31), "base_sequence")
        if self.append_time_ms is not None:
            _must_be(self.append_time_ms, _INT64, "append_time_ms")

    @property
    def attributes(self) -> int:
        """The attribute bits of the batch header."""
        log_append_time = self.append_time_ms is not None
        return self.codec | log_append_time << 3 | self.is_transactional << 4 | self.is_control << 5


def flat_view(buffer: Buffer, size_min: int, what: str) -> memoryview:
    """The buffer's bytes; a ValueError where it is not contiguous or shorter than `size_min`."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError(f"{what} is not contiguous")
    if view.nbytes < size_min:
        raise ValueError(f"{what} has {view.nbytes} bytes, {size_min} are needed")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _must_be(value: int, allowed: range, what: str) -> None:
    if value not in allowed:
        raise ValueError(f"{what} is {value}, outside [{allowed[0]}, {allowed[-1]}]")


DECODE_DEFAULTS: Final = DecodeOptions()
BATCH_DEFAULTS: Final = BatchOptions()
