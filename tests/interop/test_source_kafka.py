"""The Spark source against Apache Kafka: the stories, and transactions.

`tests/spark/test_source_stories.py` has the stories with ours.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kits.process.waiting_for import until
from kits.spark.source_kit import World, numbered, values
from kits.spark.source_stories import STORIES, Story
from millstream.testing.peers.kafka import ApacheKafka

pytestmark = pytest.mark.interop

SETTINGS = {"log.segment.delete.delay.ms": "0"}


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), jars=jars, settings=SETTINGS) as running:
        yield running


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(kafka: ApacheKafka, story: Story) -> None:
    story(World(kafka.bootstrap_servers, story.__name__.replace("_", "-")))


def transactional(kafka: ApacheKafka, name: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "linger.ms": 1}
    )
    producer.init_transactions(30)
    return producer


def write(producer: Producer, topic: str, *texts: bytes) -> None:
    producer.begin_transaction()
    for text in texts:
        producer.produce(topic, value=text)
    assert producer.flush(20) == 0


def test_read_committed_leaves_out_what_is_open_and_what_was_aborted(kafka: ApacheKafka) -> None:
    """A stream follows the last stable offset; markers and aborted records are no lost data."""
    world = World(kafka.bootstrap_servers, "committed")
    topic = world.topic()
    committed = {"subscribe": topic, "kafka__isolation__level": "read_committed"}
    query = world.stream(startingOffsets="earliest", **committed)
    producer = transactional(kafka, "committed")
    write(producer, topic, *numbered(0, 3))
    producer.commit_transaction(20)
    write(producer, topic, b"aborted")
    producer.abort_transaction(20)
    write(producer, topic, *numbered(3, 5))
    assert values(query.next_batch()) == numbered(0, 3)
    assert query.next_batch() is None
    assert values(world.batch(**committed)) == numbered(0, 3)
    assert values(world.batch(subscribe=topic)) == [*numbered(0, 3), b"aborted", *numbered(3, 5)]
    producer.commit_transaction(20)  # its markers are written after the answer
    assert values(until(query.next_batch, "the transaction is committed")) == numbered(3, 5)
    assert values(query.restarted().replay(0)) == numbered(0, 3)
    assert query.next_batch() is None
