"""What the Spark source does with a cluster, whoever's it is: the same stories for each.

A story takes a `World` and plays a query trigger by trigger, with the readers that Spark calls.
"""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from kits.spark.source_kit import Triggers, World, numbered, rows_of, values
from millstream.pipelines.errors import DataLost, RangeInvalid
from millstream.pipelines.spark.notices import MillstreamWarning

Story = Callable[[World], None]


def batch_reads_what_is_there(world: World) -> None:
    topic = world.topic(partitions=2)
    world.write(topic, numbered(0, 3))
    world.write(topic, numbered(10, 12), partition=1)
    assert world.batch(subscribe=topic) == [
        *((topic, 0, at, b"%d" % at) for at in range(3)),
        *((topic, 1, at, b"%d" % (10 + at)) for at in range(2)),
    ]


def batch_takes_offsets_of_json(world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    found = world.batch(
        subscribe=topic,
        startingOffsets=f'{{"{topic}":{{"0":2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":5}}}}',
    )
    assert values(found) == numbered(2, 5)
    with pytest.raises(RangeInvalid, match="ends at offset 11, beyond its latest offset 10"):
        world.batch(subscribe=topic, endingOffsets=f'{{"{topic}":{{"0":11}}}}')
    with pytest.raises(RangeInvalid, match="must name exactly the partitions"):
        world.batch(subscribe=topic, startingOffsets='{"other":{"0":2}}')


def batch_takes_times(world: World) -> None:
    topic = world.topic()
    with world.client.column_writer(topic=topic) as writer:
        import pyarrow as pa

        stamps = pa.array([1000, 2000, 3000], pa.timestamp("ms", tz="UTC"))
        writer.write(pa.record_batch({"value": pa.array(numbered(0, 3)), "timestamp": stamps}))
        writer.flush()
    between = world.batch(subscribe=topic, startingTimestamp=1500, endingTimestamp=2500)
    assert values(between) == numbered(1, 2)
    per_partition = f'{{"{topic}":{{"0":2000}}}}'
    assert values(world.batch(subscribe=topic, startingOffsetsByTimestamp=per_partition)) == (
        numbered(1, 3)
    )
    # No record is as late: an end is the latest then, a start is an error unless told otherwise.
    assert values(world.batch(subscribe=topic, endingTimestamp=9000)) == numbered(0, 3)
    with pytest.raises(RangeInvalid, match="no record is that late"):
        world.batch(subscribe=topic, startingTimestamp=9000)
    told = {"startingOffsetsByTimestampStrategy": "latest"}
    assert world.batch(subscribe=topic, startingTimestamp=9000, **told) == []


def topics_are_chosen_by_name_pattern_and_partition(world: World) -> None:
    first, second = world.topic("a", 2), world.topic("b")
    for topic, partition in ((first, 0), (first, 1), (second, 0)):
        world.write(topic, [f"{topic}/{partition}".encode()], partition)
    both = [f"{first}/0".encode(), f"{first}/1".encode(), f"{second}/0".encode()]
    assert values(world.batch(subscribe=f"{first}, {second}")) == both
    assert values(world.batch(subscribePattern=f"{world.prefix}-[ab]$")) == both
    assert values(world.batch(subscribePattern=f"{world.prefix}-a")) == both[:2]
    assert world.batch(subscribePattern="no topic is named so") == []
    assert values(world.batch(assign=f'{{"{first}":[1]}}')) == both[1:2]


def stream_reads_everything_once(world: World) -> None:
    topic = world.topic(partitions=2)
    world.write(topic, numbered(0, 5))
    query = world.stream(subscribe=topic, startingOffsets="earliest")
    assert values(query.next_batch()) == numbered(0, 5)
    assert query.next_batch() is None
    world.write(topic, numbered(5, 7), partition=1)
    assert values(query.next_batch()) == numbered(5, 7)
    world.write(topic, numbered(7, 9))
    query = query.restarted()
    assert values(query.next_batch()) == numbered(7, 9)
    assert query.next_batch() is None
    assert query.reader.reportLatestOffset() == {topic: {"0": 7, "1": 2}}


def first_batch_of_latest_can_be_replayed(world: World) -> None:
    """The start is asked for again, finds a later end, and must not be used."""
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    query = world.stream(subscribe=topic)
    query.start()
    world.write(topic, numbered(3, 6))
    assert values(query.next_batch()) == numbered(3, 6)
    world.write(topic, numbered(6, 9))
    again = world.stream(subscribe=topic)
    _, end = query.batches[0]
    again.batches = [(again.start(), end)]
    assert values(again.replay(0)) == numbered(3, 6)


def empty_first_batch_keeps_its_start(world: World) -> None:
    """Spark runs the first batch of a query even when there is nothing in it."""
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    query = world.stream(subscribe=topic)
    assert query.next_batch() == []
    world.write(topic, numbered(3, 5))
    assert values(query.next_batch()) == numbered(3, 5)


def start_that_cannot_be_found_is_told_by_the_first_trigger(world: World) -> None:
    """But not to a replay, which does not need it."""
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    starts = f'{{"{topic}":{{"0":1}}}}'
    query = world.stream(subscribe=topic, startingOffsets=starts)
    assert values(query.next_batch()) == numbered(1, 3)
    world.add_partitions(topic, 2)
    again = world.stream(subscribe=topic, startingOffsets=starts)
    start = again.start()
    again.batches = [(start, query.batches[0][1])]
    assert values(again.replay(0)) == numbered(1, 3)
    for _ in range(2):
        with pytest.raises(RangeInvalid, match="must name exactly the partitions"):
            again.reader.latestOffset(start, ReadAllAvailable())


def every_batch_is_replayed_as_it_was(world: World) -> None:
    topic = world.topic(partitions=3)
    for partition in range(3):
        world.write(topic, numbered(0, 40), partition)
    limits = {"maxOffsetsPerTrigger": 25, "minPartitions": 7}
    query = world.stream(subscribe=topic, startingOffsets="earliest", **limits)
    seen = query.all_batches()
    assert sum(map(len, seen)) == 120
    world.write(topic, numbered(40, 60), 1)
    world.add_partitions(topic, 5)
    again = query.restarted()
    for index, rows in enumerate(seen):
        plan = [repr(one) for one in query.reader.partitions(*query.batches[index])]
        assert [repr(one) for one in again.reader.partitions(*query.batches[index])] == plan
        assert again.replay(index) == rows


def added_partitions_are_read_from_their_beginning(world: World) -> None:
    topic = world.topic()
    query = world.stream(subscribe=topic)
    query.next_batch()
    world.add_partitions(topic, 3)
    world.write(topic, numbered(0, 4), partition=2)
    assert values(query.next_batch()) == numbered(0, 4)
    assert values(query.restarted().replay(-1)) == numbered(0, 4)


def topics_of_a_pattern_are_found_when_they_come(world: World) -> None:
    query = world.stream(subscribePattern=f"{world.prefix}-.*")
    assert query.next_batch() in (None, [])
    topic = world.topic("late")
    world.write(topic, numbered(0, 2))
    assert values(query.next_batch()) == numbered(0, 2)


def partitions_may_be_taken_for_unchanged(world: World) -> None:
    topic = world.topic()
    kept = world.stream(subscribe=topic, partition__metadata__cache__ttl__ms=3_600_000)
    asked = world.stream(subscribe=topic)
    kept.next_batch(), asked.next_batch()
    world.add_partitions(topic, 2)
    world.write(topic, numbered(0, 2), partition=1)
    assert kept.next_batch() is None
    assert values(asked.next_batch()) == numbered(0, 2)


def limit_in_offsets_is_kept(world: World) -> None:
    topic = world.topic(partitions=2)
    world.write(topic, numbered(0, 90), 0)
    world.write(topic, numbered(90, 120), 1)
    query = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(40)
    sizes = [len(rows) for rows in query.all_batches()]
    assert sum(sizes) == 120
    assert sizes[0] == 40
    assert max(sizes) <= 41
    # Trigger.Once takes everything, whatever the options say.
    once = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    assert len(once.next_batch(ReadAllAvailable()) or ()) == 120


def minimum_waits_and_delay_ends_it(world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 3))
    paced = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    query = world.stream(subscribe=topic, maxTriggerDelay="1h", **paced)
    assert values(query.next_batch()) == numbered(0, 3)  # the first never waits
    world.write(topic, numbered(3, 8))
    assert query.next_batch() is None
    world.write(topic, numbered(8, 13))
    assert values(query.next_batch()) == numbered(3, 13)
    hasty = world.stream(subscribe=topic, maxTriggerDelay="0ms", **paced)
    hasty.next_batch()
    world.write(topic, numbered(13, 14))
    assert values(hasty.next_batch()) == numbered(13, 14)


