"""What brokers ask the controller, answered by one that is it, and by one that is not.

AlterPartition, AssignReplicasToDirs, BrokerHeartbeat and PullMetadata.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast
from uuid import UUID

import pytest

from kits.broker.topic_handlers_kit import Desk
from kits.broker.versions import versions_of
from millstream.broker.configs.changes import check_broker_name
from millstream.broker.handlers import (
    alter_partition,
    assign_replicas_to_dirs,
    broker_heartbeat,
    metadata,
    pull_metadata,
)
from millstream.broker.requests.between_brokers import NotABroker
from millstream.controller.cluster.errors import (
    IneligibleReplica,
    NoReplicaThere,
    NotController,
    StaleBrokerEpoch,
)
from millstream.controller.cluster.port import IsrChange, LostReplica
from millstream.controller.image import BrokerImage, ClusterImage, PartitionImage
from millstream.controller.topics import NewTopic
from millstream.model.config.errors import InvalidConfigRequest
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from millstream.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    RequestDirectoryData,
)
from millstream.wire.messages.assign_replicas_to_dirs import (
    RequestPartitionData as AssignedPartition,
)
from millstream.wire.messages.assign_replicas_to_dirs import (
    RequestTopicData as AssignedTopic,
)
from millstream.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse

LEADER = BrokerId(2)
EPOCH = BrokerEpoch(50)
TOPIC = UUID(int=9)


class Controller:
    """Decides as a test wants it, and notes what it is asked."""

    controller_epoch = 3

    def __init__(self) -> None:
        self.changes: Sequence[IsrChange] = ()
        self.lost: list[LostReplica] = []
        self.is_done = True
        self.image = ClusterImage(
            cluster_id="c",
            controller_id=BrokerId(1),
            brokers={LEADER: BrokerImage(LEADER, epoch=EPOCH)},
            topics={},
            broker_configs={},
        )

    def _check(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        if (broker_id, epoch) != (LEADER, EPOCH):
            raise StaleBrokerEpoch(broker_id, epoch)

    async def alter_partitions(
        self, changes: Sequence[IsrChange], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[PartitionImage | OperatingError]:
        self._check(broker_id, broker_epoch)
        self.changes = changes
        first = changes[0]
        isr = tuple(one for one, _ in first.isr)
        made = PartitionImage(0, isr, isr, LEADER, first.leader_epoch, first.partition_epoch + 1)
        refused = IneligibleReplica(TopicPartition("t", 1), BrokerId(3))
        outcomes: list[PartitionImage | OperatingError] = [made, refused]
        return outcomes[: len(changes)]

    async def lose_replicas(
        self, lost: Sequence[LostReplica], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[OperatingError | None]:
        self._check(broker_id, broker_epoch)
        self.lost = list(lost)
        refused = NoReplicaThere(TopicPartition("t", 1), BrokerId(2))
        return [refused if one.partition == 1 else None for one in lost]

    async def shut_down(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        self._check(broker_id, broker_epoch)
        return self.is_done


class Member:
    """This broker's place in the cluster."""

    def __init__(self, controller: Controller | None) -> None:
        self.controller = controller
        self.created: list[str] = []
        self.failures: dict[str, ErrorCode] = {}

    def active(self) -> Controller:
        if self.controller is None:
            raise NotController
        return self.controller

    async def pull_metadata(self, request: PullMetadataRequest) -> PullMetadataResponse:
        return PullMetadataResponse(version=request.version + 1)

    async def create_missing(self, wanted: Sequence[NewTopic]) -> dict[str, ErrorCode]:
        self.created += [one.name for one in wanted]
        return self.failures


def desk(controller: Controller | None) -> Desk:
    made = Desk()
    made.services.membership = cast("Any", Member(controller))
    made.proven_broker = LEADER
    return made


def alteration(version: int) -> AlterPartitionRequest:
    parts = [
        RequestPartitionData(partition_index=index, leader_epoch=4, partition_epoch=8)
        for index in (0, 1)
    ]
    for part in parts:
        if version < 3:
            part.new_isr = [2, 3]
        else:
            part.new_isr_with_epochs = [
                BrokerState(broker_id=2, broker_epoch=50),
                BrokerState(broker_id=3, broker_epoch=51),
            ]
    topic = RequestTopicData(topic_id=TOPIC, partitions=parts)
    return AlterPartitionRequest(broker_id=2, broker_epoch=EPOCH, topics=[topic])


@pytest.mark.parametrize("version", versions_of(alter_partition))
def test_leader_gets_the_new_state_or_a_refusal_for_each_partition(version: int) -> None:
    controller = Controller()
    answer = desk(controller).send(
        alter_partition, alteration(version), AlterPartitionResponse, version
    )
    (topic,) = answer.topics
    first, second = topic.partitions
    assert (answer.error_code, topic.topic_id) == (0, TOPIC)
    assert (first.error_code, first.isr, first.partition_epoch) == (0, [2, 3], 9)
    assert (first.leader_id, first.leader_epoch) == (2, 4)
    assert second.error_code == ErrorCode.INELIGIBLE_REPLICA
    epochs = [epoch for _, epoch in controller.changes[0].isr]
    assert epochs == ([50, 51] if version >= 3 else [-1, -1])


def assignment(*directories: int, epoch: int = EPOCH) -> AssignReplicasToDirsRequest:
    """Partitions 0 and 1 of a topic in each of the directories."""
    parts = [AssignedPartition(partition_index=index) for index in (0, 1)]
    return AssignReplicasToDirsRequest(
        broker_id=2,
        broker_epoch=epoch,
        directories=[
            RequestDirectoryData(
                id=UUID(int=one), topics=[AssignedTopic(topic_id=TOPIC, partitions=parts)]
            )
            for one in directories
        ],
    )


