"""The producer of columns on a simulated network: faults of every kind, and what is told."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2

from kits.client.fake_cluster import DISCONNECT, SILENCE, partition
from kits.client.produce_cluster import ProduceCluster, numbers
from kits.rpc.rpc_server import PORT
from millstream.client.cluster import Cluster
from millstream.client.column_producer import ColumnProducer, batch_options
from millstream.client.errors import (
    ClientClosed,
    DeadlinePassed,
    NotAuthorized,
    RecordTooLarge,
    RequestRefused,
    TopicUnknown,
)
from millstream.client.produce import sender
from millstream.client.produce.errors import (
    BufferFull,
    ColumnInvalid,
    OutcomeOpen,
    PartitionInvalid,
    WriterBroken,
)
from millstream.client.settings import ClientSettings
from millstream.runtime.randomness import SeededRandomness
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.produce import ProduceRequest

Scenario = Callable[[Cluster, ColumnProducer], Coroutine[Any, Any, None]]
SERVERS = ",".join(f"broker{number + 1}:{PORT}" for number in range(3))


def play(
    fake: ProduceCluster,
    scenario: Scenario,
    configs: Mapping[str, object] | None = None,
    *,
    listening: bool = True,
) -> None:
    async def main(cluster: Cluster) -> None:
        producer = ColumnProducer(cluster, topic="events", randomness=SeededRandomness(3))
        try:
            await scenario(cluster, producer)
        finally:
            await producer.abort()

    named = {"bootstrap.servers": SERVERS, "linger.ms": 0, **(configs or {})}
    fake.play(main, named, listening=listening)


def cluster_of(partitions: int = 3, **options: Any) -> ProduceCluster:
    fake = ProduceCluster(**options)
    fake.add_topic("events", partitions)
    return fake


def requests(fake: ProduceCluster) -> list[tuple[int, ProduceRequest]]:
    return fake.asked(ProduceRequest)


# -- where rows go


def test_keys_go_where_java_would_put_them_and_offsets_are_told() -> None:
    fake = cluster_of(4)
    keys = [b"key-%d" % (value % 50) for value in range(1000)]

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers(list(range(1000)), key=pa.array(keys)))
        told = await producer.flush()
        for index, log in enumerate(fake.stored()):
            one = told[partition(index)]
            assert (one.records, one.first_offset) == (len(log), 0)
            assert one.last_offset == len(log) - 1
        assert await producer.flush() == {}

    play(fake, scenario)
    expected: list[list[int]] = [[], [], [], []]
    for value, key in enumerate(keys):
        expected[(murmur2(key) & 0x7FFFFFFF) % 4].append(value)
    assert fake.stored() == expected


def test_an_explicit_partition_wins_and_a_wrong_one_names_its_row() -> None:
    fake = cluster_of(3)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        wanted = pa.array([2, 0, 2, 1], pa.int32())
        keys = pa.array(["k"] * 4)
        await producer.send(numbers([0, 1, 2, 3], key=keys, partition=wanted))
        wrong = pa.array([0] * 90_000 + [3], pa.int32())
        with pytest.raises(PartitionInvalid, match=r"row 90000: .*0 to 2, not 3") as caught:
            await producer.send(numbers(list(range(90_001)), partition=wrong))
        assert caught.value.row == 90_000
        await producer.flush()

    play(fake, scenario, {"buffer.memory": 1_000_000})  # so that it comes in pieces
    assert fake.stored()[1:] == [[3], [0, 2]]
    assert fake.stored()[0][0] == 1


@pytest.mark.parametrize("settings", [{"buffer.memory": 1_000_000}, {"linger.ms": 50}])
def test_a_partition_that_was_added_is_asked_for_before_its_rows_are_refused(
    settings: dict[str, int],
) -> None:
    """Large batches and gathered ones: writers live longer than what they know of a topic."""
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.flush()
        fake.view.topics["events"].leaders += [(2, 0), (3, 0)]
        await producer.send(numbers([1, 2], partition=pa.array([2, 1], pa.int32())))
        await producer.flush()

    play(fake, scenario, settings)
    assert fake.stored() == [[0], [2], [1]]


def test_rows_without_key_stick_and_avoid_a_partition_without_leader() -> None:
    fake = cluster_of(4)
    fake.view.topics["events"].leaders[2] = (-1, 0)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        for start in range(0, 300_000, 100_000):
            await producer.send(numbers(list(range(start, start + 100_000))))
        await producer.flush()

    play(fake, scenario, {"max.request.size": 250_000})  # so that there are many batches
    logs = fake.stored()
    assert logs[2] == []
    assert sum(len(log) for log in logs) == 300_000
    assert all(logs[index] for index in (0, 1, 3))
    switches = sum(b != a + 1 for log in logs for a, b in pairwise(log))
    assert switches < 30, "rows do not stick"


def test_topics_from_a_column() -> None:
    fake = cluster_of(2)
    fake.add_topic("other", 1)

    async def scenario(cluster: Cluster, _: ColumnProducer) -> None:
        names = pa.array(["other", "events", "other", "events"])
        async with ColumnProducer(cluster) as producer:
            await producer.send(numbers([1, 2, 3, 4], topic=names))
            told = await producer.flush()
        assert told[partition(0, "other")].records == 2

    play(fake, scenario)
    assert fake.stored("other") == [[1, 3]]
    assert sorted(chain(*fake.stored())) == [2, 4]


# -- requests


def test_partitions_of_one_leader_share_a_request() -> None:
    fake = cluster_of(6)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        wanted = pa.array([row % 6 for row in range(60)], pa.int32())
        await producer.send(numbers(list(range(60)), partition=wanted))
        await producer.flush()

    play(fake, scenario)
    sent = requests(fake)
    assert sorted(leader for leader, _ in sent) == [1, 2, 3]
    assert all(len(one.topic_data[0].partition_data) == 2 for _, one in sent)
    assert all(one.acks == -1 for _, one in sent)
    assert len(fake.asked(InitProducerIdRequest)) == 1


def test_small_batches_are_gathered_and_linger() -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        for value in range(100):
            await producer.send(numbers([value]))
        assert not requests(fake)
        await asyncio.sleep(0.04)
        assert not requests(fake)
        await asyncio.sleep(0.5)
        assert len(requests(fake)) == 1
        assert (await producer.flush())[partition(0)].records == 100

    play(fake, scenario, {"linger.ms": 50})
    assert len(requests(fake)) == 1
    assert fake.stored() == [list(range(100))]


def test_what_was_gathered_goes_before_a_large_batch() -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0, 1]))
        await producer.send(numbers(list(range(2, 100_000))))
        await producer.send(numbers([100_000]))
        await producer.flush()

    play(fake, scenario, {"linger.ms": 1000})
    assert fake.stored() == [list(range(100_001))]


def test_a_gathered_row_is_named_as_it_came() -> None:
    fake = cluster_of(1, bytes_max=400)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([1, 2, 3]))
        await producer.send(pa.record_batch({"value": pa.array([b"4", b"5" * 400, b"6"])}))
        with pytest.raises(RecordTooLarge, match="row 1 of write 2") as caught:
            await producer.flush()
        assert "1 records in all" in caught.value.__notes__[0]
        await producer.flush()

    play(fake, scenario, {"linger.ms": 50})
    assert fake.stored() == [[1, 2, 3, 4, 6]]


def test_room_is_waited_for_and_the_wait_is_bounded() -> None:
    fake = cluster_of(1)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.flush()
        fake.broker(1).script.extend([SILENCE] * 5)
        begun_s = cluster.now_s()
        await producer.send(numbers(list(range(5000))))
        with pytest.raises(BufferFull, match="100000 bytes"):
            await producer.send(numbers(list(range(8000))))
        assert cluster.now_s() - begun_s == pytest.approx(2, abs=0.1)

    play(fake, scenario, {"buffer.memory": 100_000, "max.block.ms": 2000})


# -- faults


@pytest.mark.parametrize(
    "fault",
    [
        DISCONNECT,
        SILENCE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
    ids=str,
)
def test_what_passes_is_sent_again_and_stored_once(fault: ErrorCode | str) -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.flush()
        fake.broker(1).script.append(fault)
        for start in range(1, 100_001, 20_000):
            await producer.send(numbers(list(range(start, start + 20_000))))
        told = await producer.flush()
        assert told[partition(0)].records == 100_000
        assert (told[partition(0)].first_offset, told[partition(0)].last_offset) == (1, 100_000)

    play(fake, scenario, {"request.timeout.ms": 1000})
    assert fake.stored() == [list(range(100_001))]


def test_a_new_leader_is_followed_by_its_hint_without_asking() -> None:
    fake = cluster_of(1)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([1]))
        await producer.flush()
        asked = len(fake.asked(MetadataRequest))
        fake.view.topics["events"].leaders[0] = (2, 1)
        begun_s = cluster.now_s()
        await producer.send(numbers([2]))
        await producer.flush()
        assert len(fake.asked(MetadataRequest)) == asked
        assert cluster.now_s() - begun_s < 0.05

    play(fake, scenario)
    assert fake.stored() == [[1, 2]]


def test_a_batch_that_is_too_large_is_split_and_later_ones_are_smaller() -> None:
    fake = cluster_of(1, bytes_max=20_000)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers(list(range(20_000))))
        await producer.flush()
        before = len(requests(fake))
        await producer.send(numbers(list(range(20_000, 40_000))))
        await producer.flush()
        sizes = [
            len(one.topic_data[0].partition_data[0].records or b"") for _, one in requests(fake)
        ]
        assert max(sizes[:before]) > 20_000 > max(sizes[before:])

    play(fake, scenario)
    assert fake.stored() == [list(range(40_000))]


def test_a_record_that_is_too_large_for_the_topic_is_named_and_the_rest_is_stored() -> None:
    fake = cluster_of(1, bytes_max=1000)
    values = [b"%d" % value for value in range(100)]
    values[57] = b"9" * 2000

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(pa.record_batch({"value": pa.array(values)}))
        with pytest.raises(RecordTooLarge, match=r"events-0, row 57 of write 1"):
            await producer.flush()
        await producer.send(numbers([100]))
        await producer.flush()

    play(fake, scenario)
    assert fake.stored() == [[*range(57), *range(58, 101)]]


def test_a_record_that_is_too_large_for_a_request_is_refused_at_once() -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        with pytest.raises(RecordTooLarge, match=r"row 1 of write 1.*max\.request\.size is 5000"):
            await producer.send(pa.record_batch({"value": pa.array([b"1", b"2" * 6000])}))
        assert await producer.flush() == {}

    play(fake, scenario, {"max.request.size": 5000})
    assert fake.stored() == [[]]


def test_what_is_refused_for_good_is_told_and_the_rest_goes_on() -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.flush()
        fake.broker(1).script.append(ErrorCode.INVALID_RECORD)
        await producer.send(numbers([1]))
        with pytest.raises(RequestRefused, match="events-0"):
            await producer.flush()
        await producer.send(numbers([2]))
        assert (await producer.flush())[partition(0)].records == 1

    play(fake, scenario)
    assert fake.stored() == [[0, 2]]


def test_a_producer_that_is_not_allowed_says_so_for_ever() -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        for broker in fake.brokers:
            broker.script.append(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        await producer.send(numbers([0]))
        for _attempt in range(2):
            with pytest.raises(NotAuthorized):
                await producer.flush()

    play(fake, scenario)


# -- time


def test_without_brokers_a_send_ends_in_the_named_time() -> None:
    fake = cluster_of(1)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        with pytest.raises(Exception, match="broker1:9092") as caught:
            await producer.send(numbers([0]))
        assert isinstance(caught.value, Exception)
        assert cluster.now_s() <= 3.5

    play(fake, scenario, {"max.block.ms": 3000}, listening=False)


def test_records_that_cannot_be_delivered_end_by_their_deadline() -> None:
    fake = cluster_of(1)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.flush()
        for broker in fake.brokers:
            broker.stop()
        begun_s = cluster.now_s()
        await producer.send(numbers([1]))
        with pytest.raises(DeadlinePassed, match="within 10 s"):
            await producer.flush()
        assert cluster.now_s() - begun_s == pytest.approx(10, abs=0.2)

    play(fake, scenario, {"delivery.timeout.ms": 10_000, "request.timeout.ms": 2000})
    assert fake.stored() == [[0]]


def test_records_without_an_answer_are_said_to_be_open() -> None:
    fake = cluster_of(1)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.flush()
        fake.broker(1).script.extend([SILENCE] * 20)
        begun_s = cluster.now_s()
        await producer.send(numbers([1]))
        with pytest.raises(OutcomeOpen, match="may still have been stored"):
            await producer.flush()
        assert cluster.now_s() - begun_s == pytest.approx(10, abs=0.2)
        fake.broker(1).script.clear()
        await producer.send(numbers([2]))
        await producer.flush()

    play(fake, scenario, {"delivery.timeout.ms": 10_000, "request.timeout.ms": 2000})
    assert fake.stored() in ([[0, 2]], [[0, 1, 2]])


def test_an_unknown_topic_is_told_soon() -> None:
    fake = cluster_of(1)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        with pytest.raises(TopicUnknown, match="nowhere"):
            await producer.send(numbers([0]), topic="nowhere")
        assert cluster.now_s() < 3

    play(fake, scenario)


def test_a_broker_that_asks_for_a_pause_gets_it() -> None:
    fake = cluster_of(1)
    fake.throttle_ms = 3000

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.flush()
        begun_s = cluster.now_s()
        await producer.send(numbers([1]))
        await producer.flush()
        assert cluster.now_s() - begun_s == pytest.approx(3, abs=0.1)

    play(fake, scenario)


# -- ends


def test_nothing_is_taken_after_the_end() -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([0]))
        await producer.close()
        await producer.close()
        for call in (producer.send(numbers([1])), producer.flush()):
            with pytest.raises(ClientClosed):
                await call

    play(fake, scenario)
    assert fake.stored() == [[0]]


def test_an_abort_drops_what_waits() -> None:
    fake = cluster_of(1)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        async def wrong() -> None:
            async with ColumnProducer(cluster, topic="events") as other:
                await other.send(numbers([5]))
                await other.send(pa.record_batch({"key": pa.array(["no value"])}))

        with pytest.raises(ColumnInvalid):
            await wrong()
        await producer.send(numbers([0]))
        await producer.abort()

    play(fake, scenario)
    assert fake.stored() == [[]]


def test_empty_batches_are_nothing() -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers([]))
        assert await producer.flush() == {}

    play(fake, scenario)
    assert not requests(fake)


@pytest.mark.parametrize("acks", ["0", "1"])
def test_weaker_acknowledgements(acks: str) -> None:
    fake = cluster_of(1)

    async def scenario(_: Cluster, producer: ColumnProducer) -> None:
        await producer.send(numbers(list(range(1000))))
        assert (await producer.flush())[partition(0)].records == 1000
        await asyncio.sleep(1)

    play(fake, scenario, {"acks": acks})
    assert fake.stored() == [list(range(1000))]
    assert not fake.asked(InitProducerIdRequest)


@pytest.mark.parametrize(
    ("configs", "codec", "level"),
    [
        ({}, 0, None),
        ({"compression.type": "gzip"}, 1, None),
        ({"compression.type": "gzip", "compression.gzip.level": 3}, 1, 3),
        ({"compression.type": "snappy"}, 2, None),
        ({"compression.type": "lz4"}, 3, None),
        ({"compression.type": "lz4", "compression.lz4.level": 4}, 3, 4),
        ({"compression.type": "zstd"}, 4, 3),
    ],
)
def test_codecs_and_levels(configs: dict[str, object], codec: int, level: int | None) -> None:
    settings = ClientSettings.from_configs({"bootstrap.servers": SERVERS, **configs})
    options = batch_options(settings)
    assert (options.codec, options.level) == (codec, level)


@pytest.mark.parametrize("place", ["produce_parts", "read_answers", "InitProducerIdRequest"])
def test_what_breaks_in_a_callback_ends_the_flush(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The loop would only log it, and the flush wait for its deadline or for ever."""

    def broken(*_: object, **__: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(sender, place, broken)

    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        begun_s = cluster.now_s()
        await producer.send(pa.record_batch({"value": [b"1"]}))
        with pytest.raises(WriterBroken, match="ValueError: planted") as caught:
            await producer.flush()
        assert isinstance(caught.value.__cause__, ValueError)
        assert cluster.now_s() - begun_s < 1
        with pytest.raises(WriterBroken):  # it stays so
            await producer.flush()

    play(cluster_of(1), scenario)


def test_what_breaks_when_rows_have_lingered_is_told_by_the_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster, producer: ColumnProducer) -> None:
        def broken(*_: object) -> None:
            raise ValueError("planted")

        await producer.send(pa.record_batch({"value": [b"1"]}))
        monkeypatch.setattr(producer, "encode", broken)
        await asyncio.sleep(1)
        monkeypatch.undo()
        with pytest.raises(WriterBroken, match="ValueError: planted"):
            await producer.flush()
        await producer.send(pa.record_batch({"value": [b"2"]}))
        assert sum(one.records for one in (await producer.flush()).values()) == 1

    play(cluster_of(1), scenario, {"linger.ms": 100})
