"""Single records inside one batch's (decompressed) payload: checked, located, filtered."""

from array import array
from typing import Final

from typing_extensions import Buffer

__all__ = [
    "KEY_BYTES", "KEY_START", "OFFSET_DELTA", "SPAN_FIELDS", "START", "STOP", "TIMESTAMP_DELTA",
    "VALUE_BYTES", "inspect", "locate", "retain",
]

SPAN_FIELDS: Final = 7

# Columns of a span. KEY_BYTES and VALUE_BYTES are -1 for null.
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

    Checks every record: varints canonical in length (<= 5 and <= 10 bytes), lengths inside the
    payload, header counts against the remaining bytes, exactly `count` records and no byte left.
    `contiguous` asks for offset deltas 0, 1, 2, ... (a producer's batch); otherwise they must
    strictly increase (a compacted one).
    """

def locate(payload: Buffer, start: int, stop: int, count: int) -> array[int]:
    """One span of `SPAN_FIELDS` numbers per record. Raises MalformedRecords."""

def retain(payload: Buffer, spans: array[int], keep: Buffer) -> bytes:
    """The bytes of the records whose flag in `keep` (one byte each) is not zero, joined."""
