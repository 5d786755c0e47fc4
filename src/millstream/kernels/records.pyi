"""Single records inside one batch's (decompressed) payload: checked, located, filtered.

A range outside the payload, or spans that are not of it, are the caller's error: ValueError.
"""

from array import array
from typing import Final

from typing_extensions import Buffer

__all__ = [
    "KEY_BYTES",
    "KEY_START",
    "OFFSET_DELTA",
    "SPAN_FIELDS",
    "START",
    "STOP",
    "TIMESTAMP_DELTA",
    "VALUE_BYTES",
    "inspect",
    "locate",
    "retain",
    "seek",
]

SPAN_FIELDS: Final = 7

# Columns of a span. KEY_BYTES and VALUE_BYTES are -1 for null, KEY_START too for a null key.
START: Final = 0
STOP: Final = 1
OFFSET_DELTA: Final = 2
TIMESTAMP_DELTA: Final = 3
KEY_START: Final = 4
KEY_BYTES: Final = 5
VALUE_BYTES: Final = 6

def inspect(
    payload: Buffer, start: int, stop: int, count: int, *, contiguous: bool
) -> tuple[int, int, int, int, int]:
    """(reason, min timestamp delta, max timestamp delta, offset delta of the max, null keys).

    Checks every record: varints of at most 5 and 10 bytes, lengths inside the record and filling
    it exactly, -1 the only negative one (null key, value or header value), header counts against
    the remaining bytes, exactly `count` records and no byte left. `contiguous` requires offset
    deltas 0, 1, 2, ... (a producer's batch); otherwise they must strictly increase from 0 or more
    (a compacted one). The max is the first of equal ones. Where the reason is not 0, and for no
    records at all, the rest is (0, 0, -1, 0).
    """

def seek(
    payload: Buffer,
    start: int,
    stop: int,
    count: int,
    *,
    offset_min: int,
    time_min: int,
) -> tuple[int, int, int, int] | None:
    """The first record whose deltas reach both: (index, position, offset delta, timestamp delta).

    None when none of the first `count` does. Reads no further than that record, needs no memory,
    and lets other threads run. Raises MalformedRecords for one that cannot be read.
    """

def locate(payload: Buffer, start: int, stop: int, count: int) -> array[int]:
    """One span of `SPAN_FIELDS` numbers per record, after the checks of `inspect`.

    Raises MalformedRecords with the position of the wrong record.
    """

def retain(payload: Buffer, spans: array[int], keep: Buffer) -> bytes:
    """The bytes of the records whose flag in `keep` (one byte each) is not zero, joined."""
