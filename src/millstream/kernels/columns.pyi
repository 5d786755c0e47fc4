"""Many record batches into one set of Arrow-shaped columns, and columns into batches.

Buffers follow Arrow's layout (little endian, validity bitmaps least significant bit first), so
that the client wraps them without a copy; nothing here needs pyarrow.
"""

from collections.abc import Callable
from typing import Final

from typing_extensions import Buffer

__all__ = ["Columns", "decode", "encode_records", "rows_that_fit", "seal_batch"]

class Columns:
    """One output of `decode`, or one input of `encode_records`; `rows` records.

    int64 columns: offsets, timestamps (bytes of rows * 8). flags: one byte a row, bit 0 control
    batch, bit 1 transactional, bit 2 log append time. Variable columns: `*_offsets` int32
    (rows + 1 entries) into `*_data`, `*_validity` a bitmap or None when nothing is null.
    Headers are a list column: header_list_offsets int32 (rows + 1) into the child rows, whose key
    is (header_key_offsets, header_key_data) and whose value is (header_value_offsets,
    header_value_data, header_value_validity). `header_rows` child rows.
    `batch_rows`: rows per decoded batch, `producer_ids`, `producer_epochs` per batch as int64.
    """

    rows: int
    header_rows: int
    next_offset: int
    offsets: Buffer
    timestamps: Buffer
    flags: Buffer
    key_offsets: Buffer
    key_data: Buffer
    key_validity: Buffer | None
    value_offsets: Buffer
    value_data: Buffer
    value_validity: Buffer | None
    header_list_offsets: Buffer
    header_key_offsets: Buffer
    header_key_data: Buffer
    header_value_offsets: Buffer
    header_value_data: Buffer
    header_value_validity: Buffer | None

DECOMPRESS: Final[Callable[[int, Buffer, int], bytes]]
