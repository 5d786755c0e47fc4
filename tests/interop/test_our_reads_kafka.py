"""Reading by offset from Apache Kafka: the stories, transactions, a broker that is killed.

`tests/process/test_client_reading.py` has the stories with ours.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kits.client.reading_stories import (
    STORIES,
    Story,
    created,
    oracle,
    produce,
    random_record,
    read,
)
from kits.interop.waiting import wait_until
from millstream.client.blocking import BlockingClient
from millstream.client.errors import DeadlinePassed
from millstream.client.fetch.options import ReadOptions
from millstream.client.offsets import LATEST
from millstream.client.settings import ClientSettings
from millstream.model.ids import Offset, TopicPartition
from millstream.testing.peers.kafka import ApacheKafka

pytestmark = pytest.mark.interop

COMMITTED = ReadOptions(is_committed=True, timeout_s=20)
UNCOMMITTED = ReadOptions(is_committed=False, timeout_s=20)
SETTINGS = {"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "0"}


def client_of(kafka: ApacheKafka) -> BlockingClient:
    configs = {"bootstrap.servers": kafka.bootstrap_servers}
    return BlockingClient(ClientSettings.from_configs(configs))


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), jars=jars, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def client(kafka: ApacheKafka) -> Iterator[BlockingClient]:
    with client_of(kafka) as made:
        yield made


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(client: BlockingClient, story: Story) -> None:
    story(client, story.__name__.replace("_", "-"))


# -- transactions


class Writer:
    """A producer whose every transaction ends one way or the other."""

    def __init__(self, client: BlockingClient, name: str, codec: str) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": str(client.settings.bootstrap_servers[0]),
                "transactional.id": name,
                "compression.type": codec,
                "linger.ms": 1,
            }
        )
        self.producer.init_transactions(30)
        self.is_open = False

    def write(self, to: TopicPartition, rng: random.Random, count: int) -> None:
        if not self.is_open:
            self.producer.begin_transaction()
            self.is_open = True
        for _ in range(count):
            record: dict[str, Any] = random_record(rng)
            self.producer.produce(to.topic, partition=to.partition, **record)
        assert self.producer.flush(30) == 0

    def end(self, *, commits: bool) -> None:
        if self.is_open:
            end = self.producer.commit_transaction if commits else self.producer.abort_transaction
            end(30)
            self.is_open = False


def ends(client: BlockingClient, here: TopicPartition) -> tuple[int, int]:
    """Of what is committed, and of everything."""
    found = [
        client.list_offsets({here: LATEST}, is_committed=committed)[here].offset
        for committed in (True, False)
    ]
    return found[0] or 0, found[1] or 0


def test_random_transactions_are_read_as_librdkafka_reads_them(client: BlockingClient) -> None:
    """Several producers at once, committed, aborted and open, with plain records between them."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    created(client, "transactions")
    here = TopicPartition("transactions", 0)
    writers = [Writer(client, f"w{at}", codec) for at, codec in enumerate(("none", "lz4", "zstd"))]
    for _ in range(60):
        writer = rng.choice(writers)
        if rng.random() < 0.5:
            writer.write(here, rng, rng.choice((1, 3, 40)))
        elif rng.random() < 0.2:
            produce(client, here, rng, 3)
        else:
            writer.end(commits=rng.random() < 0.5)
    writers[0].write(here, rng, 5)  # one stays open
    stable, end = ends(client, here)
    assert stable < end
    committed = oracle(client, here, 0, stable, **{"isolation.level": "read_committed"})
    everything = oracle(client, here, 0, end)
    assert len(committed) < len(everything) < end
    assert read(client, here, 0, end, options=UNCOMMITTED) == everything
    for _ in range(8):
        start, stop = sorted((rng.randrange(stable), rng.randrange(stable + 1)))
        options = ReadOptions(
            is_committed=True,
            timeout_s=20,
            batch_bytes=rng.choice((1, 3000, None)),
            partition_bytes_max=rng.choice((1, 5000, None)),
        )
        expected = [row for row in committed if start <= row.offset < stop]
        assert read(client, here, start, stop, options=options) == expected
    beyond = ReadOptions(is_committed=True, timeout_s=1)
    with pytest.raises(DeadlinePassed, match=f"from offset {stable}"):
        list(client.read_columns(here, Offset(stable), Offset(end), options=beyond))
    writers[0].end(commits=False)


def test_a_range_ends_although_nothing_of_its_end_may_be_seen(client: BlockingClient) -> None:
    """A commit marker is the last record; then a whole range of aborted ones."""
    created(client, "markers")
    here = TopicPartition("markers", 0)
    writer = Writer(client, "markers", "none")
    rng = random.Random(1)
    writer.write(here, rng, 5)
    writer.end(commits=True)
    # The coordinator answers when the end is decided; its marker comes a little later.
    wait_until("the marker is written", lambda: ends(client, here) == (6, 6))
    assert [row.offset for row in read(client, here, 0, 6, options=COMMITTED)] == [0, 1, 2, 3, 4]
    assert read(client, here, 5, 6, options=UNCOMMITTED) == []
    writer.write(here, rng, 10)
    writer.end(commits=False)
    assert read(client, here, 6, 17, options=COMMITTED) == []
    assert read(client, here, 12, 17, options=COMMITTED) == []
    assert len(read(client, here, 12, 17, options=UNCOMMITTED)) == 4


def test_a_read_outlives_a_kill_of_a_kafka(jars: Path, tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", jars=jars) as kafka, client_of(kafka) as client:
        created(client, "kept", flush_messages="1")
        here = TopicPartition("kept", 0)
        for _ in range(10):
            produce(client, here, random.Random(2), 30)
        expected = read(client, here, 0, 300)
        small = ReadOptions(partition_bytes_max=3_000, prefetch_bytes_max=6_000, timeout_s=90)
        batches = client.read_columns(
            here, Offset(0), Offset(300), columns=("offset", "key"), options=small
        )
        found = next(batches).to_pylist()
        kafka.kill()
        kafka.start()
        for batch in batches:
            found += batch.to_pylist()
        assert [(one["offset"], one["key"]) for one in found] == [
            (row.offset, row.key) for row in expected
        ]
