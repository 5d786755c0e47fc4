"""Reads on a simulated network, in virtual time: leaders move, brokers refuse, hang up and die."""

import asyncio
import pickle
from uuid import UUID

import pytest

from kits.client.fake_cluster import DISCONNECT, SILENCE, partition
from kits.client.fake_fetch import FetchBroker, FetchCluster, whole
from millstream.client.cluster import Cluster
from millstream.client.errors import (
    ClientError,
    DeadlinePassed,
    LogTruncated,
    NotAuthorized,
    OffsetOutOfRange,
    RangeInvalid,
    TopicRecreated,
    TopicUnknown,
)
from millstream.client.fetch import fetcher as fetching
from millstream.client.fetch.async_api import Batches, read_many
from millstream.client.fetch.chunks import ReadRange
from millstream.client.fetch.options import ReadOptions
from millstream.model.ids import Offset, TopicPartition
from millstream.rpc.connection import Connection
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import MetadataRequest

HERE = TopicPartition("events", 0)
ONE_BATCH = ReadOptions(partition_bytes_max=1, prefetch_bytes_max=1, timeout_s=30)
"""A request for each batch, and none before the last was used."""


async def offsets_of(batches: Batches) -> list[int]:
    return [at async for one in batches for at in one.batch.column(0).to_pylist()]


async def take(batches: Batches, found: list[tuple[int, int]]) -> None:
    """(partition, offset) of all that come, also when it ends badly."""
    async for one in batches:
        found += [(one.partition.partition, at) for at in one.batch.column(0).to_pylist()]


def reading(cluster: Cluster, *ranges: object, options: ReadOptions = ONE_BATCH) -> Batches:
    return read_many(cluster, ranges, columns=("offset",), options=options)  # type: ignore[arg-type]


def fake() -> FetchCluster:
    made = FetchCluster()
    made.add_log("events", 3)
    return made


@pytest.mark.parametrize(
    "failure",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        DISCONNECT,
        SILENCE,
    ],
)
def test_what_passes_is_tried_again_and_nothing_is_lost_or_read_twice(failure: str) -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        batches = reading(cluster, whole())
        found = (await anext(batches)).batch.column(0).to_pylist()
        brokers.broker(1).script.append(failure)
        brokers.broker(1).offsets["events", 0] = 2  # inside: out of range was not true
        found += await offsets_of(batches)
        assert found == list(range(20))

    brokers.play(scenario, {"request.timeout.ms": 2000, "fetch.max.wait.ms": 0})


@pytest.mark.parametrize("tells_leader", [False, True])
def test_a_leader_that_moved_is_followed(tells_leader: bool) -> None:
    """With the leader in the answer no metadata is asked for."""
    brokers = fake()
    for one in brokers.brokers:
        assert isinstance(one, FetchBroker)
        one.tells_leader = tells_leader

    async def scenario(cluster: Cluster) -> None:
        batches = reading(cluster, whole())
        found = (await anext(batches)).batch.column(0).to_pylist()
        asked = len(brokers.asked(MetadataRequest))
        brokers.view.topics["events"].leaders[0] = (2, 1)
        found += await offsets_of(batches)
        assert found == list(range(20))
        assert brokers.fetches()[-1][0] == 2
        assert (len(brokers.asked(MetadataRequest)) == asked) == tells_leader

    brokers.play(scenario)


def test_a_dead_leader_does_not_hold_up_the_others() -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        options = ReadOptions(timeout_s=20)
        brokers.broker(2).stop()
        batches = reading(cluster, *(whole(index=at) for at in range(3)), options=options)
        found: list[tuple[int, int]] = []
        with pytest.raises(ClientError):
            await take(batches, found)
        assert sorted(found) == [(index, at) for index in (0, 2) for at in range(20)]

    brokers.play(scenario)


def test_a_leader_that_comes_back_is_read_on() -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        batches = reading(cluster, whole(index=1))
        found = (await anext(batches)).batch.column(0).to_pylist()
        brokers.broker(2).stop()
        asyncio.get_running_loop().call_later(
            10, lambda: asyncio.ensure_future(brokers.broker(2).listen())
        )
        found += await offsets_of(batches)
        assert found == list(range(20))

    brokers.play(scenario)


def test_the_next_request_leaves_before_an_answer_is_used_and_names_the_epoch() -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        options = ReadOptions(partition_bytes_max=1)
        batches = reading(cluster, whole(), options=options)
        await anext(batches)
        await asyncio.sleep(5)
        fetches = [one.topics[0].partitions[0] for _, one in brokers.fetches()]
        assert [one.fetch_offset for one in fetches] == list(range(0, 20, 2)), "no prefetch"
        assert [one.last_fetched_epoch for one in fetches] == [-1] + [0] * 9
        assert len(await offsets_of(batches)) == 18

    brokers.play(scenario)


def test_a_slow_user_stops_the_fetch_at_the_bound() -> None:
    brokers = fake()
    size = len(brokers.logs[partition(0)].batches[0].data)

    async def scenario(cluster: Cluster) -> None:
        options = ReadOptions(partition_bytes_max=size, prefetch_bytes_max=3 * size)
        batches = reading(cluster, whole(), options=options)
        for taken in range(10):
            await anext(batches)
            await asyncio.sleep(5)
            # The chunk at hand counts until it is used up.
            assert len(brokers.fetches()) == min(10, taken + 3)

    brokers.play(scenario)


