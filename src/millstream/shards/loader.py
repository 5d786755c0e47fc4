"""Reads a partition of an internal topic into its machine, in steps."""

from array import array
from collections.abc import Iterator
from typing import Any, Final

from millstream.kernels.batches import (
    LAST_OFFSET,
    POSITION,
    RECORD_COUNT,
    ROW_FIELDS,
    SIZE,
    walk,
)
from millstream.model.errors import CorruptRecords
from millstream.model.ids import Offset
from millstream.runtime.scheduler import StepGenerator
from millstream.shards.led_shard import LedShard, Phase
from millstream.storage.log.reader import Isolation, ReadSlice
from millstream.storage.ports import PartitionLog

RECORDS_PER_STEP: Final = 500
"""One to two milliseconds; others are served between two steps. A batch is not split."""
_ANY_SIZE: Final = 2**31 - 1


def load_steps(led: LedShard[Any], *, size_max: int) -> StepGenerator[int]:
    """Read everything up to the current log end; return the number of records.

    Ends early when the shard is dropped. Raises OperatingError and MalformedRecords.
    """
    log = led.log
    end, offset, count = log.log_end, log.log_start, 0
    while offset < end:
        records = yield from _read_steps(log, offset, size_max)
        rows, _, _ = walk(records, 0, len(records), check_crc=True, size_max=_ANY_SIZE)
        if not rows:
            raise CorruptRecords(f"{log.partition}: no batch can be read at offset {offset}")
        for start, stop, contained in _step_ranges(rows):
            if led.phase is Phase.DROPPED:
                return count
            # So that committed offsets are stored directly: a million changes that wait for the
            # high watermark take twice the time, most of it for garbage collection.
            led.commit_to(log.high_watermark)
            led.machine.load(records[start:stop])
            count += contained
            yield None
        offset = Offset(rows[LAST_OFFSET - ROW_FIELDS] + 1)
    led.load_end = end
    return count


def _read_steps(log: PartitionLog, offset: Offset, size_max: int) -> StepGenerator[memoryview]:
    data: ReadSlice = log.read(offset, size_max=size_max, isolation=Isolation.LOG_END).data
    if data.file is None:
        return memoryview(data.raw or b"")
    file = data.file
    file.pin()
    try:
        records: bytes = yield data.read
    finally:
        file.unpin()
    return memoryview(records)


def _step_ranges(rows: "array[int]") -> Iterator[tuple[int, int, int]]:
    """Start and end position of the batches of each step, and how many records they have."""
    start, count = rows[POSITION], 0
    for at in range(0, len(rows), ROW_FIELDS):
        count += rows[at + RECORD_COUNT]
        stop = rows[at + POSITION] + rows[at + SIZE]
        if count >= RECORDS_PER_STEP or at + ROW_FIELDS == len(rows):
            yield start, stop, count
            start, count = stop, 0
