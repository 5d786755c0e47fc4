"""A broker whose event loop is busy for five seconds goes on leading; one that hangs does not."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kits.process import stalling_program
from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.keeper_process import keeper_process
from kits.process.stalling_program import (
    BUSY,
    DEADLOCK,
    ENDLESS,
    GIL_HELD,
    OVER,
    STALL_S,
    STARTED,
)
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.testing.record_batches import build_batch
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.sync_group import SyncGroupRequest

TOPIC = "events"
GROUP = "readers"
SHORT_SESSION_MS = 2000
"""The shortest that a keeper grants is half of it."""
WAIT_S = 60.0
"""Far more than needed: the machine may be busy with other things."""


def lines_of(broker: BrokerProcess) -> str:
    return (broker.directory / "stderr").read_text()


def stall(broker: BrokerProcess, how: signal.Signals, then: str) -> None:
    """Let the loop stall, and wait for a line that comes of it."""
    seen = lines_of(broker).count(then)
    broker.process.send_signal(how)
    until(lambda: lines_of(broker).count(then) > seen, then, timeout_s=WAIT_S)


class Pair:
    """Two brokers of a cluster: the first leads the partition, and stalls on demand."""

    def __init__(self, stalling: BrokerProcess, other: BrokerProcess) -> None:
        self.stalling = stalling
        self._other = other
        topic = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]])
        admin = AdminClient({"bootstrap.servers": other.bootstrap_servers})
        admin.create_topics([topic])[TOPIC].result(20)
        until(lambda: self._facts() == (1, {1, 2}), "both are in sync", timeout_s=WAIT_S)

    def _facts(self) -> tuple[int, set[int]]:
        """The partition's leader and in-sync replicas, as the other broker knows them."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        with self._other.client() as client:
            topic = client.send(request, 12).topics[0]
        found = topic.partitions[0] if topic.partitions else None
        return (found.leader_id, set(found.isr_nodes)) if found else (-1, set())

    def leader(self) -> int:
        return self._facts()[0]

    def lines(self) -> str:
        return lines_of(self.stalling)

    def produce(self) -> ErrorCode:
        with self.stalling.client() as client:
            answer = client.produce(TOPIC, build_batch([(None, b"x")]))
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)


class Member:
    """The only member of a group, with a connection of its own."""

    def __init__(self, client: WireClient, *, session_ms: int) -> None:
        self._client = client
        find = FindCoordinatorRequest(key=GROUP)
        until(lambda: client.send(find, 2).error_code == ErrorCode.NONE, "there is a coordinator")
        name = JoinGroupRequestProtocol(name="range", metadata=b"")
        join = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms,
            member_id="",
            protocol_type="consumer",
            protocols=[name],
        )
        first = until(lambda: self._joined(join), "the member has joined")
        assert first is not None
        self._member_id, self._generation = first.member_id, first.generation_id
        sync = SyncGroupRequest(
            group_id=GROUP, generation_id=self._generation, member_id=self._member_id
        )
        assert client.send(sync, 3).error_code == ErrorCode.NONE

    def _joined(self, join: JoinGroupRequest) -> JoinGroupResponse | None:
        answer: JoinGroupResponse = self._client.send(join, 3)
        return answer if answer.error_code == ErrorCode.NONE else None

    def send_heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self._generation, member_id=self._member_id
        )
        self._client.write(request, 3)

    def heartbeat_answer(self) -> ErrorCode:
        return ErrorCode(self._client.read(ApiKey.HEARTBEAT, 3).error_code)


@contextmanager
def pair(directory: Path, *, session_ms: int) -> Iterator[Pair]:
    with keeper_process(directory / "keeper") as keeper:
        settings = {
            **keeper.settings,
            "zookeeper.session.timeout.ms": str(session_ms),
        }
        with (
            broker_process(
                directory / "1", settings, program=stalling_program.__file__
            ) as stalling,
            broker_process(directory / "2", {**settings, "broker.id": "2"}) as other,
        ):
            try:
                yield Pair(stalling, other)
            finally:
                stalling.kill()  # one that hangs does not hear SIGTERM


@pytest.mark.parametrize("how", [BUSY, GIL_HELD], ids=["busy", "gil"])
def test_five_seconds_of_work_cost_neither_the_session_nor_a_leadership(
    tmp_path: Path, how: signal.Signals
) -> None:
    with pair(tmp_path, session_ms=6000) as brokers:
        stall(brokers.stalling, how, OVER)
        assert brokers.produce() is ErrorCode.NONE
        assert brokers.leader() == 1
        assert brokers.lines().count("broker registered") == 1
        assert "resigned" not in brokers.lines()


def test_a_heartbeat_that_waited_for_the_broker_is_in_time(tmp_path: Path) -> None:
    """The session's time is up when the loop goes on, and the heartbeat has not been read yet."""
    settings = {"group.min.session.timeout.ms": "100"}
    with (
        broker_process(tmp_path / "1", settings, program=stalling_program.__file__) as broker,
        broker.client() as client,
    ):
        member = Member(client, session_ms=STALL_S * 1000 * 3 // 5)
        stall(broker, BUSY, STARTED)
        member.send_heartbeat()
        assert member.heartbeat_answer() is ErrorCode.NONE


@pytest.mark.parametrize("how", [DEADLOCK, ENDLESS], ids=["deadlock", "endless"])
def test_a_loop_that_hangs_for_good_loses_its_leaderships(
    tmp_path: Path, how: signal.Signals
) -> None:
    with pair(tmp_path, session_ms=SHORT_SESSION_MS) as brokers:
        stall(brokers.stalling, how, STARTED)
        until(lambda: brokers.leader() == 2, "the other broker leads", timeout_s=WAIT_S)
        # Logged behind the end of the session, so that the other may lead before.
        until(lambda: "event loop hangs; closed the session" in brokers.lines(), "it is logged")
