"""What our writer of columns does with a cluster, whoever's it is: the same stories for each.

What was written is read by an independent client (librdkafka).
"""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as TheirPartition

from kits.client.our_client import created, has_leaders
from kits.process.waiting_for import until
from millstream.client.admin import NewPartitions, or_raise
from millstream.client.blocking import BlockingClient
from millstream.client.errors import RecordTooLarge, TopicUnknown
from millstream.client.produce.errors import PartitionInvalid
from millstream.client.settings import ClientSettings
from millstream.model.ids import TopicPartition

Story = Callable[[str, str], None]
"""With servers and the name of a topic."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Seen(NamedTuple):
    """A record as another client reads it."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]


def client_of(servers: str, **configs: object) -> BlockingClient:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return BlockingClient(ClientSettings.from_configs({"bootstrap.servers": servers} | named))


def topic_of(client: BlockingClient, name: str, partitions: int = 1, **configs: str) -> None:
    created(client, name, partitions, **configs)
    until(lambda: has_leaders(client, name), "every partition has a leader")


def has_grown(client: BlockingClient, name: str, count: int) -> bool:
    return client.topics([name])[name].partition_count == count and has_leaders(client, name)


def read_all(servers: str, topic: str, partitions: int, count: int) -> list[list[Seen]]:
    """By partition, in the order of offsets; waits for `count` and a moment for one too many."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TheirPartition(topic, index, 0) for index in range(partitions)])
        found: list[list[tuple[int, Seen]]] = [[] for _ in range(partitions)]
        deadline_s = time.monotonic() + 60
        left = count
        while left > 0 or consumer.consume(1, 0.3):
            assert left > 0, "there are more records than were written"
            assert time.monotonic() < deadline_s, f"{left} of {count} records are missing"
            messages: list[Any] = list(consumer.consume(min(left, 10_000), 1.0))
            for message in messages:
                assert message.error() is None, message.error()
                seen = Seen(
                    message.key(),
                    message.value(),
                    message.timestamp()[1],
                    message.headers() or [],
                )
                found[message.partition()].append((message.offset(), seen))
                left -= 1
        for part in found:
            offsets = [offset for offset, _ in part]
            assert offsets == sorted(set(offsets))
        return [[seen for _, seen in part] for part in found]
    finally:
        consumer.close()


def java_partition(key: bytes, count: int) -> int:
    return (int(murmur2(key)) & 0x7FFFFFFF) % count


# -- stories ---------------------------------------------------------------------------------------


def contents_are_the_same_with_every_codec(servers: str, name: str) -> None:
    dice = random.Random(5)
    rows: list[dict[str, Any]] = [
        {
            "key": dice.choice([None, b"", b"key-%d" % dice.randrange(40)]),
            "value": dice.choice([None, b"", dice.randbytes(dice.randrange(300)), b"x" * 2000]),
            "headers": dice.choice(
                [None, [], [{"key": "h", "value": b"1"}, {"key": "i", "value": None}]]
            ),
            "timestamp": 1_700_000_000_000 + dice.randrange(10_000),
            "partition": dice.choice([None, None, 0, 1, 2]),
        }
        for _ in range(3000)
    ]
    schema = pa.schema(
        {
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": HEADERS,
            "timestamp": pa.timestamp("ms", "UTC"),
            "partition": pa.int32(),
        }
    )
    batch = pa.RecordBatch.from_pylist(rows, schema)
    for codec in CODECS:
        topic = f"{name}-{codec}"
        with client_of(servers, compression_type=codec) as client:
            topic_of(client, topic, 3, retention_ms="-1")
            with client.column_writer(topic=topic) as writer:
                for start in range(0, 3000, 700):  # slices, the last one shorter
                    writer.write(batch.slice(start, 700))
                told = writer.flush()
        found = read_all(servers, topic, 3, 3000)
        assert {one: told[TopicPartition(topic, one)].records for one in range(3)} == {
            index: len(part) for index, part in enumerate(found)
        }
        _same_records(rows, found)


def _same_records(rows: list[dict[str, Any]], found: list[list[Seen]]) -> None:
    expected: list[list[Seen]] = [[] for _ in found]
    unplaced: list[Seen] = []
    for row in rows:
        seen = Seen(
            row["key"],
            row["value"],
            row["timestamp"],
            [(one["key"], one["value"]) for one in row["headers"] or []],
        )
        if row["partition"] is not None:
            expected[row["partition"]].append(seen)
        elif row["key"] is not None:
            expected[java_partition(row["key"], len(found))].append(seen)
        else:
            unplaced.append(seen)
    for index, part in enumerate(found):
        rest = iter(part)
        assert all(any(one == other for other in rest) for one in expected[index])
    surplus = sum(len(part) for part in found) - sum(len(part) for part in expected)
    assert surplus == len(unplaced)


def small_and_large_batches_keep_their_order(servers: str, name: str) -> None:
    values = [b"%07d" % row for row in range(400_000)]
    with client_of(servers, linger_ms=5000) as client:
        topic_of(client, name, 1, retention_ms="-1")
        with client.column_writer(topic=name) as writer:
            start = 0
            for size in (1, 7, 200_000, 3, 150_000, 49_989):
                column = pa.array(values[start : start + size])
                writer.write(pa.record_batch({"value": column}))
                start += size
            told = writer.flush()
    assert told[TopicPartition(name, 0)] == (400_000, 0, 399_999)
    (found,) = read_all(servers, name, 1, 400_000)
    assert [one.value for one in found] == values


def a_record_that_is_too_large_is_named(servers: str, name: str) -> None:
    with client_of(servers) as client:
        topic_of(client, name, 1, max_message_bytes="20000")
        with client.column_writer(topic=name) as writer:
            values = [b"v%d" % row for row in range(2000)]
            values[1234] = b"x" * 50_000
            writer.write(pa.record_batch({"value": pa.array(values)}))
            with pytest.raises(RecordTooLarge, match=f"{name}-0, row 1234 of write 1"):
                writer.flush()
            assert writer.flush()[TopicPartition(name, 0)].records == 1999
            with pytest.raises(RecordTooLarge, match=r"row 0 of write 2.*max\.request\.size"):
                writer.write(pa.record_batch({"value": pa.array([b"x" * 2_000_000])}))
    (found,) = read_all(servers, name, 1, 1999)
    del values[1234]
    assert [one.value for one in found] == values


def batches_larger_than_the_topic_takes_are_split(servers: str, name: str) -> None:
    for codec in ("none", "lz4"):
        topic = f"{name}-{codec}"
        with client_of(servers, compression_type=codec) as client:
            topic_of(client, topic, 1, max_message_bytes="3000")
            values = [random.Random(row).randbytes(60) for row in range(5000)]
            with client.column_writer(topic=topic) as writer:
                writer.write(pa.record_batch({"value": pa.array(values)}))
        (found,) = read_all(servers, topic, 1, 5000)
        assert [one.value for one in found] == values


def what_is_not_there_is_told_soon(servers: str, name: str) -> None:
    with client_of(servers) as client:
        topic_of(client, name, 2)
        begun_s = time.monotonic()
        batch = pa.record_batch({"value": pa.array(["v"])})
        with client.column_writer() as writer:
            with pytest.raises(TopicUnknown, match="nowhere"):
                writer.write(batch, topic="nowhere")
            wrong = batch.append_column("partition", pa.array([2], pa.int32()))
            with pytest.raises(PartitionInvalid, match="row 0"):
                writer.write(wrong, topic=name)
            assert time.monotonic() - begun_s < 10
            writer.write(batch, topic=name)
            assert sum(one.records for one in writer.flush().values()) == 1


def partitions_that_were_added_are_written_to(servers: str, name: str) -> None:
    """By a writer that knows the topic from before, in small batches and in large ones."""
    with client_of(servers) as client, client_of(servers) as other:
        topic_of(client, name, 1)
        with client.column_writer(topic=name) as writer:
            for count, length in ((2, 1), (3, 1_000_000)):
                writer.write(pa.record_batch({"value": pa.array(["v"])}))
                writer.flush()
                or_raise(other.create_partitions({name: NewPartitions(count)})[name])
                until(partial(has_grown, other, name, count), "the partition has a leader")
                number = pa.array([count - 1], pa.int32())
                row = {"value": pa.array(["v" * length]), "partition": number}
                writer.write(pa.record_batch(row))
                assert list(writer.flush()) == [TopicPartition(name, count - 1)]


def weaker_acknowledgements_work_too(servers: str, name: str) -> None:
    for acks in ("0", "1"):
        topic = f"{name}-{acks}"
        with client_of(servers, acks=acks) as client:
            topic_of(client, topic)
            with client.column_writer(topic=topic) as writer:
                for start in range(0, 20_000, 5000):
                    values = [b"%d" % value for value in range(start, start + 5000)]
                    writer.write(pa.record_batch({"value": pa.array(values)}))
            (found,) = read_all(servers, topic, 1, 20_000)
        assert [one.value for one in found] == [b"%d" % value for value in range(20_000)]


STORIES: list[Story] = [
    contents_are_the_same_with_every_codec,
    small_and_large_batches_keep_their_order,
    a_record_that_is_too_large_is_named,
    batches_larger_than_the_topic_takes_are_split,
    what_is_not_there_is_told_soon,
    partitions_that_were_added_are_written_to,
    weaker_acknowledgements_work_too,
]


def write_through_kills(servers: str, name: str, kill_and_restart: Callable[[], None]) -> None:
    """A broker is killed and started again in the middle, twice: nothing lost, nothing twice."""
    with client_of(servers, buffer_memory=4_000_000) as client:
        topic_of(client, name, 3, retention_ms="-1")
        with client.column_writer(topic=name) as writer:
            written = 0
            for step in range(40):
                values = [b"%d" % value for value in range(written, written + 5000)]
                keys = pa.array([b"%d" % (value % 100) for value in range(5000)])
                writer.write(pa.record_batch({"value": pa.array(values), "key": keys}))
                written += 5000
                if step in (10, 25):
                    kill_and_restart()
            told = writer.flush()
    assert sum(one.records for one in told.values()) == written
    found = read_all(servers, name, 3, written)
    for part in found:
        values_there = [int(one.value or b"") for one in part]
        assert values_there == sorted(set(values_there)), "doubled, or in another order"
