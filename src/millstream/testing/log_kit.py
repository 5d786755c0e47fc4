"""A log opened on any disk without a broker, for tests, simulation and benchmarks."""

from array import array
from dataclasses import replace
from typing import NamedTuple

from millstream.kernels import batches
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET,
    POSITION,
    PRODUCER_ID,
    ROW_FIELDS,
    SIZE,
)
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.model.limits import KIB
from millstream.runtime.clock import Clock
from millstream.runtime.disk import Disk
from millstream.storage.config import LogConfig
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.log.base import LogContext
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.storage.recovery.loader import LoadReport, load_log
from millstream.storage.segments.batch_attributes import CONTROL_BIT, TRANSACTIONAL_BIT
from millstream.storage.segments.files import OpenFiles
from millstream.storage.segments.sparse_index import IndexCache
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.testing.record_batches import PlainRecord, read_records

PARTITION = TopicPartition("events", 0)
SMALL_SEGMENTS = LogConfig(
    segment_bytes=2 * KIB, index_interval_bytes=256, file_delete_delay_ms=0, retention_ms=-1
)
"""Rolls and index entries every few batches."""
COMPACTED = replace(
    SMALL_SEGMENTS, cleanup_compact=True, cleanup_delete=False, min_cleanable_dirty_ratio=0.0
)
"""The same for a compacted topic that is cleaned whenever there is anything to clean."""


class OpenedLog(NamedTuple):
    """A log with what was opened for it."""

    log: Log
    owner: LogDirectory
    report: LoadReport

    def close(self) -> None:
        """Stop cleanly; the log's data is durable and its state saved."""
        self.log.close()
        self.owner.close()

    def abandon(self) -> None:
        """Stop as a killed process does, but give back the lock and the descriptors."""
        self.log.release()
        self.owner.close()


def open_log(
    disk: Disk,
    clock: Clock,
    config: LogConfig = SMALL_SEGMENTS,
    *,
    root: str = "/data",
    is_clean: bool = False,
    partition: TopicPartition = PARTITION,
    topic_id: TopicId | None = None,
) -> OpenedLog:
    """Open the partition under `root` as the log manager would."""
    owner = LogDirectory(disk, root)
    owner.open()
    context = LogContext(
        partition,
        topic_id,
        owner,
        f"{root}/{partition}",
        OpenFiles(disk, open_max=4),
        IndexCache(bytes_max=4 * KIB),
        clock,
    )
    report = LoadReport()
    return OpenedLog(load_log(context, config, is_clean=is_clean, report=report), owner, report)


def read_all(
    log: Log,
    *,
    start: Offset | None = None,
    isolation: Isolation = Isolation.LOG_END,
    size_max: int = 700,
) -> list[PlainRecord]:
    """Every record from `start` on, slice by slice as a client would.

    With COMMITTED, aborted records and markers are left out, as a consumer does.
    """
    offset = log.log_start if start is None else start
    found: list[PlainRecord] = []
    while True:
        result = log.read(offset, size_max=size_max, isolation=isolation)
        data = result.data.read()
        rows, _, _ = batches.walk(data, 0, len(data), check_crc=True, size_max=len(data) + 1)
        if not rows:
            return found
        for row in range(0, len(rows), ROW_FIELDS):
            if isolation is Isolation.COMMITTED and _is_hidden(rows, row, result.aborted):
                continue
            batch = data[rows[row + POSITION] : rows[row + POSITION] + rows[row + SIZE]]
            found += [record for record in read_records(batch) if record.offset >= offset]
        offset = Offset(rows[LAST_OFFSET - ROW_FIELDS] + 1)


def _is_hidden(rows: "array[int]", row: int, aborted: list[AbortedTransaction]) -> bool:
    """What a read_committed consumer skips: markers and what an aborted transaction wrote."""
    attributes = rows[row + ATTRIBUTES]
    if attributes & CONTROL_BIT:
        return True
    return bool(attributes & TRANSACTIONAL_BIT) and any(
        one.producer_id == rows[row + PRODUCER_ID]
        and one.first_offset <= rows[row + BASE_OFFSET] <= one.last_offset
        for one in aborted
    )
