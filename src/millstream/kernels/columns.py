"""Many record batches into one set of Arrow-shaped columns, and columns into batches.

The one place to import from; the kernels are `column_decode` and `column_encode`.
"""

from millstream.kernels.column_decode import decode
from millstream.kernels.column_encode import encode, encode_many, rows_that_fit
from millstream.kernels.column_types import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_DEFAULTS,
    BATCH_FIELDS,
    COLUMN_BYTES_MAX,
    DECODE_DEFAULTS,
    DECODE_ROW_COST,
    FLAG_CONTROL,
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
    LAST_OFFSET,
    LEADER_EPOCH,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    ROW_START,
    ROW_STOP,
    BatchOptions,
    BinaryColumn,
    Decoded,
    DecodeOptions,
    HeaderColumn,
    RecordColumns,
)

__all__ = [
    "ATTRIBUTES",
    "BASE_OFFSET",
    "BATCH_DEFAULTS",
    "BATCH_FIELDS",
    "COLUMN_BYTES_MAX",
    "DECODE_DEFAULTS",
    "DECODE_ROW_COST",
    "FLAG_CONTROL",
    "FLAG_LOG_APPEND_TIME",
    "FLAG_TRANSACTIONAL",
    "LAST_OFFSET",
    "LEADER_EPOCH",
    "PRODUCER_EPOCH",
    "PRODUCER_ID",
    "ROW_START",
    "ROW_STOP",
    "BatchOptions",
    "BinaryColumn",
    "DecodeOptions",
    "Decoded",
    "HeaderColumn",
    "RecordColumns",
    "decode",
    "encode",
    "encode_many",
    "rows_that_fit",
]
