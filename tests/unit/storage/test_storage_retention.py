"""Retention: which leading segments go, by Kafka's rules and order."""

import pytest

from millstream.model.ids import Offset, TimestampMs
from millstream.storage.retention import (
    DeletionReason,
    LogFacts,
    RetentionPlan,
    RetentionRules,
    SegmentFacts,
    plan_deletion,
)

NOW = TimestampMs(1_000_000)
LOG_START, SIZE, AGE = DeletionReason.LOG_START, DeletionReason.SIZE, DeletionReason.AGE


def log_of(
    *segments: tuple[int, int, int], end: int = 40, start: int = 0, hw: int | None = None
) -> LogFacts:
    """Segments as (base offset, size, age of the newest record)."""
    facts = [SegmentFacts(Offset(b), size, TimestampMs(NOW - age)) for b, size, age in segments]
    return LogFacts(facts, Offset(start), Offset(end if hw is None else hw), Offset(end))


def plan(log: LogFacts, *, ms: int = -1, size: int = -1, delete: bool = True) -> RetentionPlan:
    return plan_deletion(log, RetentionRules(delete, ms, size), NOW)


FOUR = ((0, 100, 400), (10, 100, 300), (20, 100, 200), (30, 100, 100))


def test_without_limits_nothing_goes() -> None:
    assert plan(log_of(*FOUR)) == ([], 0, False)


@pytest.mark.parametrize(
    ("retention_ms", "gone"), [(400, 0), (399, 1), (299, 2), (100, 3), (99, 4), (0, 4)]
)
def test_age_must_exceed_the_limit(retention_ms: int, gone: int) -> None:
    found = plan(log_of(*FOUR), ms=retention_ms)
    assert found.reasons == [AGE] * gone
    assert found.new_log_start == gone * 10
    assert found.is_roll_needed == (gone == 4)


def test_only_a_prefix_goes_by_age() -> None:
    """A young segment shields older ones behind it: the log has no holes."""
    assert plan(log_of((0, 1, 500), (10, 1, 5), (20, 1, 500)), ms=100).reasons == [AGE]


def test_a_timestamp_in_the_future_keeps_its_segment() -> None:
    assert plan(log_of((0, 1, -50), (10, 1, 500)), ms=0).reasons == []


@pytest.mark.parametrize(
    ("retention_bytes", "gone"),
    [(401, 0), (400, 0), (301, 0), (300, 1), (201, 1), (200, 2), (1, 3), (0, 4)],
)
def test_a_segment_goes_by_size_only_when_the_rest_still_reaches_the_limit(
    retention_bytes: int, gone: int
) -> None:
    found = plan(log_of(*FOUR), size=retention_bytes)
    assert found.reasons == [SIZE] * gone
    assert found.is_roll_needed == (gone == 4)


@pytest.mark.parametrize(("hw", "gone"), [(0, 0), (9, 0), (10, 1), (39, 3), (40, 4)])
def test_nothing_at_or_above_the_high_watermark_goes(hw: int, gone: int) -> None:
    """I-05: the log start never passes the high watermark, whatever the limits say."""
    assert plan(log_of(*FOUR, hw=hw), ms=0).reasons == [AGE] * gone
    assert plan(log_of(*FOUR, hw=hw), size=0).reasons == [SIZE] * gone


@pytest.mark.parametrize(("start", "gone"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (40, 3)])
def test_segments_below_the_log_start_go_but_never_the_active_one(start: int, gone: int) -> None:
    found = plan(log_of(*FOUR, start=start), delete=False)
    assert found.reasons == [LOG_START] * gone
    assert found.new_log_start == start
    assert not found.is_roll_needed


def test_compacted_topics_keep_what_only_size_or_age_would_remove() -> None:
    assert plan(log_of(*FOUR), ms=0, size=0, delete=False).reasons == []


def test_empty_active_segment_stays() -> None:
    log = log_of((0, 100, 500), (40, 0, 500), end=40)
    assert plan(log, ms=0) == ([AGE], 40, False)
    assert plan(log, size=0) == ([SIZE], 40, False)
    assert plan(log_of((40, 0, 500), end=40), ms=0) == ([], 0, False)


def test_rules_follow_each_other_on_what_the_one_before_left() -> None:
    """First the log start, then size of the rest, then age of the rest."""
    found = plan(log_of(*FOUR, start=10), size=200, ms=150)
    assert found.reasons == [LOG_START, SIZE, AGE]
    assert found.new_log_start == 30


def test_log_start_inside_a_deleted_segment_does_not_go_back() -> None:
    found = plan(log_of(*FOUR, start=5), ms=350)
    assert (found.reasons, found.new_log_start) == ([AGE], 10)