@pytest.mark.parametrize(("start", "log_start"), [(4, 6), (21, 0)])
def test_an_offset_out_of_range_comes_with_the_range(start: int, log_start: int) -> None:
    brokers = fake()
    brokers.logs[partition(0)].start = log_start
    brokers.broker(1).offsets["events", 0] = log_start or 20

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(OffsetOutOfRange) as error:
            await offsets_of(reading(cluster, whole(start=start, end=30)))
        assert error.value.wanted == start
        assert error.value.start == (log_start or 20)

    brokers.play(scenario)


def test_a_log_that_was_cut_below_what_was_read_is_told() -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        batches = reading(cluster, whole())
        await anext(batches)
        brokers.cut_at[0] = 1
        with pytest.raises(LogTruncated) as error:
            await offsets_of(batches)
        assert (error.value.position, error.value.diverges_at) == (2, 1)

    brokers.play(scenario)


def test_a_topic_made_again_and_one_that_is_gone_are_told() -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        batches = reading(cluster, whole())
        await anext(batches)
        brokers.view.topics["events"].topic_id = UUID(int=77)
        with pytest.raises(TopicRecreated):
            await offsets_of(batches)
        batches = reading(cluster, whole())
        await anext(batches)
        del brokers.view.topics["events"]
        with pytest.raises(TopicUnknown):
            await offsets_of(batches)

    brokers.play(scenario)


def test_what_cannot_pass_is_told_at_once_behind_what_came_before() -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        options = ReadOptions(partition_bytes_max=1, timeout_s=30)
        batches = reading(cluster, whole(), options=options)
        brokers.broker(1).script.extend(
            [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        )
        found: list[tuple[int, int]] = []
        began_s = cluster.now_s()
        with pytest.raises(NotAuthorized):
            await take(batches, found)
        assert found == [(0, at) for at in range(4)]
        assert cluster.now_s() - began_s < 1

    brokers.play(scenario)


def test_every_stall_ends_in_its_time() -> None:
    """A silent broker, and a range that ends behind the log."""
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        for index, end in ((0, 30), (1, 20)):
            if index == 1:
                brokers.broker(2).script.extend([SILENCE] * 100)
            began_s = cluster.now_s()
            options = ReadOptions(timeout_s=7)
            with pytest.raises(DeadlinePassed, match="after 7 s"):
                await offsets_of(reading(cluster, whole(index=index, end=end), options=options))
            assert 6.9 < cluster.now_s() - began_s < 12.5

    brokers.play(scenario, {"fetch.max.wait.ms": 100})


@pytest.mark.parametrize("place", ["fetch_body", "FetchResponse"])
def test_what_breaks_in_a_callback_ends_the_read(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The loop would only log it, and the reader wait for ever."""

    class Broken:
        def __call__(self, *_: object) -> None:
            raise ValueError("planted")

        decode = __call__

    monkeypatch.setattr(fetching, place, Broken())

    async def scenario(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(ValueError, match="planted"):
            await offsets_of(reading(cluster, ReadRange(HERE, Offset(0))))
        assert loop.time() - begun_s < 1

    fake().play(scenario)


def test_a_broker_that_never_answers_is_waited_for_no_longer_than_allowed() -> None:
    brokers = fake()

    async def scenario(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        await cluster.topics(["events"])
        for one in brokers.brokers:
            one.script.extend([SILENCE] * 20)
        begun_s = loop.time()
        with pytest.raises(DeadlinePassed, match="after 3 s"):
            await offsets_of(reading(cluster, whole(), options=ReadOptions(timeout_s=3)))
        assert 2.9 < loop.time() - begun_s < 4.5

    brokers.play(scenario, {"request.timeout.ms": 30000})


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ([ReadRange(HERE, Offset(2**63))], "invalid start offset 9223372036854775808"),
        ([ReadRange(HERE, Offset(-1))], "events-0: invalid start offset -1; offsets are 0 "),
        ([ReadRange(HERE, Offset(0), Offset(2**64))], "invalid end offset 18446744073709551616"),
        ([ReadRange(HERE, Offset(0)), ReadRange(HERE, Offset(5))], "events-0 is given twice"),
        ([ReadRange(TopicPartition("events", -1), Offset(0))], "no partition -1"),
    ],
)
def test_ranges_that_cannot_be_are_refused_before_anything_is_asked(
    ranges: list[ReadRange], told: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(RangeInvalid, match=told) as caught:
            reading(cluster, *ranges)
        assert isinstance(caught.value, ValueError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        with pytest.raises(TypeError, match=r"TopicPartition\(topic, number\)"):
            reading(cluster, ReadRange("events-0", Offset(0)))  # type: ignore[arg-type]

    fake().play(scenario)


def test_the_last_offset_that_can_be_is_asked_for() -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(OffsetOutOfRange):
            await offsets_of(reading(cluster, ReadRange(HERE, Offset(2**63 - 1))))

    brokers = fake()
    for one in brokers.brokers:
        one.offsets["events", 0] = 20
    brokers.play(scenario)


def test_buffers_wait_for_the_next_read_and_then_go() -> None:
    """Kept while one read follows another, given back when none does."""
    brokers = fake()
    trimmed: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        now_s = asyncio.get_running_loop().time
        for _ in range(4):
            assert await offsets_of(reading(cluster, whole())) == list(range(20))
            await asyncio.sleep(0.7 * fetching.KEPT_S)
        assert trimmed == []
        await asyncio.sleep(fetching.KEPT_S)
        (at_s,) = trimmed
        assert now_s() - at_s < fetching.KEPT_S

    original = Connection.trim

    def trim(connection: Connection) -> None:
        trimmed.append(asyncio.get_running_loop().time())
        original(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "trim", trim)
        brokers.play(scenario)
