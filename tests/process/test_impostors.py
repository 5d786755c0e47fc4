"""Clients that pose as brokers, on a real cluster of three: refused, and without effect.

Everything that a client could find out is given to it: ids and epochs are the right ones.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kits.process.up_kit import Cluster, cluster_up
from kits.process.wire_client import WireClient, build_batch, produce_request
from millstream.controller.identity import LOST_DIRECTORY
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import encode_request_header
from millstream.wire.messages import alter_partition, assign_replicas_to_dirs
from millstream.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.envelope import EnvelopeRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.wire.messages.pull_metadata import PullMetadataRequest

TOPIC = "events"
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Attacked:
    """The cluster as one of its clients sees it."""

    def __init__(self, cluster: Cluster, lines: Path) -> None:
        self.cluster = cluster
        self._lines = lines

    def metadata(self) -> Any:
        with WireClient(self.cluster.bootstrap_servers.split(",")[0]) as client:
            return client.send(MetadataRequest(topics=None), 12)

    @property
    def topic_id(self) -> UUID:
        (found,) = [one for one in self.metadata().topics if one.name == TOPIC]
        topic_id: UUID = found.topic_id
        return topic_id

    def partitions(self) -> dict[int, tuple[int, int, list[int]]]:
        """Leader, leader epoch and in-sync replicas of each partition."""
        (found,) = [one for one in self.metadata().topics if one.name == TOPIC]
        return {
            one.partition_index: (one.leader_id, one.leader_epoch, sorted(one.isr_nodes))
            for one in found.partitions
        }

    def epoch_of(self, broker_id: int) -> int:
        """As its own log has it."""
        lines = [json.loads(one) for one in self._lines.read_text().splitlines() if one[:1] == "{"]
        told = [one for one in lines if one["message"] == "broker registered"]
        return int([one["epoch"] for one in told if one["broker"] == broker_id][-1])

    def client_of(self, broker_id: int) -> WireClient:
        (found,) = [one for one in self.metadata().brokers if one.node_id == broker_id]
        return WireClient(f"{found.host}:{found.port}")

    def controller(self) -> WireClient:
        answers = [self.client_of(one.node_id) for one in self.metadata().brokers]
        wanted = self.cluster.admin.list_topics(timeout=10).controller_id
        chosen = self.client_of(wanted)
        for one in answers:
            one.socket.close()
        return chosen

    def log_lines(self, message: str) -> list[str]:
        return [one for one in self._lines.read_text().splitlines() if message in one]

    @contextmanager
    def stopped(self, *broker_ids: int) -> Iterator[None]:
        with ExitStack() as stack:
            for one in broker_ids:
                pid = self.cluster.pid(one)
                stack.callback(os.kill, pid, signal.SIGCONT)
                os.kill(pid, signal.SIGSTOP)
            yield


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    root = tmp_path_factory.mktemp("attacked")
    with cluster_up(root / "data", "--brokers", "3", "--port", "0") as (_, cluster):
        cluster.create(TOPIC)
        cluster.in_sync(TOPIC, 3)
        yield Attacked(cluster, root / "stderr")


def test_epochs_of_brokers_are_not_given_to_clients(attacked: Attacked) -> None:
    with attacked.controller() as client:
        answer = client.send(PullMetadataRequest(broker_id=1, max_wait_ms=100), 0)
    assert answer.brokers is None
    assert answer.topics == []
    assert answer.error_code == REFUSED


def test_a_client_cannot_take_a_brokers_leaderships(attacked: Attacked) -> None:
    before = attacked.partitions()
    victim = before[0][0]
    request = BrokerHeartbeatRequest(
        broker_id=victim, broker_epoch=attacked.epoch_of(victim), want_shut_down=True
    )
    with attacked.controller() as client:
        answer = client.send(request, 1)
    assert attacked.partitions() == before
    assert answer.error_code == REFUSED


def test_a_client_cannot_declare_directories_lost(attacked: Attacked) -> None:
    before = attacked.partitions()
    victim = before[0][0]
    module = assign_replicas_to_dirs
    partitions = [module.RequestPartitionData(partition_index=one) for one in before]
    topic = module.RequestTopicData(topic_id=attacked.topic_id, partitions=partitions)
    request = module.AssignReplicasToDirsRequest(
        broker_id=victim,
        broker_epoch=attacked.epoch_of(victim),
        directories=[module.RequestDirectoryData(id=LOST_DIRECTORY, topics=[topic])],
    )
    with attacked.controller() as client:
        answer = client.send(request, 0)
    assert attacked.partitions() == before
    assert answer.error_code == REFUSED


def test_a_client_cannot_change_in_sync_replicas(attacked: Attacked) -> None:
    before = attacked.partitions()
    leader, epoch, _ = before[1]
    broker_epoch = attacked.epoch_of(leader)
    module = alter_partition
    states = [module.BrokerState(broker_id=leader, broker_epoch=broker_epoch)]
    with attacked.controller() as client:
        for partition_epoch in range(5):
            partition = module.RequestPartitionData(
                partition_index=1,
                leader_epoch=epoch,
                new_isr_with_epochs=states,
                partition_epoch=partition_epoch,
            )
            topic = module.RequestTopicData(topic_id=attacked.topic_id, partitions=[partition])
            request = module.AlterPartitionRequest(
                broker_id=leader, broker_epoch=broker_epoch, topics=[topic]
            )
            answer = client.send(request, 3)
            assert (answer.error_code, answer.topics) == (REFUSED, [])
    assert attacked.partitions() == before


def test_a_client_cannot_forward_requests(attacked: Attacked) -> None:
    inner = CreateTopicsRequest(
        topics=[CreatableTopic(name="smuggled", num_partitions=1, replication_factor=1)],
        timeout_ms=5000,
    )
    header = encode_request_header(ApiKey.CREATE_TOPICS, 7, 1, "somebody")
    request = EnvelopeRequest(
        request_data=header + inner.encode(7),
        request_principal=None,
        client_host_address=b"10.9.8.7",
    )
    with attacked.controller() as client:
        answer = client.send(request, 0)
    assert "smuggled" not in {one.name for one in attacked.metadata().topics}
    assert (answer.error_code, answer.response_data) == (REFUSED, None)


def follower_fetch(attacked: Attacked, follower: int, version: int) -> FetchRequest:
    """Fetches partition 2 from offset 1: what is before it is on the follower's disk, it says."""
    part = FetchPartition(partition=2, fetch_offset=1, partition_max_bytes=1 << 20)
    topic = FetchTopic(partitions=[part])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
    if version >= 15:
        request.replica_state = ReplicaState(
            replica_id=follower, replica_epoch=attacked.epoch_of(follower)
        )
    else:
        request.replica_id = follower
    if version >= 13:
        topic.topic_id = attacked.topic_id
    else:
        topic.topic = TOPIC
    return request


