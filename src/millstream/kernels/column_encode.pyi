"""Arrow-shaped columns into record batches v2. One description for both twins.

All take rows [start, stop) of the columns, or with `selection` (int64 row numbers) the rows at
indexes [start, stop) of it: the records of one partition need not stand together. Columns that
do not fit their buffers (short buffers, offsets that run backwards or outside the data, header
keys that are null) raise ValueError before a byte outside is read.
"""

from typing_extensions import Buffer

from millstream.kernels.column_types import BATCH_DEFAULTS, BatchOptions, RecordColumns

__all__ = ["encode", "encode_many", "rows_that_fit"]

def encode(
    columns: RecordColumns,
    start: int,
    stop: int,
    options: BatchOptions = BATCH_DEFAULTS,
    *,
    selection: Buffer | None = None,
) -> bytearray:
    """One batch of at least one record, ready to send."""

def encode_many(
    columns: RecordColumns,
    start: int,
    stop: int,
    options: BatchOptions = BATCH_DEFAULTS,
    *,
    size_max: int,
    selection: Buffer | None = None,
) -> list[tuple[bytearray, int]]:
    """(batch, rows) until the rows are used up; each at most `size_max` bytes uncompressed.

    A batch holds at least one record, however large. Offsets and sequences go on from batch to
    batch.
    """

def rows_that_fit(
    columns: RecordColumns,
    start: int,
    stop: int,
    *,
    size_max: int,
    selection: Buffer | None = None,
) -> int:
    """How many rows from `start` make a batch of at most `size_max` bytes uncompressed.

    At least 1, or 0 when there is no row.
    """
