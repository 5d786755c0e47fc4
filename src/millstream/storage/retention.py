"""Which of a log's oldest segments may be deleted, decided without touching them.

Kafka's rules, in its order: first what lies wholly below the log start, then what exceeds
`retention.bytes`, then what is older than `retention.ms`. Only a prefix of the log is ever
removed, and never anything at or above the high watermark, so that the log start cannot pass it
(I-05).
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from millstream.model.ids import NO_TIMESTAMP, Offset, TimestampMs
from millstream.model.invariant import invariant


class DeletionReason(Enum):
    """Why a segment may be deleted."""

    LOG_START = "below the log start offset"
    SIZE = "log larger than retention.bytes"
    AGE = "older than retention.ms"


class SegmentFacts(NamedTuple):
    """What retention needs to know of a segment."""

    base_offset: Offset
    size_bytes: int
    largest_timestamp_ms: TimestampMs
    """Of its records, -1 when none has one."""


ModifiedMs = Callable[[Offset], int | None]
"""When the file of the segment at that offset was last changed; None if unknown."""


class SegmentAges:
    """Stands in for timestamps in segments whose records have none, or that have no records left.

    As in Kafka such a segment ages from its file's modification time, which compaction passes on;
    where that is unknown, from when it was last seen to have grown, or first seen at all.
    Without either the records would be deleted at once.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[Offset, tuple[int, TimestampMs]] = {}
        """Size and time by base offset."""

    def with_timestamps(
        self, segments: Sequence[SegmentFacts], now_ms: TimestampMs, modified_ms: ModifiedMs
    ) -> list[SegmentFacts]:
        """The same segments, each with the time from which its age is measured."""
        seen: dict[Offset, tuple[int, TimestampMs]] = {}
        facts = []
        for one in segments:
            if one.largest_timestamp_ms == NO_TIMESTAMP:
                known = self._seen.get(one.base_offset)
                if known is None or known[0] != one.size_bytes:
                    since_ms = modified_ms(one.base_offset)
                    known = one.size_bytes, TimestampMs(now_ms if since_ms is None else since_ms)
                seen[one.base_offset] = known
                one = one._replace(largest_timestamp_ms=known[1])
            facts.append(one)
        self._seen = seen
        return facts


class LogFacts(NamedTuple):
    """The log as it stands, segments oldest first, the active one last."""

    segments: Sequence[SegmentFacts]
    log_start: Offset
    high_watermark: Offset
    log_end: Offset


class RetentionRules(NamedTuple):
    """The topic's settings; negative limits mean none."""

    is_delete_enabled: bool
    retention_ms: int
    retention_bytes: int


class RetentionPlan(NamedTuple):
    """What to do: the first `len(reasons)` segments go, after a roll when that is all of them."""

    reasons: list[DeletionReason]
    new_log_start: Offset
    is_roll_needed: bool
    """The active segment goes too: roll first, a log always has a segment."""


_Condition = Callable[[SegmentFacts, Offset], bool]
"""Given a segment and the base offset of what follows it (the log end for the last)."""


def plan_deletion(log: LogFacts, rules: RetentionRules, now_ms: TimestampMs) -> RetentionPlan:
    """The segments to delete now."""
    reasons: list[DeletionReason] = []
    _extend(log, reasons, DeletionReason.LOG_START, _is_below(log))
    if rules.is_delete_enabled and rules.retention_bytes >= 0:
        kept = log.segments[len(reasons) :]
        surplus_bytes = sum(segment.size_bytes for segment in kept) - rules.retention_bytes
        if surplus_bytes >= 0:
            _extend(log, reasons, DeletionReason.SIZE, _Surplus(surplus_bytes))
    if rules.is_delete_enabled and rules.retention_ms >= 0:
        _extend(log, reasons, DeletionReason.AGE, _is_older(now_ms, rules.retention_ms))
    new_log_start = max(log.log_start, _end_of(log, len(reasons) - 1)) if reasons else log.log_start
    invariant(
        not reasons or new_log_start <= log.high_watermark,
        "I-05 retention would move the log start beyond the high watermark",
        log_start=new_log_start,
        high_watermark=log.high_watermark,
    )
    is_roll_needed = bool(reasons) and len(reasons) == len(log.segments)
    return RetentionPlan(reasons, new_log_start, is_roll_needed)


def _extend(
    log: LogFacts, reasons: list[DeletionReason], reason: DeletionReason, condition: _Condition
) -> None:
    """Add segments while the condition holds, from the first that is not yet to go."""
    for number in range(len(reasons), len(log.segments)):
        segment = log.segments[number]
        is_empty_and_active = number == len(log.segments) - 1 and segment.size_bytes == 0
        end_offset = _end_of(log, number)
        if is_empty_and_active or log.high_watermark < end_offset:
            return
        if not condition(segment, end_offset):
            return
        reasons.append(reason)


def _end_of(log: LogFacts, number: int) -> Offset:
    following = number + 1
    return log.segments[following].base_offset if following < len(log.segments) else log.log_end


def _is_below(log: LogFacts) -> _Condition:
    active_base = log.segments[-1].base_offset if log.segments else log.log_end

    def condition(segment: SegmentFacts, end_offset: Offset) -> bool:
        # The active segment stays even when DeleteRecords emptied it: nothing would be gained.
        return segment.base_offset != active_base and end_offset <= log.log_start

    return condition


def _is_older(now_ms: TimestampMs, retention_ms: int) -> _Condition:
    return lambda segment, _end: now_ms - segment.largest_timestamp_ms > retention_ms


class _Surplus:
    """Deletes segments while the surplus covers whole ones."""

    def __init__(self, surplus_bytes: int) -> None:
        self._surplus_bytes = surplus_bytes

    def __call__(self, segment: SegmentFacts, _end_offset: Offset) -> bool:
        if self._surplus_bytes < segment.size_bytes:
            return False
        self._surplus_bytes -= segment.size_bytes
        return True
