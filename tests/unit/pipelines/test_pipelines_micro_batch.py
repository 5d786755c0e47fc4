"""One micro-batch of the Spark source: where it starts and ends, and again after a crash."""

import json
from dataclasses import replace
from uuid import UUID

import pytest

from millstream.model.ids import Offset, TimestampMs, TopicId, TopicPartition
from millstream.pipelines.admission import AdmissionLimits, TriggerTimes
from millstream.pipelines.bounds import AtOffsets, AtTimestamp, AtTimestamps, Edge, NoMatch
from millstream.pipelines.byte_estimate import ByteEstimate
from millstream.pipelines.data_loss import ClusterView
from millstream.pipelines.errors import DataLost, RangeInvalid
from millstream.pipelines.micro_batch import (
    BatchRules,
    NextEnd,
    batch_plan,
    initial_offset,
    next_end,
    unresolved_partitions,
)
from millstream.pipelines.ranges import OffsetRange, split_ranges
from millstream.pipelines.resolution import batch_ranges, offset_query, resolve_offsets, unmatched
from millstream.pipelines.source_offset import SourceOffset, document_from_source_offset

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
OLD_ID, NEW_ID = TopicId(UUID(int=1)), TopicId(UUID(int=2))
NOW = TriggerTimes(now=TimestampMs(0))
FREE = BatchRules(limits=AdmissionLimits())
LENIENT = replace(FREE, fail_on_data_loss=False)


def at(**offsets: int) -> dict[TopicPartition, Offset]:
    """a0=5 is offset 5 of a-0."""
    return {TopicPartition(key[0], int(key[1:])): Offset(value) for key, value in offsets.items()}


def seen(
    latest: dict[TopicPartition, Offset],
    earliest: dict[TopicPartition, Offset] | None = None,
    topic_id: TopicId = OLD_ID,
) -> ClusterView:
    zeros = dict.fromkeys(latest, Offset(0))
    return ClusterView(
        earliest=zeros if earliest is None else earliest, latest=latest, topic_ids={"a": topic_id}
    )


def step(start: SourceOffset, view: ClusterView, rules: BatchRules = FREE) -> NextEnd:
    return next_end(start, view, rules, NOW, estimate=ByteEstimate())


def ranges(*found: tuple[int, int, int]) -> list[OffsetRange]:
    return [OffsetRange("a", number, Offset(start), Offset(end)) for number, start, end in found]


def test_the_resolved_start_survives_a_replay_of_the_first_batch() -> None:
    """`startingOffsets=latest`: asked again after a crash, latest is elsewhere."""
    start = initial_offset(at(a0=5), seen(at(a0=5)))
    end = step(start, seen(at(a0=9))).offset
    assert end.begins == at(a0=5)
    assert batch_plan(start, end) == ranges((0, 5, 9))
    for other in (7, 9, 30, 0):
        again = initial_offset(at(a0=other), seen(at(a0=30)))
        assert batch_plan(again, end) == ranges((0, 5, 9))


def test_an_empty_first_batch_stays_empty_when_replayed() -> None:
    start = initial_offset(at(a0=5), seen(at(a0=5)))
    end = step(start, seen(at(a0=5))).offset
    assert end.positions == start.positions
    for other in (0, 9):
        assert batch_plan(initial_offset(at(a0=other), seen(at(a0=9))), end) == []
    # And what comes after it begins where it ended.
    assert batch_plan(end, step(end, seen(at(a0=8))).offset) == ranges((0, 5, 8))


def test_later_batches_carry_no_begins() -> None:
    start = SourceOffset(positions=at(a0=5), topic_ids={"a": OLD_ID})
    end = step(start, seen(at(a0=9))).offset
    assert end == SourceOffset(positions=at(a0=9), topic_ids={"a": OLD_ID})


