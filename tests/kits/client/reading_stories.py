"""What reading by offset does with a cluster, whoever's it is: the same stories for every target.

The oracle is librdkafka: what confluent-kafka reads of a topic is what we must read.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ForeignPartition

from kits.client.our_client import NOW_MS
from kits.client.our_client import created as created_with
from kits.process.waiting_for import until
from millstream.client.admin import CreatedTopic
from millstream.client.blocking import BlockingClient
from millstream.client.errors import (
    ConfigInvalid,
    DeadlinePassed,
    OffsetOutOfRange,
    TopicRecreated,
    TopicUnknown,
)
from millstream.client.fetch.arrow import DEFAULT_COLUMNS, FIELDS
from millstream.client.fetch.chunks import ReadRange
from millstream.client.fetch.options import ReadOptions
from millstream.client.offsets import EARLIEST, LATEST
from millstream.model.ids import Offset, TopicPartition

Story = Callable[[BlockingClient, str], None]
ALL = tuple(FIELDS)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Row(NamedTuple):
    """A record as any reader sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...] | None


def created(client: BlockingClient, name: str, partitions: int = 1, **configs: str) -> CreatedTopic:
    """Records have old times here, and must not be removed for them."""
    return created_with(client, name, partitions, **{"retention_ms": "-1"} | configs)


def servers(client: BlockingClient) -> str:
    return str(client.settings.bootstrap_servers[0])


