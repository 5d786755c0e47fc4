"""Kafka's error code for every batch that is refused, in every version, both ways through the
broker: staged by the connection core, and by the handler in Python.
"""

import uuid
from collections.abc import Iterator

import pytest

from kits.broker.produce_codes_kit import CASES, DIFFERENCES, VERSIONS, Asker, Case, batch, expected
from kits.process.wire_client import WireClient
from millstream.replication.partition import Partition
from millstream.testing import BrokerThread
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

IN_PYTHON = {"flush.messages": "1000000000"}
"""A flush that never comes: the connection core leaves such topics to the handler."""


OURS = [*CASES, *(case for case, _ in DIFFERENCES)]
SILENT = [case for case in OURS if case.acks is None]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread({"log.level": "ERROR"}) as running:
        yield running


@pytest.fixture(scope="module", params=["staged", "python"])
def asker(request: pytest.FixtureRequest, broker: BrokerThread) -> Iterator[Asker]:
    with WireClient(broker.bootstrap_servers) as client:
        yield Asker(client, IN_PYTHON if request.param == "python" else None)


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics of all batches that come through Python."""
    seen: list[str] = []
    append = Partition.append

    def noting(partition: Partition, *arguments: object, **options: object) -> None:
        seen.append(partition.partition.topic)
        append(partition, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Partition, "append", noting)
    return seen


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("case", OURS, ids=lambda case: case.name)
def test_every_version_has_kafkas_code(asker: Asker, case: Case, acks: int) -> None:
    for version in case.versions:
        found = asker.outcomes(case, acks=acks, version=version)
        facts = [(one.code, one.offset, one.wrong) for one in found]
        assert facts == expected(case, version), version


@pytest.mark.parametrize("case", SILENT, ids=lambda case: case.name)
def test_without_acknowledgement_an_error_closes_the_connection(
    broker: BrokerThread, asker: Asker, case: Case
) -> None:
    is_refused = any(step.code is not ErrorCode.NONE for step in case.steps(1))
    for version in (case.versions[0], case.versions[-1]):
        place = broker.bootstrap_servers
        assert asker.is_refused_silently(place, case, version) == is_refused, version


# -- both ways ---------------------------------------------------------------------------------

PLAIN = Case("plain", lambda _: ())


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_which_way_a_batch_goes(asker: Asker, appends: list[str], acks: int) -> None:
    """The core stages a known producer's next batch; a duplicate is the handler's to answer."""
    is_staged = "flush" not in str(asker.configs)
    producer_id = asker.new_producer()
    ways = []
    for sequence in (0, 1, 2, 2, 3):
        records = bytes(batch(producer=(producer_id, 0, sequence)))
        before = len(appends)
        request = asker.request(PLAIN, records, acks=acks, version=9)
        if acks:
            asker.client.send(request, 9)
        else:
            asker.client.write(request, 9)
            asker.client.send(MetadataRequest(topics=[]), 9)
        ways.append(len(appends) > before)
    assert ways == ([True, False, False, True, False] if is_staged else [True] * 5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
def test_duplicates_that_come_at_once_have_the_first_ones_offset(
    asker: Asker, version: int, acks: int
) -> None:
    """All in the broker's buffer before it looks: what is staged and not yet written counts."""
    producer_id = asker.new_producer()
    first = asker.request(
        PLAIN, bytes(batch(producer=(producer_id, 0, 0))), acks=acks, version=version
    )
    base = asker.client.send(first, version).responses[0].partition_responses[0].base_offset
    sequences = [1, 1, 2, 3, 2, 1, 5, 4, 4]
    codes = [0, 0, 0, 0, 0, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0]
    for sequence in sequences:
        records = bytes(batch(producer=(producer_id, 0, sequence)))
        request = asker.request(PLAIN, records, acks=acks, version=version)
        last = asker.client.write(request, version)
    answers = [
        asker.client.read(ApiKey.PRODUCE, version, last - len(sequences) + 1 + number)
        for number in range(len(sequences))
    ]
    parts = [answer.responses[0].partition_responses[0] for answer in answers]
    assert [one.error_code for one in parts] == codes
    offsets = [one.base_offset - base for one in parts if one.error_code == 0]
    assert offsets == [sequence for sequence in sequences if sequence != 5]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250])
def test_a_name_that_no_topic_can_have(broker: BrokerThread, name: str) -> None:
    """Where topics are made or asked for; Produce only says that there is none."""
    with WireClient(broker.bootstrap_servers) as client:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        created = client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        found = client.send(asked, 9)
        assert found.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_unknown_topic_is_not_made_by_writing_to_it(broker: BrokerThread) -> None:
    name = f"never-{uuid.uuid4().hex}"
    with WireClient(broker.bootstrap_servers) as client:
        answer = client.produce(name, bytes(batch()))
        code = answer.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        assert client.send(asked, 9).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
