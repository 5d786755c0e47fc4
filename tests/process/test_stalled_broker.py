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
from kits.process.stalling_program import BUSY, DEADLOCK, ENDLESS, GIL_HELD, OVER, STARTED
from kits.process.waiting_for import until
from millstream.testing.record_batches import build_batch
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPIC = "events"
SHORT_SESSION_MS = 2000
"""The shortest that a keeper grants is half of it."""
WAIT_S = 60.0
"""Far more than needed: the machine may be busy with other things."""


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
        return (self.stalling.directory / "stderr").read_text()

    def stall(self, how: signal.Signals, then: str) -> None:
        """Let the loop stall, and wait for a line that comes of it."""
        seen = self.lines().count(then)
        self.stalling.process.send_signal(how)
        until(lambda: self.lines().count(then) > seen, then, timeout_s=WAIT_S)

    def produce(self) -> ErrorCode:
        with self.stalling.client() as client:
            answer = client.produce(TOPIC, build_batch([(None, b"x")]))
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)


@contextmanager
def pair(directory: Path, *, session_ms: int) -> Iterator[Pair]:
    with keeper_process(directory / "keeper") as keeper:
        settings = {
            "zookeeper.connect": keeper.address,
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
        brokers.stall(how, OVER)
        assert brokers.produce() is ErrorCode.NONE
        assert brokers.leader() == 1
        assert brokers.lines().count("broker registered") == 1
        assert "resigned" not in brokers.lines()


@pytest.mark.parametrize("how", [DEADLOCK, ENDLESS], ids=["deadlock", "endless"])
def test_a_loop_that_hangs_for_good_loses_its_leaderships(
    tmp_path: Path, how: signal.Signals
) -> None:
    with pair(tmp_path, session_ms=SHORT_SESSION_MS) as brokers:
        brokers.stall(how, STARTED)
        until(lambda: brokers.leader() == 2, "the other broker leads", timeout_s=WAIT_S)
        assert "event loop hangs; closed the session" in brokers.lines()
