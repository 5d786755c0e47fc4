"""Plans of micro-batches over any offsets: what is read, how much, and again after a crash."""

import json
from itertools import groupby, pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millstream.model.ids import Offset, TimestampMs, TopicId, TopicPartition
from millstream.pipelines.admission import (
    AdmissionLimits,
    Backlog,
    TriggerTimes,
    offsets_for_bytes,
    rate_limited,
)
from millstream.pipelines.byte_estimate import ByteEstimate, Span
from millstream.pipelines.data_loss import ClusterView
from millstream.pipelines.micro_batch import BatchRules, batch_plan, initial_offset, next_end
from millstream.pipelines.offsets_json import (
    offsets_from_document,
    offsets_from_text,
    partitions_from_text,
    text_from_offsets,
    text_from_partitions,
)
from millstream.pipelines.ranges import OffsetRange, split_ranges
from millstream.pipelines.source_offset import (
    SourceOffset,
    document_from_source_offset,
    source_offset_from_document,
)

TOPICS = st.sampled_from(["a", "b.c", "d-e_f", "0"])
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 12))
OFFSETS = st.one_of(st.integers(0, 40), st.integers(0, 2**62)).map(Offset)
SIZES = st.one_of(st.integers(0, 30), st.integers(0, 10**12))
POSITIONS = st.dictionaries(PARTITIONS, OFFSETS, max_size=12)
TOPIC_IDS = st.integers(0, 2**128 - 1).map(lambda number: TopicId(UUID(int=number)))


@st.composite
def backlogs(draw: st.DrawFn) -> Backlog:
    begins = draw(st.dictionaries(PARTITIONS, OFFSETS, max_size=10))
    latest = {tp: Offset(begin + draw(SIZES)) for tp, begin in begins.items()}
    return Backlog(begins=begins, latest=latest)


@st.composite
def estimates(draw: st.DrawFn) -> ByteEstimate:
    spans = st.builds(Span, st.integers(0, 10**6), st.integers(0, 10**9))
    seen = st.dictionaries(PARTITIONS, spans, max_size=6)
    return ByteEstimate().with_log_sizes(draw(seen)).observed(draw(seen)).observed(draw(seen))


def taken(backlog: Backlog, ends: dict[TopicPartition, Offset]) -> dict[TopicPartition, int]:
    return {tp: ends[tp] - backlog.begins[tp] for tp in backlog.sizes}


# -- ranges ------------------------------------------------------------------------------------


@given(
    positions=st.dictionaries(
        PARTITIONS, st.tuples(st.integers(0, 2**40), st.integers(-3, 5000)), max_size=8
    ),
    min_partitions=st.none() | st.integers(1, 60),
    records_max=st.none() | st.integers(1, 400),
)
def test_split_ranges_cover_exactly_what_was_asked(
    positions: dict[TopicPartition, tuple[int, int]],
    min_partitions: int | None,
    records_max: int | None,
) -> None:
    asked = [
        OffsetRange(*tp, Offset(start), Offset(start + size))
        for tp, (start, size) in sorted(positions.items())
    ]
    pieces = split_ranges(
        asked, min_partitions=min_partitions, max_records_per_partition=records_max
    )
    joined = []
    for _, group in groupby(pieces, key=lambda piece: piece.topic_partition):
        run = list(group)
        assert all(left.end == right.start for left, right in pairwise(run))
        joined.append(run[0]._replace(end=run[-1].end))
    assert joined == [one for one in asked if one.size > 0]
    assert all(piece.size > 0 for piece in pieces)
    if records_max is not None:
        assert all(piece.size <= records_max for piece in pieces)
    if min_partitions is None and records_max is None:
        assert len(pieces) == len(joined)


# -- how much ----------------------------------------------------------------------------------


@given(backlog=backlogs(), offsets_max=st.integers(1, 2**62))
def test_rate_limit_bounds_the_batch_and_starves_nobody(backlog: Backlog, offsets_max: int) -> None:
    sizes = backlog.sizes
    ends = rate_limited(offsets_max, backlog)
    counts = taken(backlog, ends)
    assert all(1 <= counts[tp] <= size for tp, size in sizes.items())
    assert all(ends[tp] == backlog.latest[tp] for tp in ends if tp not in sizes)
    small = [tp for tp, size in sizes.items() if offsets_max * size < backlog.size]
    # A share is computed in floating point, whose error grows with the number.
    slack = 1 + offsets_max // 2**48
    assert sum(counts.values()) <= offsets_max + len(small) + slack


@given(backlog=backlogs(), limits=st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)))
def test_more_is_never_less(backlog: Backlog, limits: tuple[int, int]) -> None:
    less, more = limits[0], sum(limits)
    first, second = rate_limited(less, backlog), rate_limited(more, backlog)
    assert all(first[tp] <= second[tp] for tp in first)


