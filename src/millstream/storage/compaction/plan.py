"""Which part of a log is dirty, and whether it is large or old enough to be cleaned now.

Kafka's rules: never the active segment, nothing at or above the last stable offset (so no record
whose transaction is undecided or that a new leader may lack), nothing younger than
`min.compaction.lag.ms`. Ours in addition: nothing above the stored recovery point, which the
cleaner has moved up first where only that is missing (`recovery_points`). A cleaned segment is
trusted after a crash, so what it replaces must have been trusted too; and a recovery that replayed
thinned-out segments would not find all producers and epochs in them any more.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millstream.model.ids import NO_TIMESTAMP, Offset, TimestampMs
from millstream.model.invariant import invariant
from millstream.storage.config import FOREVER
from millstream.storage.log.log import Log


class SegmentFacts(NamedTuple):
    """What the plan needs to know of a closed segment."""

    base_offset: Offset
    size_bytes: int
    first_timestamp_ms: TimestampMs = NO_TIMESTAMP
    largest_timestamp_ms: TimestampMs = NO_TIMESTAMP


class LogFacts(NamedTuple):
    """The log as it stands."""

    closed: Sequence[SegmentFacts]
    """Oldest first."""
    active_base: Offset
    log_start: Offset
    limit: Offset
    """The last stable offset or, to clean now, the stored recovery point if that is lower."""
    first_dirty_offset: Offset
    """Where the last cleaning ended; all records below it were compared with each other."""


class CleaningRules(NamedTuple):
    """The topic's settings."""

    dirty_ratio_min: float
    lag_min_ms: int
    lag_max_ms: int


class DirtyRange(NamedTuple):
    """The dirty part [first_dirty_offset, end_offset) in whole segments, and its size."""

    first_dirty_offset: Offset
    end_offset: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Something in it has waited longer than `max.compaction.lag.ms`."""

    @property
    def ratio(self) -> float:
        """The share of the dirty part in all that a cleaning would read."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def facts_of(log: Log, *, is_trusted_only: bool) -> LogFacts:
    """Collect the facts; timestamps only where a rule needs them, they cost a read.

    With `is_trusted_only` only of what can be cleaned at once, else also of what must be flushed.
    """
    config = log.config
    first_dirty_offset = max(log.first_dirty_offset, log.log_start)
    wants_first = config.max_compaction_lag_ms < FOREVER
    wants_largest = config.min_compaction_lag_ms > 0
    closed = []
    for segment in log.segments.closed:
        facts = SegmentFacts(segment.base_offset, segment.size_bytes)
        end = log.segments.end_of(segment)
        if end is not None and end > first_dirty_offset:
            if wants_first:
                first = segment.rolling_timestamp()
                facts = facts._replace(first_timestamp_ms=NO_TIMESTAMP if first is None else first)
            if wants_largest:
                largest = segment.largest_timestamp().timestamp_ms
                facts = facts._replace(largest_timestamp_ms=largest)
        closed.append(facts)
    limit = log.last_stable_offset
    if is_trusted_only:
        limit = min(limit, log.trusted_end)
    return LogFacts(
        closed, log.segments.active.base_offset, log.log_start, limit, first_dirty_offset
    )


def rules_of(log: Log) -> CleaningRules:
    config = log.config
    return CleaningRules(
        dirty_ratio_min=config.min_cleanable_dirty_ratio,
        lag_min_ms=max(0, config.min_compaction_lag_ms),
        lag_max_ms=max(0, config.max_compaction_lag_ms),
    )


def find_dirty(log: LogFacts, rules: CleaningRules, now_ms: TimestampMs) -> DirtyRange:
    """What a cleaning would work on now."""
    first_dirty_offset = max(log.first_dirty_offset, log.log_start)
    end_offset = first_dirty_offset
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for number, segment in enumerate(log.closed):
        end = log.closed[number + 1].base_offset if number + 1 < len(log.closed) else None
        end = log.active_base if end is None else end
        if end <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        if end > log.limit or _is_young(segment, rules, now_ms):
            break
        end_offset = end
        dirty_bytes += segment.size_bytes
        is_overdue |= 0 < segment.first_timestamp_ms < now_ms - rules.lag_max_ms
    invariant(
        first_dirty_offset <= end_offset <= max(first_dirty_offset, log.limit),
        "I-07 cleaning would pass the last stable offset",
        end_offset=end_offset,
        limit=log.limit,
    )
    return DirtyRange(first_dirty_offset, end_offset, clean_bytes, dirty_bytes, is_overdue)


def is_worth_cleaning(dirty: DirtyRange, rules: CleaningRules) -> bool:
    """Whether there is something to do and enough of it, or it has waited too long.

    As in Kafka the ratio must be exceeded: with 1.0 a log is cleaned only for its age, or never.
    """
    if not dirty.dirty_bytes:
        return False
    return dirty.is_overdue or dirty.ratio > rules.dirty_ratio_min


def _is_young(segment: SegmentFacts, rules: CleaningRules, now_ms: TimestampMs) -> bool:
    return rules.lag_min_ms > 0 and segment.largest_timestamp_ms > now_ms - rules.lag_min_ms
