"""What every client sends is stored as the client sent it: read from the files of the log."""

from collections.abc import Callable

import pytest

from conftest import ByName
from kits.interop.client_kit import (
    START_MS,
    ClientRefused,
    ConnectedClient,
    ErrorNumber,
    Record,
    for_clients,
    for_clients_and_codecs,
    some_records,
)
from kits.interop.client_targets import Target

pytestmark = pytest.mark.interop

NO_PRODUCER = -1
RICH_RECORDS = [
    Record(key=b"key", value=b"value", timestamp_ms=START_MS),
    Record(key=None, value=b"without a key", timestamp_ms=START_MS + 1),
    Record(key=b"tombstone", value=None, timestamp_ms=START_MS + 2),
    Record(key=b"", value=b"", timestamp_ms=START_MS + 3),
    Record(key=bytes(range(256)), value=bytes(range(256)) * 40, timestamp_ms=START_MS + 4),
    Record(
        value=b"with headers",
        headers=(("one", b"1"), ("two", b""), ("three", bytes(range(256))), ("größe", b"utf-8")),
        timestamp_ms=START_MS + 5,
    ),
    Record(value=b"again and none", headers=(("a", b"1"), ("a", b"2")), timestamp_ms=START_MS + 6),
]


@for_clients_and_codecs()
def test_codec_is_the_one_that_is_stored(
    client: ConnectedClient,
    codec: str,
    target: Target,
    new_topic: Callable[..., str],
    client_of: ByName,
) -> None:
    """The batch keeps its codec (`compression.type=producer`), and others can read it."""
    topic = new_topic(f"{codec}-by-{client.kind.name}")
    records = some_records(100, timed=client.kind.can("timestamps"))
    client.produce(topic, records, codec=codec)
    stored = target.stored(topic)
    assert {batch.codec for batch in stored} == {codec}
    assert sum(batch.record_count for batch in stored) == len(records)
    for reader in ("java", "confluent-kafka"):
        read = client_of(reader).consume(topic, len(records))
        assert [(one.key, one.value) for one in read] == [(r.key, r.value) for r in records]


@for_clients()
def test_producer_has_an_id_where_the_client_is_idempotent(
    client: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(f"by-default-{client.kind.name}")
    client.produce(topic, [Record(value=b"as the client likes")])
    (batch,) = target.stored(topic)
    assert (batch.producer_id != NO_PRODUCER) == client.kind.is_idempotent_by_default


@for_clients()
def test_idempotent_producers_have_ids_of_their_own(
    client: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    """Each starts with sequence 0 and counts every record."""
    topic = new_topic(f"idempotent-{client.kind.name}")
    for _ in range(2):
        client.produce(topic, some_records(50), idempotent=True)
    stored = target.stored(topic)
    by_producer: dict[int, int] = {}
    for batch in stored:
        assert batch.producer_id != NO_PRODUCER
        assert batch.base_sequence == by_producer.get(batch.producer_id, 0)
        by_producer[batch.producer_id] = batch.base_sequence + batch.record_count
    assert list(by_producer.values()) == [50, 50]


@for_clients()
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_all_kinds_of_acknowledgement(
    client: ConnectedClient, acks: str, new_topic: Callable[..., str], client_of: ByName
) -> None:
    topic = new_topic(f"acks-{acks}-{client.kind.name}")
    records = some_records(20, timed=False)
    offsets = client.produce(topic, records, acks=acks, idempotent=None)
    if acks != "0" and client.kind.can("reports_offsets"):
        assert offsets == list(range(20))
    # Without acknowledgements the records may come a little later; the consumer waits for them.
    read = client_of("confluent-kafka").consume(topic, len(records))
    assert [one.value for one in read] == [record.value for record in records]


@for_clients("rich_records")
def test_records_come_back_as_they_were_sent(
    client: ConnectedClient, new_topic: Callable[..., str], client_of: ByName
) -> None:
    topic = new_topic(f"rich-{client.kind.name}")
    offsets = client.produce(topic, RICH_RECORDS)
    assert offsets == list(range(len(RICH_RECORDS)))
    expected = [record._replace(offset=n) for n, record in enumerate(RICH_RECORDS)]
    for reader in {"java", "franz-go", client.kind.name} - {"kafkajs"}:
        assert client_of(reader).consume(topic, len(expected)) == expected


@for_clients()
def test_record_goes_to_the_partition_it_is_sent_to(
    client: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(f"placed-{client.kind.name}", partitions=3)
    client.produce(topic, [Record(value=b"in the last")], partition=2)
    assert [len(target.stored(topic, partition)) for partition in range(3)] == [0, 0, 1]


@for_clients()
def test_too_large_record_is_refused_by_the_broker(
    client: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(f"small-only-{client.kind.name}", max_message_bytes="5000")
    with pytest.raises(ClientRefused) as refused:
        client.produce(topic, [Record(value=b"x" * 6000)])
    assert refused.value.code == ErrorNumber.MESSAGE_TOO_LARGE
    client.produce(topic, [Record(value=b"x" * 4000)])
    assert sum(batch.record_count for batch in target.stored(topic)) == 1


@for_clients()
def test_large_record_is_taken(
    client: ConnectedClient, new_topic: Callable[..., str], client_of: ByName
) -> None:
    """Larger than what a consumer asks for at a time."""
    topic = new_topic(f"large-{client.kind.name}", max_message_bytes=str(8 << 20))
    value = bytes(range(1, 11)) * 300_000
    client.produce(topic, [Record(value=value), Record(value=b"after it")])
    for reader in {"confluent-kafka", client.kind.name} - {"kafkajs"}:
        assert [r.value for r in client_of(reader).consume(topic, 2)] == [value, b"after it"]


@for_clients()
def test_append_time_replaces_the_time_of_the_client(
    client: ConnectedClient,
    target: Target,
    new_topic: Callable[..., str],
    client_of: ByName,
) -> None:
    topic = new_topic(f"stamped-{client.kind.name}", message_timestamp_type="LogAppendTime")
    old = [record._replace(timestamp_ms=1_000) for record in some_records(3)]
    client.produce(topic, old)
    assert all(batch.is_append_time for batch in target.stored(topic))
    read = client_of("java").consume(topic, 3)
    assert all((record.timestamp_ms or 0) > START_MS for record in read)
