"""Every client reads by assignment: from the beginning, from an offset, from a time."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import ByName
from kits.interop.client_kit import (
    START_MS,
    ClientRefused,
    ConnectedClient,
    ErrorNumber,
    Record,
    for_clients,
    some_records,
)
from kits.interop.client_targets import CODECS

pytestmark = pytest.mark.interop


@pytest.fixture
def filled(new_topic: Callable[..., str], client_of: ByName) -> tuple[str, list[Record]]:
    """A topic with twenty records in batches of every codec, a second apart."""
    topic = new_topic("filled")
    records = some_records(20)
    producer = client_of("confluent-kafka")
    for n, codec in enumerate(CODECS):
        producer.produce(topic, records[n * 4 : n * 4 + 4], codec=codec)
    return topic, [record._replace(offset=n) for n, record in enumerate(records)]


@for_clients("consume")
def test_from_the_beginning(client: ConnectedClient, filled: tuple[str, list[Record]]) -> None:
    topic, records = filled
    assert client.consume(topic, 20) == records


@for_clients("consume")
@pytest.mark.parametrize("offset", [0, 6, 19])
def test_from_an_offset(
    client: ConnectedClient, offset: int, filled: tuple[str, list[Record]]
) -> None:
    """Also from within a batch: what comes before in it is left out."""
    topic, records = filled
    assert client.consume(topic, 20 - offset, at="offset", offset=offset) == records[offset:]


@for_clients("consume")
@pytest.mark.parametrize(("after_ms", "first"), [(-5000, 0), (6000, 6), (6001, 7), (19_000, 19)])
def test_from_a_time(
    client: ConnectedClient, after_ms: int, first: int, filled: tuple[str, list[Record]]
) -> None:
    topic, records = filled
    found = client.consume(topic, 20 - first, at="time", timestamp_ms=START_MS + after_ms)
    assert found == records[first:]


@for_clients("consume")
def test_reader_at_the_end_gets_what_comes_later(
    client: ConnectedClient, filled: tuple[str, list[Record]], client_of: ByName
) -> None:
    topic, _ = filled
    producer = client_of("java" if client.kind.name == "confluent-kafka" else "confluent-kafka")
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(client.consume, topic, 1, at="offset", offset=20)
        producer.produce(topic, [Record(value=b"at last")])
        (record,) = reading.result()
    assert (record.offset, record.value) == (20, b"at last")


@for_clients("consume", "reports_range")
def test_offset_beyond_the_end_is_told(
    client: ConnectedClient, filled: tuple[str, list[Record]]
) -> None:
    topic, _ = filled
    with pytest.raises(ClientRefused) as refused:
        client.consume(topic, 1, at="offset", offset=21)
    assert refused.value.code in (ErrorNumber.OFFSET_OUT_OF_RANGE, None)
    assert re.search("out.?of.?range", str(refused.value), re.IGNORECASE)


@for_clients()
def test_offsets_are_told(client: ConnectedClient, filled: tuple[str, list[Record]]) -> None:
    topic, _ = filled
    told = client.offsets(topic, timestamp_ms=START_MS + 6500)
    assert (told["earliest"], told["latest"], told["at_time"]) == (0, 20, 7)


def test_record_with_the_newest_time_is_told(
    client_of: ByName, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("newest")
    java = client_of("java")
    times = [START_MS + 5, START_MS + 9, START_MS + 7]
    java.produce(topic, [Record(value=b"v", timestamp_ms=at) for at in times])
    assert java.offsets(topic)["max_timestamp"] == 1


@for_clients("delete_records")
def test_deleted_records_are_not_read(
    client: ConnectedClient, filled: tuple[str, list[Record]], client_of: ByName
) -> None:
    topic, records = filled
    assert client.request("delete_records", topic=topic, partition=0, before=6) == 6
    told = client.offsets(topic)
    assert (told["earliest"], told["latest"]) == (6, 20)
    assert client_of("java").consume(topic, 14) == records[6:]
    with pytest.raises(ClientRefused) as refused:
        client.request("delete_records", topic=topic, partition=0, before=21)
    assert refused.value.code == ErrorNumber.OFFSET_OUT_OF_RANGE