def produce(
    client: BlockingClient, to: TopicPartition, rng: random.Random, count: int, **configs: Any
) -> None:
    """Random records with nulls, headers and times, in batches of the producer's choice."""
    producer = Producer(
        {"bootstrap.servers": servers(client), "linger.ms": 5, "acks": "all"} | configs
    )
    for _ in range(count):
        producer.produce(
            to.topic,
            partition=to.partition,
            timestamp=rng.randrange(1, NOW_MS),
            **random_record(rng),
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def random_record(rng: random.Random) -> dict[str, Any]:
    def field(size_max: int) -> bytes | None:
        return None if rng.random() < 0.15 else rng.randbytes(rng.randrange(size_max))

    headers = [(f"h{rng.randrange(3)}é", field(20)) for _ in range(rng.choice((0, 0, 1, 3)))]
    return {"key": field(20), "value": field(rng.choice((10, 100, 2000))), "headers": headers}


def oracle(
    client: BlockingClient, of: TopicPartition, start: int, end: int, **configs: Any
) -> list[Row]:
    """`[start, end)` as librdkafka reads it."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers(client),
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
        | configs
    )
    consumer.assign([ForeignPartition(of.topic, of.partition, start)])
    rows: list[Row] = []
    try:
        while True:
            (message,) = consumer.consume(1, 30)
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return rows
            row = _row(message)
            if row.offset >= end:
                return rows
            rows.append(row)
    finally:
        consumer.close()


def _row(message: Any) -> Row:
    kind, at_ms = message.timestamp()
    headers = message.headers()
    told = tuple((key, value) for key, value in headers) if headers else None
    return Row(message.offset(), message.key(), message.value(), at_ms, kind - 1, told)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    batch.validate(full=True)
    named = {name: batch.column(name).to_pylist() for name in ALL if name != "timestamp"}
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        Row(
            named["offset"][at],
            named["key"][at],
            named["value"][at],
            times[at] // 1000,
            named["timestampType"][at],
            None
            if named["headers"][at] is None
            else tuple((one["key"], one["value"]) for one in named["headers"][at]),
        )
        for at in range(batch.num_rows)
    ]


def read(
    client: BlockingClient,
    of: TopicPartition,
    start: int,
    end: int,
    *,
    columns: Iterable[str] = ALL,
    options: ReadOptions | None = None,
) -> list[Row]:
    batches = client.read_columns(
        of, Offset(start), Offset(end), columns=tuple(columns), options=options
    )
    rows = [row for batch in batches for row in rows_of(batch)]
    assert batches.position == end
    return rows


def end_of(client: BlockingClient, of: TopicPartition) -> int:
    found = client.list_offsets({of: LATEST})[of].offset
    assert found is not None
    return found


# -- stories ---------------------------------------------------------------------------------------


def random_topics_are_read_as_librdkafka_reads_them(client: BlockingClient, name: str) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    print(f"seed {seed}")
    created(client, name)
    here = TopicPartition(name, 0)
    for codec in CODECS:
        count = rng.choice((1, 20, 300))
        produce(client, here, rng, count, **{"compression.type": codec})
    end = end_of(client, here)
    expected = oracle(client, here, 0, end)
    assert len(expected) == end
    assert read(client, here, 0, end) == expected
    for _ in range(5):
        start, stop = sorted((rng.randrange(end), rng.randrange(end + 1)))
        options = ReadOptions(
            batch_bytes=rng.choice((1, 3000, 10**6)),
            batch_rows_max=rng.choice((1, 7, None)),
            prefetch_bytes_max=rng.choice((1, 5000, None)),
            partition_bytes_max=rng.choice((1, 5000, None)),
        )
        assert read(client, here, start, stop, options=options) == expected[start:stop]


def a_topic_with_append_time_tells_so(client: BlockingClient, name: str) -> None:
    created(client, name, message_timestamp_type="LogAppendTime")
    here = TopicPartition(name, 0)
    produce(client, here, random.Random(1), 20)
    rows = read(client, here, 0, 20)
    assert rows == oracle(client, here, 0, 20)
    assert {row.timestamp_type for row in rows} == {1}


def any_columns_come_in_any_order(client: BlockingClient, name: str) -> None:
    created(client, name, 2)
    here = TopicPartition(name, 1)
    produce(client, here, random.Random(2), 50)
    # A broker may answer with less than there is: in how many batches they come is not promised.
    whole = pa.Table.from_batches(client.read_columns(here, Offset(0), Offset(50), columns=ALL))
    default = pa.Table.from_batches(client.read_columns(here, Offset(0), Offset(50)))
    assert tuple(default.schema.names) == DEFAULT_COLUMNS
    for columns in (("value",), ("headers", "key"), ("timestampType", "partition", "topic")):
        batches = client.read_columns(here, Offset(0), Offset(50), columns=columns)
        some = pa.Table.from_batches(batches)
        assert some == whole.select(columns)
        assert some.schema == pa.schema([FIELDS[one] for one in columns])
    assert set(whole.column("topic").to_pylist()) == {name}
    assert set(whole.column("partition").to_pylist()) == {1}
    none = list(client.read_columns(here, Offset(0), Offset(50), columns=()))
    assert sum(batch.num_rows for batch in none) == 50
    assert {batch.num_columns for batch in none} == {0}
    for wrong in (("values",), ("key", "key")):
        with pytest.raises(ConfigInvalid):
            client.read_columns(here, Offset(0), Offset(50), columns=wrong)


def many_partitions_are_read_at_once(client: BlockingClient, name: str) -> None:
    created(client, name, 5)
    rng = random.Random(3)
    ranges = []
    for index in range(5):
        here = TopicPartition(name, index)
        produce(client, here, rng, 10 * index)
        ranges.append(ReadRange(here, Offset(0), Offset(end_of(client, here))))
    expected = {one.partition: oracle(client, one.partition, 0, one.end or 0) for one in ranges}
    for bound in (1, 10_000, None):
        found: dict[TopicPartition, list[Row]] = {one.partition: [] for one in ranges}
        options = ReadOptions(prefetch_bytes_max=bound, partition_bytes_max=2000)
        batches = client.read_many(ranges, columns=ALL, options=options)
        for one in batches:
            found[one.partition] += rows_of(one.batch)
            assert one.next_offset == found[one.partition][-1].offset + 1
        assert found == expected
        assert batches.positions == {one.partition: one.end for one in ranges}


def deleted_records_are_told_with_the_range_that_is_left(client: BlockingClient, name: str) -> None:
    created(client, name)
    here = TopicPartition(name, 0)
    produce(client, here, random.Random(4), 30)
    client.delete_records({here: Offset(10)})
    rows = read(client, here, 10, 30)
    assert [row.offset for row in rows] == list(range(10, 30))
    for start, end in ((5, 30), (31, 40)):
        with pytest.raises(OffsetOutOfRange) as error:
            list(client.read_columns(here, Offset(start), Offset(end)))
        found = error.value
        assert (found.wanted, found.start, found.end) == (start, 10, 30)
    with pytest.raises(DeadlinePassed, match="from offset 30"):
        list(client.read_columns(here, Offset(29), Offset(31), options=ReadOptions(timeout_s=0.7)))
    assert list(client.read_columns(here, Offset(30), Offset(30))) == []


def a_topic_that_is_gone_or_another_one_is_told(client: BlockingClient, name: str) -> None:
    old = created(client, name).topic_id
    here = TopicPartition(name, 0)
    produce(client, here, random.Random(5), 10)
    client.delete_topics([name])
    soon = ReadOptions(timeout_s=20)
    with pytest.raises(TopicUnknown):
        list(client.read_columns(here, Offset(0), Offset(10), options=soon))
    created(client, name)
    produce(client, here, random.Random(6), 10)
    old_range = ReadRange(here, Offset(0), Offset(10), old)
    with pytest.raises(TopicRecreated):
        list(client.read_many([old_range], options=soon))
    assert len(read(client, here, 0, 10)) == 10
    with pytest.raises(TopicUnknown, match="has no partition 7"):
        list(client.read_columns(TopicPartition(name, 7), Offset(0), Offset(1), options=soon))


def a_topic_made_again_while_it_is_read_is_noticed(client: BlockingClient, name: str) -> None:
    created(client, name)
    here = TopicPartition(name, 0)
    produce(client, here, random.Random(7), 10)
    batches = client.read_columns(here, Offset(0), None, options=ReadOptions(timeout_s=20))
    assert next(batches).num_rows > 0
    client.delete_topics([name])
    created(client, name)
    produce(client, here, random.Random(8), 30)
    with pytest.raises((TopicRecreated, TopicUnknown)):
        for _ in batches:
            pass


def compacted_gaps_are_passed_over(client: BlockingClient, name: str) -> None:
    created(
        client,
        name,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        segment_ms="200",
        max_compaction_lag_ms="500",
        flush_messages="1",  # only what is durable is cleaned
    )
    here = TopicPartition(name, 0)
    producer = Producer({"bootstrap.servers": servers(client), "linger.ms": 0})

    def is_compacted() -> bool:
        """Only what lies before a later segment is cleaned, so there has to be more and more."""
        for number in range(20):
            producer.produce(name, key=b"k%d" % (number % 3), value=b"v" * 50, partition=0)
        assert producer.flush(30) == 0
        end = end_of(client, here)
        return len(read(client, here, 0, end)) < end - 20

    until(is_compacted, "something was compacted", timeout_s=60)
    end = end_of(client, here)
    expected = oracle(client, here, 0, end)
    # The log may be cleaned again between the two reads: whoever reads later sees a part of it.
    rows = read(client, here, 0, end)
    assert set(rows) <= set(expected)
    assert rows[-1].offset == end - 1
    gap = next(at for at in range(end) if at not in {row.offset for row in expected})
    assert read(client, here, gap, gap + 1) == []


def records_larger_than_every_limit_come(client: BlockingClient, name: str) -> None:
    created(client, name, 3)
    producer = Producer({"bootstrap.servers": servers(client), "message.max.bytes": 1_000_000})
    for index in range(3):
        for size in (10, 800_000, 20, 900_000, 30):
            producer.produce(name, value=bytes(size), partition=index)
    assert producer.flush(30) == 0
    ranges = [ReadRange(TopicPartition(name, at), Offset(0), Offset(5)) for at in range(3)]
    options = ReadOptions(prefetch_bytes_max=1, partition_bytes_max=1, batch_bytes=1)
    sizes: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for one in client.read_many(ranges, columns=("value",), options=options):
        sizes[one.partition.partition] += map(len, one.batch.column(0).to_pylist())
    assert set(map(tuple, sizes.values())) == {(10, 800_000, 20, 900_000, 30)}


def new_records_come_to_who_reads_without_an_end(client: BlockingClient, name: str) -> None:
    created(client, name)
    here = TopicPartition(name, 0)
    with client.read_columns(here, Offset(0), None, columns=("value",)) as batches:
        found: list[bytes] = []
        for number in range(5):
            produce_values(client, here, b"%d" % number)
            while len(found) <= number:
                found += next(batches).column(0).to_pylist()
        assert found == [b"%d" % number for number in range(5)]
        assert batches.position == 5


def produce_values(client: BlockingClient, to: TopicPartition, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers(client), "linger.ms": 0})
    for value in values:
        producer.produce(to.topic, value=value, partition=to.partition)
    assert producer.flush(30) == 0


def a_log_that_starts_later_than_asked_is_told(client: BlockingClient, name: str) -> None:
    created(client, name)
    here = TopicPartition(name, 0)
    produce(client, here, random.Random(9), 10)
    client.delete_records({here: Offset(10)})
    assert client.list_offsets({here: EARLIEST})[here].offset == 10
    with pytest.raises(OffsetOutOfRange, match="begins at 10"):
        list(client.read_columns(here, Offset(0), Offset(10)))


STORIES: list[Story] = [
    random_topics_are_read_as_librdkafka_reads_them,
    a_topic_with_append_time_tells_so,
    any_columns_come_in_any_order,
    many_partitions_are_read_at_once,
    deleted_records_are_told_with_the_range_that_is_left,
    a_topic_that_is_gone_or_another_one_is_told,
    a_topic_made_again_while_it_is_read_is_noticed,
    compacted_gaps_are_passed_over,
    records_larger_than_every_limit_come,
    new_records_come_to_who_reads_without_an_end,
    a_log_that_starts_later_than_asked_is_told,
]
