"""Every client finds its way to the broker, and creates, changes and deletes topics there."""

from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version

import pytest

from kits.interop.client_kit import (
    ClientRefused,
    ConnectedClient,
    ErrorNumber,
    Record,
    for_clients,
    new_topic_name,
)
from kits.interop.client_targets import Target
from kits.interop.waiting import wait_until
from millstream.testing.peers.kafka import KAFKA_VERSION

pytestmark = pytest.mark.interop

VERSIONS = {
    "confluent-kafka": version("confluent-kafka"),
    "kafka-python": version("kafka-python"),
    "aiokafka": version("aiokafka"),
    "java": KAFKA_VERSION,
    "franz-go": "v1.22.2",
    "kafkajs": "2.2.4",
    "kcat": "1.7.",
}


@for_clients()
def test_program_runs_the_client_it_is_named_after(client: ConnectedClient) -> None:
    said = client.request("hello")
    assert said["client"] == client.kind.name
    assert said["version"].startswith(VERSIONS[client.kind.name])


@for_clients()
def test_cluster_is_described(client: ConnectedClient, target: Target) -> None:
    """The one broker has id 1 and is told with the address by which it can be reached."""
    host, _, port = target.servers.rpartition(":")
    described = client.request("describe_cluster")
    assert described["brokers"] == [{"id": 1, "host": host, "port": int(port)}]
    assert described["controller"] == 1


@for_clients("create")
def test_created_topic_is_listed_and_described(client: ConnectedClient) -> None:
    topic = client.create_topic(
        new_topic_name("created"), partitions=3, configs={"retention.ms": "123456789"}
    )
    assert topic in client.request("list_topics")
    assert client.request("describe_topic", topic=topic) == {
        "partitions": 3,
        "leaders": [1, 1, 1],
        "replicas": [[1], [1], [1]],
    }
    assert client.configs("topic", topic)["retention.ms"]["value"] == "123456789"


@for_clients()
def test_topic_of_another_client_is_described(
    client: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("described", partitions=2)
    assert topic in client.request("list_topics")
    assert client.request("describe_topic", topic=topic)["leaders"] == [1, 1]


@for_clients("create")
def test_existing_topic_is_not_created_again(client: ConnectedClient) -> None:
    topic = client.create_topic(new_topic_name("twice"))
    with pytest.raises(ClientRefused) as refused:
        client.create_topic(topic)
    assert refused.value.code == ErrorNumber.TOPIC_ALREADY_EXISTS


@for_clients("create")
def test_invalid_topics_are_refused(client: ConnectedClient) -> None:
    with pytest.raises(ClientRefused) as refused:
        client.create_topic("not/a/name")
    assert refused.value.code == ErrorNumber.INVALID_TOPIC
    with pytest.raises(ClientRefused) as refused:
        client.create_topic(new_topic_name("nonsense"), configs={"retention.ms": "soon"})
    assert refused.value.code == ErrorNumber.INVALID_CONFIG


@for_clients("partitions")
def test_partitions_are_added_and_never_taken_away(
    client: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("grown", partitions=2)
    client.request("add_partitions", topic=topic, total=4)
    # Kafka's broker learns of them a moment later.
    wait_until(
        "four partitions with a leader",
        lambda: client.request("describe_topic", topic=topic)["leaders"] == [1, 1, 1, 1],
    )
    client.produce(topic, [Record(value=b"in the new one")], partition=3)
    with pytest.raises(ClientRefused) as refused:
        client.request("add_partitions", topic=topic, total=3)
    assert refused.value.code == ErrorNumber.INVALID_PARTITIONS


@for_clients("delete")
def test_deleted_topic_is_gone(
    client: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("deleted")
    client.produce(topic, [Record(value=b"soon gone")])
    client.request("delete_topic", topic=topic)
    assert topic not in client.request("list_topics")
    with pytest.raises(ClientRefused) as refused:
        client.request("delete_topic", topic=topic)
    assert refused.value.code == ErrorNumber.UNKNOWN_TOPIC_OR_PARTITION
    wait_until("its files renamed or gone", lambda: not _directory_of(target, topic))


def _directory_of(target: Target, topic: str) -> bool:
    return (target.data_directory / f"{topic}-0").exists()


@for_clients("create")
def test_deleted_topic_begins_anew(client: ConnectedClient) -> None:
    """The new topic has nothing of the old one, not even its sequence of offsets."""
    topic = client.create_topic(new_topic_name("again"))
    client.produce(topic, [Record(value=b"old")] * 3)
    client.request("delete_topic", topic=topic)
    wait_until("the name is free", lambda: _is_created(client, topic))
    client.produce(topic, [Record(value=b"new")])
    told = client.offsets(topic)
    assert (told["earliest"], told["latest"]) == (0, 1)


def _is_created(client: ConnectedClient, topic: str) -> bool:
    with suppress(ClientRefused):
        client.create_topic(topic)
        return True
    return False


@for_clients("quiet_describe")
def test_unknown_topic_is_told(client: ConnectedClient) -> None:
    topic = new_topic_name("never-made")
    with pytest.raises(ClientRefused) as refused:
        client.request("describe_topic", topic=topic)
    assert refused.value.code == ErrorNumber.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in client.request("list_topics")


@for_clients(without="quiet_describe")
def test_topic_is_created_by_being_asked_for(client: ConnectedClient) -> None:
    """These clients ask for metadata with leave to create; Kafka creates after its answer."""
    topic = new_topic_name(f"asked-{client.kind.name}")
    with suppress(ClientRefused):
        client.request("describe_topic", topic=topic)
    wait_until("it is there", lambda: topic in client.request("list_topics"))


@for_clients()
def test_topic_is_created_by_its_first_record(client: ConnectedClient, target: Target) -> None:
    """`auto.create.topics.enable` is on, as in Kafka."""
    topic = new_topic_name(f"from-{client.kind.name}")
    client.produce(topic, [Record(value=b"first")])
    assert sum(batch.record_count for batch in target.stored(topic)) == 1
