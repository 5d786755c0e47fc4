"""Reading by offset with real brokers of ours: the stories, and what happens to iterators."""

import asyncio
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.client.our_client import created
from kits.client.reading_stories import STORIES, Story, produce, produce_values, read
from kits.process.broker_process import broker_process
from kits.process.waiting_for import until
from millstream.client.blocking import BlockingClient
from millstream.client.cluster import Cluster
from millstream.client.errors import (
    BrokersUnreachable,
    ClientClosed,
    DeadlinePassed,
    RangeInvalid,
)
from millstream.client.fetch import async_api as faces
from millstream.client.fetch.chunks import ReadRange
from millstream.client.fetch.options import ReadOptions
from millstream.client.settings import ClientSettings
from millstream.model.ids import Offset, TopicPartition
from millstream.testing.broker_thread import BrokerThread

NO_FORK_WARNING = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def client_of(servers: str, **configs: object) -> BlockingClient:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return BlockingClient(ClientSettings.from_configs({"bootstrap.servers": servers} | named))


@pytest.fixture(scope="module")
def shared() -> Iterator[BrokerThread]:
    settings = {"log.cleaner.backoff.ms": 50, "log.flush.offset.checkpoint.interval.ms": 50}
    with BrokerThread(settings) as broker:
        yield broker


@pytest.fixture
def client(shared: BrokerThread) -> Iterator[BlockingClient]:
    with client_of(shared.bootstrap_servers) as made:
        yield made


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(client: BlockingClient, story: Story) -> None:
    story(client, story.__name__.replace("_", "-"))


# -- iterators


def filled(client: BlockingClient, name: str, *, batches: int = 40) -> TopicPartition:
    """About 100 KB in each of so many batches, which become chunks of their own."""
    created(client, name, retention_ms="-1")
    here = TopicPartition(name, 0)
    for _ in range(batches):
        produce_values(client, here, bytes(50_000), bytes(50_000))
    return here


SMALL = ReadOptions(partition_bytes_max=100_000, prefetch_bytes_max=500_000, timeout_s=20)


def fetching_of(batches: Any) -> Any:
    return batches._batches._handover.fetcher