def test_a_client_cannot_acknowledge_for_followers(attacked: Attacked) -> None:
    """With both followers stopped nobody has the record, so acks=all must not be answered."""
    leader = attacked.partitions()[2][0]
    followers = [one for one in (1, 2, 3) if one != leader]
    codes = []
    requests = {
        version: [follower_fetch(attacked, one, version) for one in followers]
        for version in (12, 15, 17)
    }
    producer, fetcher = attacked.client_of(leader), attacked.client_of(leader)
    with producer, fetcher, attacked.stopped(*followers):
        request = produce_request(TOPIC, build_batch([(None, b"x")]), partition=2)
        request.timeout_ms = 1500
        producer.write(request, 9)
        for version, ones in requests.items():
            for one in ones:
                answer = fetcher.send(one, version)
                inner = [part.error_code for it in answer.responses for part in it.partitions]
                codes += [answer.error_code, *inner]
        answer = producer.read(ApiKey.PRODUCE, 9)
    got = answer.responses[0].partition_responses[0].error_code
    assert got == ErrorCode.REQUEST_TIMED_OUT
    assert set(codes) == {REFUSED}
    attacked.cluster.in_sync(TOPIC, 3)


def test_offsets_above_the_high_watermark_are_for_followers(attacked: Attacked) -> None:
    leader, epoch, _ = attacked.partitions()[0]
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    offsets = ListOffsetsRequest(
        replica_id=2, topics=[ListOffsetsTopic(name=TOPIC, partitions=[wanted])]
    )
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    ends = OffsetForLeaderEpochRequest(
        replica_id=2, topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])]
    )
    with attacked.client_of(leader) as client:
        found = client.send(offsets, 7).topics[0].partitions[0]
        assert (found.error_code, found.offset) == (REFUSED, -1)
        end = client.send(ends, 4).topics[0].partitions[0]
        assert (end.error_code, end.end_offset) == (REFUSED, -1)
