"""What a refused request brought is gone with its answer: no error keeps frames, or is in a cycle.

A broker collects garbage rarely: what is in a cycle stays for up to an hour.
"""

from collections.abc import Iterator
from random import Random

import pytest

from kits.broker.produce_codes_kit import CASES, Asker
from kits.broker.produce_codes_kit import Case as ProduceCase
from kits.process.refusals import LEFT_OUT, drawn_request, garbage_errors, send_all
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.broker.requests.registry import SERVED
from millstream.shards.errors import RequestRefused
from millstream.testing import BrokerThread
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest

REQUESTS = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread({"log.level": "ERROR"}) as running:
        with WireClient(running.bootstrap_servers) as client:
            client.create_topic("here")
            until(lambda: has_coordinator(client), "there is a group coordinator")
        yield running


def has_coordinator(client: WireClient) -> bool:
    client.send(FindCoordinatorRequest(key="g"), 2)
    answer = client.send(HeartbeatRequest(group_id="g"), 0)
    return bool(answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("key", sorted(set(SERVED) - LEFT_OUT), ids=lambda key: key.name)
def test_no_error_of_a_request_waits_for_the_garbage_collector(
    broker: BrokerThread, key: ApiKey
) -> None:
    random = Random(key)
    requests = [drawn_request(key, random) for _ in range(REQUESTS)]
    send_all(broker.bootstrap_servers, iter(requests[:5]))  # what the first one loads stays
    with garbage_errors() as found:
        send_all(broker.bootstrap_servers, iter(requests))
    assert found == []


@pytest.fixture(scope="module", params=["staged", "python"])
def asker(request: pytest.FixtureRequest, broker: BrokerThread) -> Iterator[Asker]:
    with WireClient(broker.bootstrap_servers) as client:
        yield Asker(client, {"flush.messages": "1000000000"} if request.param == "python" else None)


@pytest.mark.parametrize(
    "case", [one for one in CASES if one.acks is None], ids=lambda one: one.name
)
def test_no_error_of_a_refused_batch_waits_for_it_either(asker: Asker, case: ProduceCase) -> None:
    version = max(case.versions)
    with garbage_errors() as found:
        asker.outcomes(case, acks=-1, version=version)
        asker.outcomes(case, acks=1, version=version)
    assert found == []


def test_nor_does_one_that_waited_for_its_coordinator() -> None:
    with BrokerThread({"log.level": "ERROR"}) as running, garbage_errors() as found:
        # There is no topic for groups yet: the request waits for a moment, then it is refused.
        send_all(
            running.bootstrap_servers, iter([(OffsetFetchRequest(group_id="g", topics=[]), 3)])
        )
    assert [one for one in found if isinstance(one, RequestRefused)] == []
