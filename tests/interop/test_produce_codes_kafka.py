"""The table of produce errors is Apache Kafka's: the same bytes, the same answers.

Besides the codes: offsets, which records were wrong, whether a time was told where the topic has
the broker's, and the log start.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.broker.produce_codes_kit import CASES, DIFFERENCES, Asker, Case, Outcome, expected
from kits.process.wire_client import WireClient
from millstream.testing.broker_thread import BrokerThread
from millstream.testing.peers.kafka import ApacheKafka
from millstream.wire.errors import ErrorCode

pytestmark = pytest.mark.interop

SILENT = [case for case in CASES if case.acks is None]


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), jars=jars) as server:
        yield server.bootstrap_servers


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    with BrokerThread({"log.level": "ERROR"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def theirs_asker(kafka: str) -> Iterator[Asker]:
    with WireClient(kafka) as client:
        yield Asker(client)


@pytest.fixture(scope="module")
def our_asker(ours: str) -> Iterator[Asker]:
    with WireClient(ours) as client:
        yield Asker(client)


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kafka_answers_the_same(
    theirs_asker: Asker, our_asker: Asker, case: Case, acks: int
) -> None:
    for version in case.versions:
        theirs = theirs_asker.outcomes(case, acks=acks, version=version)
        facts = [(one.code, one.offset, one.wrong) for one in theirs]
        assert facts == expected(case, version), version
        mine = our_asker.outcomes(case, acks=acks, version=version)
        assert comparable(case, mine) == comparable(case, theirs), version


def comparable(case: Case, found: list[Outcome]) -> list[Outcome]:
    """Kafka tells a duplicate the first one's timestamp as if the broker had stamped it."""
    if case.kind == "stamped":
        return found
    return [one._replace(is_stamped=False) for one in found]


@pytest.mark.parametrize(("case", "code"), DIFFERENCES, ids=[case.name for case, _ in DIFFERENCES])
def test_where_kafka_answers_something_else(
    theirs_asker: Asker, our_asker: Asker, case: Case, code: ErrorCode
) -> None:
    """A difference that is none any more belongs into the other table."""
    for version in case.versions:
        (theirs,) = theirs_asker.outcomes(case, acks=-1, version=version)
        (mine,) = our_asker.outcomes(case, acks=-1, version=version)
        assert theirs.code is code, version
        assert mine.code is expected(case, version)[0][0], version


@pytest.mark.parametrize("case", SILENT, ids=lambda case: case.name)
def test_kafka_closes_the_connection_on_the_same(
    kafka: str, theirs_asker: Asker, case: Case
) -> None:
    is_refused = any(step.code is not ErrorCode.NONE for step in case.steps(1))
    for version in (case.versions[0], case.versions[-1]):
        assert theirs_asker.is_refused_silently(kafka, case, version) == is_refused, version
