"""DescribeCluster, versions 0-2."""

import pytest

from kits.broker.topic_handlers_kit import OUTSIDE, Desk, codes
from kits.broker.versions import versions_of
from millstream.broker.handlers import describe_cluster as handler
from millstream.controller.image import BrokerImage, Endpoint
from millstream.model.ids import BrokerId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def ask(
    desk: Desk, request: DescribeClusterRequest, version: int = 2, **options: str
) -> DescribeClusterResponse:
    return desk.send(handler, request, DescribeClusterResponse, version, **options)


@pytest.mark.parametrize("version", versions_of(handler))
def test_every_version_tells_the_cluster(version: int) -> None:
    desk = Desk()
    response = ask(desk, DescribeClusterRequest(), version)
    assert (response.error_code, response.error_message) == (0, None)
    assert response.cluster_id == desk.controller.image.cluster_id
    assert response.controller_id == 1
    assert response.cluster_authorized_operations == -(2**31)
    assert response.endpoint_type == 1
    broker = response.brokers[0]
    assert (broker.broker_id, broker.host, broker.port) == (1, "inside", 9092)
    assert (broker.rack, broker.is_fenced) == ("r1", False)


@pytest.mark.parametrize("version", versions_of(handler))
def test_allowed_operations_where_asked_for(version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert ask(Desk(), request, version).cluster_authorized_operations == 8096


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("kind", "error"), [(2, "MISMATCHED_ENDPOINT_TYPE"), (7, "UNSUPPORTED_ENDPOINT_TYPE")]
)
def test_only_endpoints_of_brokers_are_served(version: int, kind: int, error: str) -> None:
    response = ask(Desk(), DescribeClusterRequest(endpoint_type=kind), version)
    assert codes([response]) == [error]
    assert response.error_message
    assert response.brokers == []


def test_fenced_brokers_are_shown_where_asked_for() -> None:
    desk = Desk()
    inside = (Endpoint("PLAINTEXT", "two", 9092),)
    desk.register(BrokerImage(BrokerId(2), inside, is_fenced=True))
    assert [one.broker_id for one in ask(desk, DescribeClusterRequest()).brokers] == [1]
    everyone = ask(desk, DescribeClusterRequest(include_fenced_brokers=True)).brokers
    assert [(one.broker_id, one.is_fenced) for one in everyone] == [(1, False), (2, True)]


def test_addresses_are_those_of_the_clients_listener() -> None:
    desk = Desk()
    broker = ask(desk, DescribeClusterRequest(), listener=OUTSIDE).brokers[0]
    assert (broker.host, broker.port) == ("outside", 9093)
    nowhere = ask(desk, DescribeClusterRequest(), listener="ELSEWHERE")
    assert (nowhere.brokers, nowhere.controller_id) == ([], -1)


@pytest.mark.parametrize("version", versions_of(handler))
def test_a_whole_failure_is_its_error(version: int) -> None:
    failed = handler.failed(DescribeClusterRequest(), ErrorCode.INVALID_REQUEST, version)
    decoded = DescribeClusterResponse.decode(memoryview(failed.encode(version)), version)
    assert codes([decoded]) == ["INVALID_REQUEST"]


def test_only_broker_without_a_name_of_its_own_is_where_the_client_came_to() -> None:
    """In a container, say: its machine's name, which is for other brokers, says nothing outside."""
    desk = Desk()
    desk.services.unnamed_listeners = frozenset({"PLAINTEXT"})
    assert ask(desk, DescribeClusterRequest()).brokers[0].host == "127.0.0.1"
    outside = ask(desk, DescribeClusterRequest(), listener=OUTSIDE).brokers[0]
    assert outside.host == "outside"


def test_brokers_of_a_cluster_are_told_by_name_whoever_is_asked() -> None:
    desk = Desk()
    desk.services.unnamed_listeners = frozenset({"PLAINTEXT"})
    desk.register(BrokerImage(BrokerId(2), (Endpoint("PLAINTEXT", "two", 9092),)))
    assert [one.host for one in ask(desk, DescribeClusterRequest()).brokers] == ["inside", "two"]
