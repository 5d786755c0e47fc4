"""Rows of columns to partitions, as Java's producer chooses them. One description for both twins.

A target is the number of a (topic, partition): the partitions of all topics are numbered
consecutively, topic after topic. A row without a target yet, because it has no key, holds
`-1 - topic`. Columns that do
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
    """(targets, rows without one, first row with an unknown partition or -1); targets are int32.

    `counts` (int32) are the partitions of each topic, `topics` (int32) the topic of each row: the
    first without. An explicit partition wins; else a key decides; a row with neither has no target.
    After a wrong partition the targets are incomplete.
    """

def stick(
    targets: bytearray,
    columns: RecordColumns,
    *,
    topic: int,
    target: int,
    start: int,
    bytes_max: int,
) -> tuple[int, int]:
    """Give `target` to rows of the topic that have none, from row `start` on.

    Stops behind the row with which they have `bytes_max` bytes (key, value and RECORD_COST each;
    headers are not counted). Returns the row after the last one read, and the bytes.
    """

def group(targets: Buffer, rows: int, target_count: int) -> tuple[bytearray, array[int]]:
    """(selection, bounds): target t has the row numbers (int64) selection[bounds[t]:bounds[t+1]].

    Rows of one target keep their order. A row without a target raises ValueError.
    """
