"""Record batches v2 walked, checked and stamped in place. One description for both twins.

A walk gives one row of `ROW_FIELDS` int64 numbers per batch, all rows in one flat array.
A range or rows outside the buffer are the caller's error: ValueError.
"""

from array import array
from typing import Final

from typing_extensions import Buffer

__all__ = [
    "ATTRIBUTES",
    "BASE_OFFSET",
    "BASE_SEQUENCE",
    "BASE_TIMESTAMP",
    "HEADER_BYTES",
    "LAST_OFFSET",
    "LEADER_EPOCH",
    "MAX_TIMESTAMP",
    "POSITION",
    "PRODUCER_EPOCH",
    "PRODUCER_ID",
    "RECORD_COUNT",
    "ROW_FIELDS",
    "SIZE",
    "assign_offsets",
    "find_offset",
    "find_timestamp",
    "set_append_time",
    "set_leader_epoch",
    "walk",
]

HEADER_BYTES: Final = 61
ROW_FIELDS: Final = 12

# Columns of a row. LAST_OFFSET is inclusive: base offset + last offset delta.
POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
LEADER_EPOCH: Final = 4
ATTRIBUTES: Final = 5
BASE_TIMESTAMP: Final = 6
MAX_TIMESTAMP: Final = 7
PRODUCER_ID: Final = 8
PRODUCER_EPOCH: Final = 9
BASE_SEQUENCE: Final = 10
RECORD_COUNT: Final = 11

def walk(
    buffer: Buffer, start: int, stop: int, *, check_crc: bool, size_max: int
) -> tuple[array[int], int, int]:
    """Rows of the valid batches in buffer[start:stop], where validity ends, and why (a Reason).

    Stops at the first batch that is short, longer than `size_max`, of another magic, with a bad
    CRC (if `check_crc`), a negative base offset or last offset delta (or both beyond int64
    together), a negative record count or one above last offset delta + 1, or an unknown codec, in
    this order. Reason 0 means every byte was valid. A long CRC is computed without the GIL.
    """

def assign_offsets(buffer: Buffer, rows: array[int], base_offset: int, leader_epoch: int) -> int:
    """Stamp consecutive offsets and the epoch into the walked batches, in place (rows too).

    Returns the offset after the last one. The CRC does not cover these fields. Offsets beyond
    int64 raise MalformedRecords(OFFSETS) and change nothing.
    """

def set_leader_epoch(buffer: Buffer, rows: array[int], leader_epoch: int) -> None:
    """Stamp only the epoch."""

def set_append_time(buffer: Buffer, rows: array[int], timestamp_ms: int) -> None:
    """Mark the batches LogAppendTime with this max timestamp (rows too) and renew their CRCs."""

def find_offset(buffer: Buffer, start: int, stop: int, offset: int) -> tuple[int, int]:
    """(position, size) of the first batch whose last offset is >= `offset`, reading only headers.

    The batch may end beyond `stop`. A negative size means that it was not found: -1 with the
    position of the first incomplete header (it may itself lie beyond `stop`),
    -2 with the position of a malformed header.
    """

def find_timestamp(buffer: Buffer, start: int, stop: int, timestamp_ms: int) -> tuple[int, int]:
    """As `find_offset`, for the first batch whose max timestamp is >= `timestamp_ms`."""