def test_without_news_the_text_does_not_change() -> None:
    """Spark compares texts: extras that come or go would make it run empty batches for ever."""
    first = initial_offset(at(a0=5), seen(at(a0=5)))
    start = step(first, seen(at(a0=9))).offset
    again = step(start, seen(at(a0=9))).offset
    assert again is start
    foreign = SourceOffset(positions=at(a0=9))
    assert step(foreign, seen(at(a0=9))).offset is foreign
    assert json.dumps(document_from_source_offset(again)) == json.dumps(
        document_from_source_offset(start)
    )


def test_a_new_partition_begins_at_earliest_also_when_replayed() -> None:
    start = SourceOffset(positions=at(a0=5))
    end = step(start, seen(at(a0=5, a1=7), at(a0=0, a1=3)), LENIENT).offset
    assert end.begins == at(a1=3)
    assert batch_plan(start, end) == ranges((1, 3, 7))


def test_an_end_of_the_connector_leaves_begins_to_be_looked_up() -> None:
    start, end = SourceOffset(positions=at(a0=5)), SourceOffset(positions=at(a0=6, a1=7))
    assert unresolved_partitions(start, end) == [A1]
    found = batch_plan(start, end, earliest=at(a1=2))
    assert found == ranges((0, 5, 6), (1, 2, 7))
    # Gone meanwhile: what is left is read.
    assert batch_plan(start, end, earliest={}) == ranges((0, 5, 6))


def test_waiting_answers_with_the_start() -> None:
    rules = BatchRules(limits=AdmissionLimits(min_offsets=100, max_delay_ms=1000))
    start = SourceOffset(positions=at(a0=5))
    times = TriggerTimes(now=TimestampMs(10), last=TimestampMs(0))
    found = next_end(start, seen(at(a0=9)), rules, times, estimate=ByteEstimate())
    assert found == NextEnd(offset=start, last_trigger=TimestampMs(0))


def test_lost_data_stops_the_query_before_anything_is_written_down() -> None:
    start = SourceOffset(positions=at(a0=5))
    with pytest.raises(DataLost, match="START_OFFSET_RESET"):
        step(start, seen(at(a0=9), at(a0=7)))
    found = step(start, seen(at(a0=9), at(a0=7)), LENIENT)
    assert len(found.warnings) == 1
    assert batch_plan(start, found.offset) == ranges((0, 7, 9))


def test_a_topic_created_again_is_read_from_its_beginning() -> None:
    start = SourceOffset(positions=at(a0=5), topic_ids={"a": OLD_ID})
    with pytest.raises(DataLost, match="TOPIC_RECREATED"):
        step(start, seen(at(a0=9), topic_id=NEW_ID))
    end = step(start, seen(at(a0=9), topic_id=NEW_ID), LENIENT).offset
    assert batch_plan(start, end) == ranges((0, 0, 9))
    assert end.topic_ids == {"a": NEW_ID}
    assert step(end, seen(at(a0=9), topic_id=NEW_ID)).offset is end


def test_a_cut_partition_goes_on_at_its_end() -> None:
    start = SourceOffset(positions=at(a0=50))
    end = step(start, seen(at(a0=20)), LENIENT).offset
    assert batch_plan(start, end) == []
    assert batch_plan(end, step(end, seen(at(a0=30))).offset) == ranges((0, 20, 30))


def test_deleted_partitions_leave_the_offset() -> None:
    start = SourceOffset(positions=at(a0=5, a1=6))
    end = step(start, seen(at(a0=8)), LENIENT).offset
    assert end.positions == at(a0=8)
    assert batch_plan(start, end) == ranges((0, 5, 8))


# -- ranges ------------------------------------------------------------------------------------


def test_one_task_per_partition_by_default() -> None:
    asked = ranges((0, 0, 100), (1, 5, 5), (2, 7, 8))
    assert split_ranges(asked) == ranges((0, 0, 100), (2, 7, 8))
    assert split_ranges(asked, min_partitions=2) == ranges((0, 0, 100), (2, 7, 8))