def test_lost_replicas_are_told_one_by_one_and_other_directories_mean_nothing() -> None:
    """Kafka's id for lost directories is 2; 1 is "unassigned", and those from 100 on are real."""
    controller = Controller()
    answer = desk(controller).send(
        assign_replicas_to_dirs, assignment(1, 2, 700), AssignReplicasToDirsResponse, 0
    )
    assert controller.lost == [LostReplica(TopicId(TOPIC), index) for index in (0, 1)]
    assert (answer.error_code, [one.id.int for one in answer.directories]) == (0, [1, 2, 700])
    codes = [
        [part.error_code for topic in one.topics for part in topic.partitions]
        for one in answer.directories
    ]
    assert codes == [[0, 0], [0, ErrorCode.NOT_LEADER_OR_FOLLOWER], [0, 0]]
    assert {topic.topic_id for one in answer.directories for topic in one.topics} == {TOPIC}


def test_earlier_incarnation_loses_nothing() -> None:
    controller = Controller()
    with pytest.raises(StaleBrokerEpoch):
        desk(controller).send(
            assign_replicas_to_dirs, assignment(2, epoch=49), AssignReplicasToDirsResponse, 0
        )
    assert controller.lost == []
    failed = assign_replicas_to_dirs.failed(assignment(2), ErrorCode.STALE_BROKER_EPOCH, 0)
    assert failed.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_broker_that_is_not_the_controller_says_so() -> None:
    with pytest.raises(NotController):
        desk(None).send(assign_replicas_to_dirs, assignment(2), AssignReplicasToDirsResponse, 0)
    with pytest.raises(NotController):
        desk(None).send(alter_partition, alteration(3), AlterPartitionResponse, 3)
    beat = BrokerHeartbeatRequest(broker_id=2, broker_epoch=EPOCH, want_shut_down=True)
    with pytest.raises(NotController):
        desk(None).send(broker_heartbeat, beat, BrokerHeartbeatResponse, 1)


@pytest.mark.parametrize("is_done", [True, False])
def test_controlled_shutdown_says_whether_something_is_left(is_done: bool) -> None:
    controller = Controller()
    controller.is_done = is_done
    beat = BrokerHeartbeatRequest(broker_id=2, broker_epoch=EPOCH, want_shut_down=True)
    answer = desk(controller).send(broker_heartbeat, beat, BrokerHeartbeatResponse, 1)
    assert (answer.error_code, answer.should_shut_down) == (0, is_done)


def test_heartbeat_of_an_earlier_incarnation_is_stale() -> None:
    for wants in (True, False):
        beat = BrokerHeartbeatRequest(broker_id=2, broker_epoch=49, want_shut_down=wants)
        with pytest.raises(StaleBrokerEpoch):
            desk(Controller()).send(broker_heartbeat, beat, BrokerHeartbeatResponse, 1)


def test_metadata_is_pulled_from_a_member_alone() -> None:
    request = PullMetadataRequest(broker_id=2, version=6)
    answer = desk(Controller()).send(pull_metadata, request, PullMetadataResponse, 0)
    assert (answer.error_code, answer.version) == (0, 7)
    alone = Desk().send(pull_metadata, request, PullMetadataResponse, 0)
    assert alone.error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    ("handler", "request_", "response"),
    [
        (alter_partition, alteration(3), AlterPartitionResponse),
        (assign_replicas_to_dirs, assignment(2), AssignReplicasToDirsResponse),
        (
            broker_heartbeat,
            BrokerHeartbeatRequest(broker_id=2, broker_epoch=EPOCH, want_shut_down=True),
            BrokerHeartbeatResponse,
        ),
        (pull_metadata, PullMetadataRequest(broker_id=2, version=6), PullMetadataResponse),
    ],
)
def test_a_broker_speaks_for_itself_only(handler: ModuleType, request_: Any, response: Any) -> None:
    """A broker that was taken over, or one with a fault, cannot resign for the others."""
    controller = Controller()
    at = desk(controller)
    for another in (BrokerId(3), None):
        at.proven_broker = another
        with pytest.raises(NotABroker):
            at.send(handler, request_, response, max(versions_of(handler)))
    assert (controller.changes, controller.lost) == ((), [])
    at.proven_broker = LEADER
    at.send(handler, request_, response, max(versions_of(handler)))


def test_missing_topics_are_created_wherever_the_controller_is() -> None:
    made = desk(None)
    member = cast("Member", made.services.membership)
    member.failures = {"b": ErrorCode.LEADER_NOT_AVAILABLE}
    topics = [MetadataRequestTopic(name=name) for name in ("a", "b", "no/name")]
    answer = made.send(metadata, MetadataRequest(topics=topics), MetadataResponse, 12)
    codes = {one.name: one.error_code for one in answer.topics}
    assert member.created == ["a", "b"]
    assert codes["b"] == ErrorCode.LEADER_NOT_AVAILABLE
    assert codes["no/name"] == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_settings_of_any_broker_are_the_controllers_in_a_cluster() -> None:
    assert check_broker_name("7", None) == 7
    with pytest.raises(InvalidConfigRequest, match="send the request to that one"):
        check_broker_name("7", BrokerId(1))
    with pytest.raises(InvalidConfigRequest, match="number"):
        check_broker_name("seven", None)
