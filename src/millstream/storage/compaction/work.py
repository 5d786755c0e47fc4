"""What the cleaner calls: whether a log is to be cleaned, and the construction of a cleaning.

A separate module because it loads all of compaction: see `cleaner`.
"""

from collections.abc import Callable
from typing import NamedTuple

from millstream.model.ids import Offset, ProducerId, TimestampMs, TopicPartition
from millstream.model.invariant import invariant
from millstream.runtime.background import Background
from millstream.storage import names
from millstream.storage.compaction.batch_filter import LastRecord
from millstream.storage.compaction.job import CleaningInput, CleaningJob, CleaningStats
from millstream.storage.compaction.log_cleaning import (
    CORRUPT_ERRORS,
    Cleaning,
    CleaningEnd,
    CleaningReport,
)
from millstream.storage.compaction.plan import (
    DirtyRange,
    facts_of,
    find_dirty,
    is_worth_cleaning,
    rules_of,
)
from millstream.storage.compaction.source import OutputLimits, Pacing, Source
from millstream.storage.log.log import Log
from millstream.storage.throttle import CancelFlag, Throttle

__all__ = ["CORRUPT_ERRORS", "CleaningResources", "corrupt", "find_cleanable", "make_cleaning"]


class CleaningResources(NamedTuple):
    """What a cleaning may use."""

    throttle: Throttle
    background: Background
    key_map_bytes: int
    hash_key: bytes
    now_ms: TimestampMs


def find_cleanable(
    log: Log, now_ms: TimestampMs, *, is_trusted_only: bool = True
) -> DirtyRange | None:
    """The part of the log to clean, if it is large enough; raises OSError or one of CORRUPT_ERRORS.

    What is not trusted has to be flushed and checkpointed before it is cleaned.
    """
    rules = rules_of(log)
    dirty = find_dirty(facts_of(log, is_trusted_only=is_trusted_only), rules, now_ms)
    return dirty if is_worth_cleaning(dirty, rules) else None


def corrupt(partition: TopicPartition, reason: str) -> CleaningReport:
    """The report for a log whose dirty part cannot be determined."""
    return CleaningReport(partition, CleaningEnd.CORRUPT, CleaningStats(), reason)


def make_cleaning(
    log: Log,
    dirty: DirtyRange,
    resources: CleaningResources,
    ended: Callable[[CleaningReport], None],
) -> Cleaning:
    """The cleaning, not started."""
    invariant(
        dirty.end_offset <= max(dirty.first_dirty_offset, log.trusted_end),
        "I-11 a cleaning of what a start after a crash would not trust",
        partition=log.partition,
        end_offset=dirty.end_offset,
        trusted_end=log.trusted_end,
    )
    cancel = CancelFlag()
    job = CleaningJob(_input(log, dirty, resources), Pacing(resources.throttle, cancel))
    return Cleaning(log, job, cancel, resources.background, ended)


def _input(log: Log, dirty: DirtyRange, resources: CleaningResources) -> CleaningInput:
    config = log.config
    level = config.compression_level
    levels = {int(config.compression): level} if config.compression and level is not None else {}
    return CleaningInput(
        disk=log.owner.disk,
        directory=log.context.directory,
        sources=_sources(log, dirty.end_offset),
        first_dirty_offset=dirty.first_dirty_offset,
        txn_index_paths=[segment.path(names.TXN_INDEX) for segment in log.segments],
        last_records=_last_records(log),
        now_ms=resources.now_ms,
        delete_retention_ms=max(0, config.delete_retention_ms),
        limits=OutputLimits(
            config.segment_bytes, config.segment_index_bytes, config.index_interval_bytes
        ),
        decompressed_bytes_max=config.decompressed_batch_bytes_max,
        compression_levels=levels,
        key_map_bytes=resources.key_map_bytes,
        hash_key=resources.hash_key,
    )


def _sources(log: Log, end_offset: Offset) -> list[Source]:
    sources = []
    for segment in log.segments.closed:
        end = log.segments.end_of(segment)
        if end is not None and end <= end_offset:
            path = segment.path(names.LOG)
            sources.append(Source(segment.base_offset, end, segment.size_bytes, path))
    return sources


def _last_records(log: Log) -> dict[ProducerId, LastRecord]:
    return {
        entry.producer_id: LastRecord(entry.last_offset, entry.epoch)
        for entry in log.producers.states.entries()
    }
