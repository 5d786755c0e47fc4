"""Rows of columns to partitions, as Java's producer chooses them. One description for both twins.

A place is a number for (topic, partition): the partitions of all topics counted through, topic
after topic. A row that has none yet, because it has no key, holds `-1 - topic`. Columns that do
not fit their buffers raise ValueError before a byte outside is read.
"""

from array import array

from typing_extensions import Buffer

from millstream.kernels.column_types import BinaryColumn, RecordColumns
from millstream.kernels.partition_types import Int32Column

__all__ = ["assign", "group", "murmur2", "stick"]

def murmur2(key: Buffer) -> int:
    """The hash of a key, a signed int32, as Kafka's Java client has it."""

def assign(
    rows: int,
    counts: Buffer,
    *,
    topics: Buffer | None = None,
    explicit: Int32Column | None = None,
    keys: BinaryColumn | None = None,
) -> tuple[bytearray, int, int]:
    """(places, rows without one, first row whose partition is not there or -1); places are int32.

    `counts` (int32) are the partitions of each topic, `topics` (int32) the topic of each row: the
    first without. An explicit partition wins; else a key decides; a row with neither has no place.
    After a wrong partition the places are of no use.
    """

def stick(
    places: bytearray,
    columns: RecordColumns,
    *,
    topic: int,
    place: int,
    start: int,
    bytes_max: int,
) -> tuple[int, int]:
    """Give `place` to rows of the topic that have none, from row `start` on.

    Stops behind the row with which they have `bytes_max` bytes (key, value and RECORD_COST each;
    headers are not counted). Returns the row after the last one read, and the bytes.
    """

def group(places: Buffer, rows: int, place_count: int) -> tuple[bytearray, array[int]]:
    """(selection, bounds): the row numbers (int64) of place p are selection[bounds[p]:bounds[p+1]].

    Rows of one place keep their order. A row without a place raises ValueError.
    """
