"""The first client of a fresh cluster of real processes: the named coordinator serves."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from kits.process.up_kit import cluster_up
from kits.process.wire_client import WireClient
from millstream.model.config.properties import parse_properties
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

GROUPS = [f"group-{number}" for number in range(10)]


def join_of(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


@pytest.mark.parametrize("brokers", [1, 3])
def test_named_coordinator_serves_at_once(brokers: int, tmp_path: Path) -> None:
    """The offsets topic is created by the first question. A client that is refused then, because
    its coordinator does not know the topic yet or is loading it, may pause for seconds.
    """
    with (
        cluster_up(tmp_path / "data", "--brokers", str(brokers), "--port", "0") as (_, cluster),
        ExitStack() as stack,
    ):
        places = cluster.bootstrap_servers.split(",")
        clients = {place: stack.enter_context(WireClient(place)) for place in places}
        answer = clients[places[0]].send(FindCoordinatorRequest(coordinator_keys=GROUPS), 4)
        sent = []
        for one in answer.coordinators:
            assert one.error_code == ErrorCode.NONE, one
            client = clients[f"{one.host}:{one.port}"]
            sent.append((one.key, client, client.write(join_of(one.key), 5)))
        codes = {
            group: client.read(ApiKey.JOIN_GROUP, 5, number).error_code
            for group, client, number in sent
        }
        assert codes == dict.fromkeys(GROUPS, ErrorCode.MEMBER_ID_REQUIRED)


def test_group_of_a_cluster_on_one_machine_does_not_wait_for_more_members(tmp_path: Path) -> None:
    with cluster_up(tmp_path / "data", "--port", "0") as (_, cluster):
        settings = (cluster.data / "broker-1" / "server.properties").read_text()
        assert parse_properties(settings)["group.initial.rebalance.delay.ms"] == "0"
        (place,) = cluster.bootstrap_servers.split(",")
        with WireClient(place) as client:
            client.send(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
            first = client.send(join_of("g"), 5)
            again = join_of("g")
            again.member_id = first.member_id
            answer = client.send(again, 5)
            assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, 1)
