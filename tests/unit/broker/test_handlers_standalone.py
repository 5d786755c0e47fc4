"""What only a cluster has, on a standalone broker: answered as by a Kafka of one broker.

ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, UnregisterBroker and
DescribeQuorum.
"""

import pytest

from kits.broker.topic_handlers_kit import Desk
from kits.broker.versions import versions_of
from millstream.broker.handlers import (
    alter_partition,
    alter_partition_reassignments,
    assign_replicas_to_dirs,
    broker_heartbeat,
    describe_quorum,
    elect_leaders,
    list_partition_reassignments,
    unregister_broker,
)
from millstream.controller.cluster.errors import NotController
from millstream.wire.errors import ErrorCode
from millstream.wire.messages import describe_quorum as quorum
from millstream.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from millstream.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from millstream.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from millstream.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

METADATA = "__cluster_metadata"


@pytest.fixture(scope="module")
def desk() -> Desk:
    made = Desk()
    made.create("t", 2)
    return made


@pytest.mark.parametrize("version", versions_of(elect_leaders))
def test_only_replica_leads_already(desk: Desk, version: int) -> None:
    asked = [TopicPartitions(topic="t", partitions=[0, 9])]
    request = ElectLeadersRequest(topic_partitions=asked)
    answer = desk.send(elect_leaders, request, ElectLeadersResponse, version)
    (topic,) = answer.replica_election_results
    codes = {one.partition_id: one.error_code for one in topic.partition_result}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {0: ErrorCode.ELECTION_NOT_NEEDED, 9: unknown}


def test_all_partitions_tell_only_those_that_changed(desk: Desk) -> None:
    request = ElectLeadersRequest(topic_partitions=None)
    answer = desk.send(elect_leaders, request, ElectLeadersResponse, 2)
    assert (answer.error_code, answer.replica_election_results) == (0, [])


@pytest.mark.parametrize("version", versions_of(elect_leaders))
def test_failure_can_be_told_in_every_version(version: int) -> None:
    request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
    answer = elect_leaders.failed(request, ErrorCode.NOT_CONTROLLER, version)
    told = ElectLeadersResponse.decode(answer.encode(version), version)
    (topic,) = told.replica_election_results
    assert topic.partition_result[0].error_code == ErrorCode.NOT_CONTROLLER


def test_unknown_kind_of_election_is_refused(desk: Desk) -> None:
    request = ElectLeadersRequest(election_type=2, topic_partitions=None)
    answer = desk.send(elect_leaders, request, ElectLeadersResponse, 2)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, [1], ErrorCode.NONE),
        (0, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (9, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_reassignment_has_nowhere_to_go(
    desk: Desk, partition: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    one = ReassignablePartition(partition_index=partition, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=[one])]
    )
    handler = alter_partition_reassignments
    for version in versions_of(handler):
        answer = desk.send(handler, request, AlterPartitionReassignmentsResponse, version)
        (topic,) = answer.responses
        assert (answer.error_code, topic.partitions[0].error_code) == (0, code)


def test_no_reassignment_is_under_way(desk: Desk) -> None:
    handler = list_partition_reassignments
    request = ListPartitionReassignmentsRequest(topics=None)
    answer = desk.send(handler, request, ListPartitionReassignmentsResponse, 0)
    assert (answer.error_code, answer.topics) == (0, [])


@pytest.mark.parametrize(
    ("broker_id", "code"),
    [(1, ErrorCode.INVALID_REQUEST), (5, ErrorCode.BROKER_ID_NOT_REGISTERED)],
)
def test_broker_that_is_alive_is_not_forgotten(desk: Desk, broker_id: int, code: ErrorCode) -> None:
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = desk.send(unregister_broker, request, UnregisterBrokerResponse, 0)
    assert answer.error_code == code
    assert answer.error_message


@pytest.mark.parametrize("version", versions_of(describe_quorum))
def test_the_broker_itself_decides_about_metadata(desk: Desk, version: int) -> None:
    asked = [
        quorum.RequestTopicData(
            topic_name=name, partitions=[quorum.RequestPartitionData(partition_index=0)]
        )
        for name in (METADATA, "t")
    ]
    request = quorum.DescribeQuorumRequest(topics=asked)
    answer = desk.send(describe_quorum, request, quorum.DescribeQuorumResponse, version)
    (decided,), (unknown,) = (topic.partitions for topic in answer.topics)
    assert (decided.error_code, decided.leader_id) == (0, 1)
    assert [one.replica_id for one in decided.current_voters] == [1]
    assert not decided.observers
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 2:
        assert [(one.node_id, one.listeners[0].port) for one in answer.nodes] == [(1, 9092)]


def test_what_brokers_ask_each_other_is_not_for_one_alone(desk: Desk) -> None:
    with pytest.raises(NotController):
        desk.send(alter_partition, AlterPartitionRequest(), AlterPartitionResponse, 3)
    told = AssignReplicasToDirsRequest()
    with pytest.raises(NotController):
        desk.send(assign_replicas_to_dirs, told, AssignReplicasToDirsResponse, 0)
    with pytest.raises(NotController):
        desk.send(broker_heartbeat, BrokerHeartbeatRequest(), BrokerHeartbeatResponse, 1)