def limit_in_bytes_is_aimed_at(world: World) -> None:
    """Records of other sizes than the guess, and of two sizes in one topic."""
    topic = world.topic(partitions=2)
    for _ in range(20):
        world.write(topic, [bytes(100)] * 100, 0)
        world.write(topic, [bytes(3000)] * 10, 1)
    limit = 200_000
    query = world.stream(
        subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger=f"{limit // 1000 * 1000}b"
    )
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(limit)
    batches = query.all_batches()
    sizes = [sum(len(value) for value in values(rows)) for rows in batches]
    assert sum(sizes) == 20 * (100 * 100 + 3000 * 10)
    for size in sizes[:-2]:
        assert limit * 0.5 < size < limit * 1.3, sizes


def available_now_ends_where_it_began(world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    paced = {"maxOffsetsPerTrigger": 4, "minOffsetsPerTrigger": 3}
    query = world.stream(subscribe=topic, startingOffsets="earliest", **paced)
    query.reader.prepareForTriggerAvailableNow()
    seen = values(query.next_batch())
    world.write(topic, numbered(10, 20))
    world.add_partitions(topic, 2)
    world.write(topic, [b"new"], partition=1)
    for rows in query.all_batches():
        seen += values(rows)
    assert seen == numbered(0, 10)
    later = query.restarted()
    later.reader.prepareForTriggerAvailableNow()
    found = [row for rows in later.all_batches() for row in rows]
    assert sorted(values(found)) == sorted([*numbered(10, 20), b"new"])


def available_now_notices_a_deleted_topic(world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    query = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    query.reader.prepareForTriggerAvailableNow()
    query.next_batch()
    world.delete(topic)
    with pytest.raises(DataLost, match="PARTITIONS_DELETED"):
        query.next_batch()


# -- lost data


def records_that_aged_out_stop_the_query(world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    query = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    assert values(query.next_batch()) == numbered(0, 3)
    world.delete_before(topic, 6)
    with pytest.raises(DataLost, match=r"KAFKA_DATA_LOSS\.START_OFFSET_RESET.*offset 3.*at 6"):
        query.next_batch()
    lax = query.restarted(failOnDataLoss="false")
    with pytest.warns(MillstreamWarning, match="START_OFFSET_RESET"):
        assert values(lax.next_batch()) == numbered(6, 9)
    assert values(lax.restarted().replay(-1)) == numbered(6, 9)


def records_that_age_out_under_a_task_stop_it(world: World) -> None:
    """The driver planned the batch before; only the task can notice."""
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    query = world.stream(subscribe=topic, startingOffsets="earliest")
    query.next_batch()
    world.delete_before(topic, 6)
    with pytest.raises(DataLost, match=r"COULD_NOT_READ_OFFSET_RANGE.*\[0, 6\)"):
        query.replay(0)
    lax = query.restarted(failOnDataLoss="false")
    with pytest.warns(MillstreamWarning, match=r"\[0, 6\)"):
        assert values(lax.replay(0)) == numbered(6, 10)


def batch_from_earliest_loses_nothing_by_age(world: World) -> None:
    """Whatever is earliest was asked for."""
    topic = world.topic()
    world.write(topic, numbered(0, 10))
    from millstream.pipelines.spark.batch_reader import BatchReader
    from millstream.pipelines.spark.columns import source_schema

    options = world.options(subscribe=topic)
    reader = BatchReader(options, source_schema(options))
    planned = pickle.loads(pickle.dumps(reader.partitions()))
    world.delete_before(topic, 6)
    assert values(rows_of(reader, planned)) == numbered(6, 10)
    named = {"startingOffsets": f'{{"{topic}":{{"0":2}}}}'}
    with pytest.raises(DataLost, match=r"\[2, 6\)"):
        world.batch(subscribe=topic, **named)


def recreated_topic_is_noticed_however_long_it_is(world: World) -> None:
    topic = world.topic()
    world.write(topic, numbered(0, 5))
    query = world.stream(subscribe=topic, startingOffsets="earliest")
    query.next_batch()
    world.recreate(topic)
    world.write(topic, numbered(100, 120))
    with pytest.raises(DataLost, match=rf"TOPIC_RECREATED.*{topic} was deleted and created again"):
        query.next_batch()
    with pytest.raises(DataLost, match="TOPIC_RECREATED"):
        query.replay(0)  # a task of a batch that was planned before
    lax = query.restarted(failOnDataLoss="false")
    with pytest.warns(MillstreamWarning, match="TOPIC_RECREATED"):
        assert values(lax.next_batch()) == numbered(100, 120)


def deleted_topic_stops_the_query(world: World) -> None:
    kept, gone = world.topic("kept"), world.topic("gone")
    for topic in (kept, gone):
        world.write(topic, numbered(0, 2))
    query = world.stream(subscribe=f"{kept},{gone}", startingOffsets="earliest")
    query.next_batch()
    world.delete(gone)
    world.write(kept, numbered(2, 4))
    with pytest.raises(DataLost, match=rf"PARTITIONS_DELETED.*{gone}-0"):
        query.next_batch()
    with pytest.raises(DataLost, match=rf"PARTITIONS_DELETED.*{gone}-0 was deleted"):
        query.replay(0)
    lax = query.restarted(failOnDataLoss="false")
    with pytest.warns(MillstreamWarning, match="PARTITIONS_DELETED"):
        assert values(lax.next_batch()) == numbered(2, 4)
    world.write(kept, numbered(4, 5))
    assert values(lax.next_batch()) == numbered(4, 5)


def range_that_the_log_does_not_reach_is_lost(world: World) -> None:
    """A log that was cut: the task waits for `pollTimeoutMs`, then says what is missing."""
    topic = world.topic()
    world.write(topic, numbered(0, 5))
    query = world.stream(
        subscribe=topic, startingOffsets="earliest", kafkaConsumer__pollTimeoutMs=300
    )
    query.next_batch()
    start, end = query.batches[0]
    query.batches.append((start, {**end, topic: {"0": 9}}))
    with pytest.raises(DataLost, match=r"\[5, 9\).*the partition has \[0, 5\)"):
        query.replay(-1)
    lax = query.restarted(failOnDataLoss="false")
    with pytest.warns(MillstreamWarning, match="COULD_NOT_READ_OFFSET_RANGE"):
        assert values(lax.replay(-1)) == numbered(0, 5)


def unknown_topic_is_told(world: World) -> None:
    missing = f"{world.prefix}-missing"
    with pytest.raises(RangeInvalid, match=f"unknown topic {missing}"):
        world.batch(subscribe=missing)
    query = world.stream(subscribe=missing)
    with pytest.raises(RangeInvalid, match=f"unknown topic {missing}"):
        query.next_batch()


# -- moving a query


def query_of_the_connector_goes_on(world: World) -> None:
    """Its checkpoint has plain offsets, and partitions that were added without their begin."""
    topic = world.topic(partitions=2)
    world.write(topic, numbered(0, 5), 0)
    world.write(topic, numbered(5, 8), 1)
    theirs: dict[str, Any] = {topic: {"0": 2}}
    query = Triggers(world.options(subscribe=topic), theirs)
    query.batches = [(theirs, {topic: {"0": 4, "1": 2}})]
    assert values(query.replay(0)) == [*numbered(2, 4), *numbered(5, 7)]
    assert values(query.next_batch()) == [*numbered(2, 5), *numbered(5, 8)]


STORIES: tuple[Story, ...] = (
    batch_reads_what_is_there,
    batch_takes_offsets_of_json,
    batch_takes_times,
    topics_are_chosen_by_name_pattern_and_partition,
    stream_reads_everything_once,
    first_batch_of_latest_can_be_replayed,
    empty_first_batch_keeps_its_start,
    start_that_cannot_be_found_is_told_by_the_first_trigger,
    every_batch_is_replayed_as_it_was,
    added_partitions_are_read_from_their_beginning,
    topics_of_a_pattern_are_found_when_they_come,
    partitions_may_be_taken_for_unchanged,
    limit_in_offsets_is_kept,
    minimum_waits_and_delay_ends_it,
    limit_in_bytes_is_aimed_at,
    available_now_ends_where_it_began,
    available_now_notices_a_deleted_topic,
    records_that_aged_out_stop_the_query,
    records_that_age_out_under_a_task_stop_it,
    batch_from_earliest_loses_nothing_by_age,
    recreated_topic_is_noticed_however_long_it_is,
    deleted_topic_stops_the_query,
    range_that_the_log_does_not_reach_is_lost,
    unknown_topic_is_told,
    query_of_the_connector_goes_on,
)
