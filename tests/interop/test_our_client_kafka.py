"""The stories of our client with Apache Kafka; `tests/process/test_client.py` has ours."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.client.our_client import NOW_MS, STORIES, Story, append, created
from kits.process.waiting_for import until
from millstream.client.blocking import BlockingClient
from millstream.client.errors import BrokersUnreachable
from millstream.client.offsets import LATEST
from millstream.client.settings import ClientSettings
from millstream.model.ids import TopicPartition
from millstream.testing.peers.kafka import ApacheKafka

pytestmark = pytest.mark.interop


def client_of(kafka: ApacheKafka) -> BlockingClient:
    configs = {"bootstrap.servers": kafka.bootstrap_servers}
    return BlockingClient(ClientSettings.from_configs(configs))


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), jars=jars) as running:
        yield running


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(kafka: ApacheKafka, story: Story) -> None:
    with client_of(kafka) as client:
        story(client, story.__name__.replace("_", "-"))


def test_a_client_outlives_a_kafka(jars: Path, tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", jars=jars) as kafka, client_of(kafka) as client:
        created(client, "kept")
        here = TopicPartition("kept", 0)
        append(client, here, NOW_MS)
        kafka.kill()
        with pytest.raises(BrokersUnreachable, match=kafka.bootstrap_servers):
            client.topics(timeout_s=1)
        found: list[object] = []
        waiting = threading.Thread(target=lambda: found.append(client.list_offsets({here: LATEST})))
        waiting.start()
        kafka.start()
        waiting.join(60)
        (listed,) = found
        assert isinstance(listed, dict)
        assert listed[here].offset == 1


def test_the_last_stable_offset_is_the_end_for_who_reads_committed(kafka: ApacheKafka) -> None:
    from confluent_kafka import Producer

    with client_of(kafka) as client:
        created(client, "open-transaction")
        here = TopicPartition("open-transaction", 0)
        append(client, here, NOW_MS)
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "open"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(here.topic, b"x", partition=0)
        assert producer.flush(30) == 0
        assert client.list_offsets({here: LATEST})[here].offset == 4
        assert client.list_offsets({here: LATEST}, is_committed=True)[here].offset == 1
        producer.commit_transaction(30)
        until(
            lambda: client.list_offsets({here: LATEST}, is_committed=True)[here].offset == 5,
            "the marker is there",
        )