@given(backlog=backlogs(), estimate=estimates(), bytes_max=st.integers(1, 10**12))
def test_bytes_of_a_batch_stay_below_the_limit_as_estimated(
    backlog: Backlog, estimate: ByteEstimate, bytes_max: int
) -> None:
    sizes = backlog.sizes
    weight = {tp: estimate.bytes_per_offset(tp) for tp in sizes}
    offsets_max = offsets_for_bytes(bytes_max, backlog, estimate)
    total = sum(weight[tp] * size for tp, size in sizes.items())
    if offsets_max is None:
        assert total <= bytes_max
        return
    assert total > bytes_max
    counts = taken(backlog, rate_limited(offsets_max, backlog))
    # At least one offset of each; beyond that the limit holds, but for rounding.
    above_one = sum(weight[tp] * (count - 1) for tp, count in counts.items())
    assert above_one <= bytes_max * 1.000001


@given(
    backlog=backlogs(),
    limits=st.builds(AdmissionLimits, max_offsets=st.none() | st.integers(1, 50)),
)
def test_a_query_reads_everything_in_bounded_steps(
    backlog: Backlog, limits: AdmissionLimits
) -> None:
    """AvailableNow over a fixed end: no offset twice, none left, and it ends."""
    small = {tp: Offset(min(end, backlog.begins[tp] + 60)) for tp, end in backlog.latest.items()}
    view = ClusterView(earliest=backlog.begins, latest=small)
    start = initial_offset(backlog.begins, view)
    rules = BatchRules(limits=limits, is_available_now=True)
    read: dict[TopicPartition, int] = dict(backlog.begins)
    for _ in range(60 * max(len(small), 1) + 2):
        end = next_end(
            start, view, rules, TriggerTimes(now=TimestampMs(0)), estimate=ByteEstimate()
        ).offset
        if end is start:
            break
        for piece in batch_plan(start, end):
            assert piece.start == read[piece.topic_partition]
            read[piece.topic_partition] = piece.end
        start = end
    assert read == small


# -- JSON --------------------------------------------------------------------------------------


@given(POSITIONS)
def test_offsets_survive_their_text(positions: dict[TopicPartition, Offset]) -> None:
    text = text_from_offsets(positions)
    assert offsets_from_text(text) == positions
    assert offsets_from_document(json.loads(text)) == positions


@given(st.frozensets(PARTITIONS))
def test_partitions_survive_their_text(partitions: frozenset[TopicPartition]) -> None:
    assert partitions_from_text(text_from_partitions(partitions)) == partitions


@given(
    st.builds(
        SourceOffset,
        positions=POSITIONS,
        begins=POSITIONS,
        topic_ids=st.dictionaries(TOPICS, TOPIC_IDS),
        is_initial=st.booleans(),
    )
)
def test_source_offsets_survive_the_checkpoint(offset: SourceOffset) -> None:
    document = json.loads(json.dumps(document_from_source_offset(offset)))
    assert source_offset_from_document(document) == offset
    # The connector sees the positions, and a topic without partitions.
    assert offsets_from_document(document) == offset.positions


# -- replay ------------------------------------------------------------------------------------


@given(
    backlog=backlogs(),
    moved=st.integers(-50, 10**9),
    added=st.dictionaries(PARTITIONS, OFFSETS, max_size=3),
    offsets_max=st.none() | st.integers(1, 1000),
    min_partitions=st.none() | st.integers(1, 20),
)
def test_a_replayed_batch_has_the_same_ranges(
    backlog: Backlog,
    moved: int,
    added: dict[TopicPartition, Offset],
    offsets_max: int | None,
    min_partitions: int | None,
) -> None:
    """Batch 0 with partitions that appeared after the start was resolved.

    When it is replayed, `startingOffsets` resolves elsewhere: the topic has grown, or was cut.
    """
    view = ClusterView(earliest={**added, **backlog.begins}, latest={**added, **backlog.latest})
    rules = BatchRules(limits=AdmissionLimits(max_offsets=offsets_max), fail_on_data_loss=False)
    start = initial_offset(backlog.begins, view)
    now = TriggerTimes(now=TimestampMs(0))
    end = next_end(start, view, rules, now, estimate=ByteEstimate()).offset
    first = batch_plan(start, end, min_partitions=min_partitions)
    stored = source_offset_from_document(json.loads(json.dumps(document_from_source_offset(end))))
    resolved = {tp: Offset(max(at + moved, 0)) for tp, at in view.latest.items()}
    again = initial_offset(resolved, view)
    assert batch_plan(again, stored, min_partitions=min_partitions) == first