def test_who_reads_slowly_holds_no_more_than_the_bound(client: BlockingClient) -> None:
    """Every byte that is held, or may come, is below the bound; and it is made use of."""
    here = filled(client, "bounded")
    batches = client.read_columns(here, Offset(0), Offset(80), options=SMALL)
    seen = []
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        seen.append(_bytes_when_still(fetching_of(batches).machine))
    assert rows == 80
    # The first batch of an answer comes whole: 100,000 bytes and what is around them.
    assert max(seen) <= 500_000 + 2_000
    assert sorted(seen)[len(seen) // 2] > 300_000


def _bytes_when_still(machine: Any) -> int:
    """Held and reserved, when nothing more comes."""
    seen: list[int] = []

    def is_still() -> bool:
        seen.append(machine.held_bytes + machine.reserved_bytes)
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    until(is_still, "the fetch to stop")
    return seen[-1]


def connection_count(client: BlockingClient) -> int:
    async def work(cluster: Cluster) -> int:
        return len(cluster._routes._connections._open)

    return client.run(work)


def free_slots(client: BlockingClient) -> int:
    async def work(cluster: Cluster) -> int:
        return len(cluster.fetch_slots._free)

    return client.run(work)


def close_it(batches: Any) -> None:
    batches.close()
    assert list(batches) == []


def fail_meanwhile(batches: Any) -> None:
    def work() -> None:
        for _ in batches:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


@pytest.mark.parametrize("give_up", [close_it, fail_meanwhile, gc.is_tracked])
def test_an_iterator_that_is_given_up_stops_its_fetch(
    client: BlockingClient, give_up: Callable[[Any], object]
) -> None:
    """Closed, or dropped by an error, or just dropped: memory and connection are free again."""
    here = filled(client, f"given-up-{give_up.__name__}", batches=10)
    for _ in range(3):
        _read_partly(client, here, give_up)
        until(lambda: free_slots(client) == 1, "its connection to be free")
    assert connection_count(client) == 2, "every read made a connection"
    assert len(read(client, here, 0, 20)) == 20


def _read_partly(
    client: BlockingClient, here: TopicPartition, give_up: Callable[[Any], object]
) -> None:
    batches = client.read_columns(here, Offset(0), Offset(20), options=SMALL)
    assert next(batches).num_rows > 0
    chunks = batches._batches._handover.queue
    until(lambda: chunks.qsize() > 1, "chunks to wait")
    was_idle = client.is_idle
    give_up(batches)
    del batches
    assert (was_idle, client.is_idle) == (False, True)
    until(lambda: chunks.qsize() <= 1, "the chunks to be gone")


def test_closing_the_client_ends_a_read(client: BlockingClient) -> None:
    here = filled(client, "closed-in-between", batches=5)
    batches = client.read_columns(here, Offset(0), None, options=SMALL)
    assert next(batches).num_rows > 0
    closing = threading.Timer(0.2, client.close)
    closing.start()
    with pytest.raises(ClientClosed):
        for _ in batches:
            pass
    closing.join()
    with pytest.raises(ClientClosed):
        next(client.read_columns(here, Offset(0), Offset(1)))


@NO_FORK_WARNING
def test_a_forked_child_is_told_that_the_read_is_not_its_own(client: BlockingClient) -> None:
    here = filled(client, "forked", batches=5)
    batches = client.read_columns(here, Offset(0), None, options=SMALL)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            for _ in batches:
                pass
        except ClientClosed:
            again = client.read_columns(here, Offset(0), Offset(10))
            os._exit(7 if sum(one.num_rows for one in again) == 10 else 8)
        finally:
            os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert next(batches).num_rows > 0


def test_reads_of_many_threads_do_not_hold_up_each_other(client: BlockingClient) -> None:
    """One waits at the end of its log forever; the others read theirs meanwhile."""
    here, other = filled(client, "one", batches=2), filled(client, "other", batches=20)
    waiting = client.read_columns(here, Offset(4), None, options=SMALL)
    found: list[int] = []

    def wait() -> None:
        with pytest.raises(ClientClosed):
            next(waiting)

    threads = [threading.Thread(target=wait)]
    threads += [
        threading.Thread(target=lambda: found.append(len(read(client, other, 0, 40))))
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads[1:]:
        one.join(60)
    assert found == [40] * 4
    waiting.close()
    threads[0].join(60)
    assert not threads[0].is_alive()


# -- brokers that go away


def test_a_read_outlives_a_kill_of_its_broker(tmp_path: Path) -> None:
    rng = random.Random(11)
    with broker_process(tmp_path) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with client_of(broker.bootstrap_servers) as client:
            created(client, "kept", retention_ms="-1")
            here = TopicPartition("kept", 0)
            for _ in range(20):
                produce(client, here, rng, 30)
            expected = read(client, here, 0, 600)
            small = ReadOptions(partition_bytes_max=5_000, prefetch_bytes_max=10_000, timeout_s=60)
            batches = client.read_columns(
                here, Offset(0), Offset(600), columns=("offset", "value"), options=small
            )
            found = next(batches).to_pylist()
            broker.kill()
            with broker_process(tmp_path, port=port):
                for batch in batches:
                    found += batch.to_pylist()
            assert [(one["offset"], one["value"]) for one in found] == [
                (row.offset, row.value) for row in expected
            ]


def test_a_broker_that_is_gone_is_told_within_the_time(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker, client_of(broker.bootstrap_servers) as client:
        here = filled(client, "gone", batches=10)
        options = ReadOptions(partition_bytes_max=1, prefetch_bytes_max=100_000, timeout_s=1.5)
        batches = client.read_columns(here, Offset(0), Offset(20), options=options)
        next(batches)
        broker.kill()
        with pytest.raises((BrokersUnreachable, DeadlinePassed), match=r"(within|after) 1\.5 s"):
            for _ in batches:
                pass
        again = client.read_columns(here, Offset(0), Offset(20), options=options)
        with pytest.raises((BrokersUnreachable, DeadlinePassed), match=r"(within|after) 1\.5 s"):
            next(again)


def test_a_connection_that_was_idle_is_made_again(tmp_path: Path) -> None:
    """The user takes so long that the broker closes the connection; nothing is lost."""
    quick = {"connections.max.idle.ms": "300"}
    with broker_process(tmp_path, quick) as broker, client_of(broker.bootstrap_servers) as client:
        here = filled(client, "idle", batches=10)
        options = ReadOptions(partition_bytes_max=1, prefetch_bytes_max=1, timeout_s=20)
        rows = 0
        for number, batch in enumerate(
            client.read_columns(here, Offset(0), Offset(20), options=options)
        ):
            rows += batch.num_rows
            if number in (0, 3):
                until(lambda: connection_is_lost(client), "the broker to close it")
        assert rows == 20


def connection_is_lost(client: BlockingClient) -> bool:
    async def work(cluster: Cluster) -> bool:
        pool = cluster._routes._connections
        return not [at for at in list(pool._open) if at.purpose and pool.existing(at)]

    return client.run(work)


# -- for code that awaits


def test_the_asynchronous_faces_read_the_same(client: BlockingClient) -> None:
    created(client, "awaited", 3, retention_ms="-1")
    rng = random.Random(12)
    places = [TopicPartition("awaited", index) for index in range(3)]
    for one in places:
        produce(client, one, rng, 100)
    expected = {one: read(client, one, 0, 100) for one in places}
    small = ReadOptions(partition_bytes_max=2_000, prefetch_bytes_max=4_000)

    async def many(cluster: Cluster) -> dict[TopicPartition, list[int]]:
        ranges = [ReadRange(one, Offset(0), Offset(100)) for one in places]
        found: dict[TopicPartition, list[int]] = {one: [] for one in places}
        async for one in faces.read_many(cluster, ranges, columns=("offset",), options=small):
            found[one.partition] += one.batch.column(0).to_pylist()
        return found

    async def one_range(cluster: Cluster) -> list[int]:
        wanted = ReadRange(places[0], Offset(10), Offset(90))
        batches = faces.read_range(cluster, wanted, columns=("offset",), options=small)
        return [at async for batch in batches for at in batch.column(0).to_pylist()]

    found = client.run(many)
    assert found == {one: [row.offset for row in rows] for one, rows in expected.items()}
    assert client.run(one_range) == list(range(10, 90))


def test_an_asynchronous_read_can_be_given_up_and_is_told_of_stalls(
    client: BlockingClient,
) -> None:
    here = filled(client, "awaited-partly", batches=3)

    async def partly(cluster: Cluster) -> int:
        before = asyncio.all_tasks()
        async with faces.read_many(
            cluster, [ReadRange(here, Offset(0), None)], options=SMALL
        ) as batches:
            await anext(batches)
        assert asyncio.all_tasks() == before
        return len(cluster.fetch_slots._free)

    async def beyond(cluster: Cluster) -> None:
        wanted = [ReadRange(here, Offset(5), Offset(7))]
        async for _ in faces.read_many(cluster, wanted, options=ReadOptions(timeout_s=0.5)):
            pass

    client.run(partly)
    with pytest.raises(DeadlinePassed, match="from offset 6"):
        client.run(beyond)


def test_a_partition_may_be_a_plain_pair_and_is_read_once(client: BlockingClient) -> None:
    created(client, "pairs")
    here = TopicPartition("pairs", 0)
    produce_values(client, here, b"one")
    plain: Any = ("pairs", 0)
    with client.read_columns(plain, Offset(0), Offset(1), columns=["value"]) as batches:
        assert [batch.column(0).to_pylist() for batch in batches] == [[b"one"]]
        assert batches.position == 1
    wanted: Any = "pairs-0"
    with pytest.raises(TypeError, match="TopicPartition"):
        client.read_columns(wanted, Offset(0), Offset(1))
    with pytest.raises(RangeInvalid, match="pairs-0 is given twice"):
        client.read_many([ReadRange(here, Offset(0)), ReadRange(here, Offset(1))])
    with pytest.raises(RangeInvalid, match="invalid start offset 18446744073709551616"):
        client.read_columns(here, Offset(2**64), None)
