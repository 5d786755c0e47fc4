"""How much a micro-batch takes, what it costs in bytes, and how far behind a query is."""

from fractions import Fraction

import pytest

from millstream.model.ids import Offset, TimestampMs, TopicPartition
from millstream.pipelines.admission import (
    Admission,
    AdmissionLimits,
    Backlog,
    TriggerTimes,
    admit,
    offsets_for_bytes,
    rate_limited,
)
from millstream.pipelines.byte_estimate import BYTES_PER_OFFSET_ASSUMED, ByteEstimate, Span
from millstream.pipelines.progress import lag, lag_from_progress

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def at(**offsets: int) -> dict[TopicPartition, Offset]:
    """a0=5 is offset 5 of a-0."""
    return {TopicPartition(key[0], int(key[1:])): Offset(value) for key, value in offsets.items()}


def backlog(
    *, begins: dict[TopicPartition, Offset], latest: dict[TopicPartition, Offset]
) -> Backlog:
    return Backlog(begins=begins, latest=latest)


HUNDRED = backlog(begins=at(a0=0, a1=0), latest=at(a0=90, a1=10))


def decide(
    limits: AdmissionLimits,
    waiting: Backlog = HUNDRED,
    *,
    now: int = 0,
    last: int | None = None,
    estimate: ByteEstimate | None = None,
    is_available_now: bool = False,
) -> Admission:
    times = TriggerTimes(now=TimestampMs(now), last=None if last is None else TimestampMs(last))
    return admit(
        limits,
        waiting,
        times,
        estimate=estimate or ByteEstimate(),
        is_available_now=is_available_now,
    )


def test_without_limits_everything_is_taken() -> None:
    assert decide(AdmissionLimits()) == Admission(ends=at(a0=90, a1=10), last_trigger=None)


def test_the_limit_is_shared_by_backlog() -> None:
    assert decide(AdmissionLimits(max_offsets=10)).ends == at(a0=9, a1=1)


def test_a_small_partition_is_not_starved() -> None:
    lopsided = backlog(begins=at(a0=0, a1=100, b0=5), latest=at(a0=10**6, a1=101, b0=5))
    assert rate_limited(10, lopsided) == at(a0=9, a1=101, b0=5)


def test_a_query_waits_for_the_minimum() -> None:
    limits = AdmissionLimits(min_offsets=101, max_delay_ms=1000)
    waits = decide(limits, now=500, last=0)
    assert waits == Admission(ends=None, last_trigger=TimestampMs(0))
    # Enough came, or enough time went by, or the query has just started.
    enough = AdmissionLimits(min_offsets=100, max_delay_ms=1000)
    assert decide(enough, now=500, last=0).last_trigger == 500
    assert decide(limits, now=1000, last=0) == Admission(ends=HUNDRED.latest, last_trigger=1000)  # type: ignore[arg-type]
    assert decide(limits, now=5, last=None).ends == HUNDRED.latest


def test_minimum_and_maximum_work_together() -> None:
    limits = AdmissionLimits(min_offsets=50, max_offsets=60)
    assert decide(limits, now=1, last=0).ends == at(a0=54, a1=6)


def test_available_now_does_not_wait_for_what_cannot_come() -> None:
    limits = AdmissionLimits(min_offsets=10**6)
    assert decide(limits, now=1, last=0).ends is None
    assert decide(limits, now=1, last=0, is_available_now=True).ends == HUNDRED.latest


def test_bytes_become_offsets_by_the_estimate() -> None:
    estimate = ByteEstimate().observed({A0: Span(10, 1000), A1: Span(10, 10_000)})
    # 90 offsets of 100 bytes and 10 of 1000: 19 000 bytes, of which a tenth is asked for.
    assert offsets_for_bytes(1900, HUNDRED, estimate) == 10
    assert decide(AdmissionLimits(max_bytes=1900), estimate=estimate).ends == at(a0=9, a1=1)
    assert offsets_for_bytes(19_000, HUNDRED, estimate) is None
    assert offsets_for_bytes(1, HUNDRED, estimate) == 1


def test_the_tighter_limit_counts() -> None:
    estimate = ByteEstimate().observed({A0: Span(1, 100), A1: Span(1, 100)})
    for limits in (
        AdmissionLimits(max_bytes=1000, max_offsets=50),
        AdmissionLimits(max_bytes=5000, max_offsets=10),
    ):
        assert decide(limits, estimate=estimate).ends == at(a0=9, a1=1)


def test_what_was_fetched_wins_over_the_whole_log_and_is_forgotten_by_halves() -> None:
    estimate = ByteEstimate().with_log_sizes({A0: Span(1000, 50_000), A1: Span(10, 70)})
    assert estimate.bytes_per_offset(A0) == 50
    estimate = estimate.observed({A0: Span(4, 400)})
    assert estimate.bytes_per_offset(A0) == 100
    assert estimate.observed({A0: Span(2, 800)}).bytes_per_offset(A0) == Fraction(1000, 4)
    # Unknown partitions are taken for average ones.
    assert estimate.bytes_per_offset(B0) == Fraction(400 + 70, 4 + 10)
    assert ByteEstimate().bytes_per_offset(B0) == BYTES_PER_OFFSET_ASSUMED


def test_empty_spans_tell_nothing() -> None:
    estimate = ByteEstimate().with_log_sizes({A0: Span(0, 0)}).observed({A0: Span(5, 0)})
    assert estimate == ByteEstimate()


def test_lag_has_the_connectors_figures() -> None:
    found = lag(at(a0=5, a1=10), at(a0=10, a1=10, b0=4))
    assert found is not None
    assert found.metrics() == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "5",
        "avgOffsetsBehindLatest": "3.0",
    }
    assert lag({}, {}) is None


def test_lag_in_bytes_only_where_it_is_known() -> None:
    estimate = ByteEstimate().observed({A0: Span(2, 300)})
    known = lag(at(a0=5, a1=10), at(a0=10, a1=10), estimate=estimate)
    assert known is not None
    assert known.metrics()["estimatedTotalBytesBehindLatest"] == "750"
    unknown = lag(at(a0=5, a1=9), at(a0=10, a1=10), estimate=estimate)
    assert unknown is not None
    assert unknown.estimated_bytes is None


@pytest.mark.parametrize("latest", [None, "", "null", "None"])
def test_lag_from_progress(latest: str | None) -> None:
    end = '{"a": {"0": 5}, "#millstream {\\"v\\":1}": {}}'
    found = lag_from_progress(end, '{"a":{"0":7}}')
    assert found is not None
    assert found.max_offsets == 2
    assert lag_from_progress(end, latest) is None
    assert lag_from_progress(latest, end) is None