def test_large_partitions_are_split() -> None:
    assert split_ranges(ranges((0, 0, 10)), min_partitions=3) == ranges(
        (0, 0, 3), (0, 3, 6), (0, 6, 10)
    )
    assert split_ranges(ranges((0, 0, 10)), max_records_per_partition=4) == ranges(
        (0, 0, 3), (0, 3, 6), (0, 6, 10)
    )


def test_shares_are_rounded_half_up() -> None:
    """3 and 5 of 8 offsets over 4 tasks: 1.5 and 2.5 become 2 and 3."""
    found = split_ranges(ranges((0, 0, 3), (1, 0, 5)), min_partitions=4)
    assert [one.partition for one in found] == [0, 0, 1, 1, 1]


def test_only_the_first_piece_starts_at_earliest() -> None:
    asked = [one._replace(starts_at_earliest=True) for one in ranges((0, 0, 10))]
    pieces = split_ranges(asked, min_partitions=2)
    assert [one.starts_at_earliest for one in pieces] == [True, False]


def test_too_many_tasks_are_refused() -> None:
    with pytest.raises(RangeInvalid, match="maxRecordsPerPartition of 1 would need 1000000 tasks"):
        split_ranges(ranges((0, 0, 10**6)), max_records_per_partition=1)
    with pytest.raises(RangeInvalid, match="minPartitions of 500000"):
        split_ranges(ranges((0, 0, 10**6)), min_partitions=500_000)


# -- from options to offsets -------------------------------------------------------------------


def test_edges_and_times_are_looked_up_for_every_partition() -> None:
    assert offset_query(Edge.EARLIEST, [A0, A1], name="startingOffsets").at_earliest == {A0, A1}
    assert offset_query(Edge.LATEST, [A0], name="endingOffsets").lookups == {A0: -1}
    assert offset_query(AtTimestamp(TimestampMs(9)), [A0], name="startingTimestamp").lookups == {
        A0: 9
    }


def test_given_offsets_are_not_looked_up() -> None:
    asked = offset_query(AtOffsets(at(a0=5, a1=-2)), [A0, A1], name="startingOffsets")
    assert (asked.offsets, asked.lookups) == (at(a0=5), {A1: -2})
    assert resolve_offsets(asked, at(a1=3), latest={}) == at(a0=5, a1=3)


@pytest.mark.parametrize(
    "bound", [AtOffsets(at(a0=5)), AtTimestamps({A0: TimestampMs(5)})], ids=["offsets", "times"]
)
def test_every_partition_must_be_named(bound: AtOffsets | AtTimestamps) -> None:
    with pytest.raises(
        RangeInvalid, match=r"'startingOffsets' must name exactly .* Not named: a-1"
    ):
        offset_query(bound, [A0, A1], name="startingOffsets")
    with pytest.raises(RangeInvalid, match="not read: a-0"):
        offset_query(bound, [], name="startingOffsets")


def test_a_time_that_no_record_reaches() -> None:
    asked = offset_query(AtTimestamp(TimestampMs(9)), [A0, A1], name="startingTimestamp")
    answers = at(a0=4, a1=-1)
    assert unmatched(asked, answers) == [A1]
    assert resolve_offsets(asked, answers, latest=at(a1=8), no_match=NoMatch.LATEST) == at(
        a0=4, a1=8
    )
    with pytest.raises(RangeInvalid, match=r"a-1 at 9.*startingOffsetsByTimestampStrategy"):
        resolve_offsets(asked, answers, latest={}, no_match=NoMatch.ERROR)


def test_ranges_of_a_batch_query() -> None:
    found = batch_ranges(at(a0=1, a1=2), at(a0=1, a1=9), at_earliest={A1})
    assert [(one.partition, one.size, one.starts_at_earliest) for one in found] == [
        (0, 0, False),
        (1, 7, True),
    ]
    with pytest.raises(RangeInvalid, match="a-0 starts at offset 5, after its end 4"):
        batch_ranges(at(a0=5), at(a0=4))
    with pytest.raises(RangeInvalid, match=r"partitions changed.*Only at the end: a-1"):
        batch_ranges(at(a0=5), at(a0=5, a1=5))
