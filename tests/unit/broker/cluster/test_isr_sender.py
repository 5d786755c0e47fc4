"""What leaders ask for reaches the controller, wherever that is, and gets a definite answer."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast
from uuid import UUID

from kits.rpc.rpc_server import PORT, Asked, Server, Session, frame_of
from millstream.broker.cluster.controller_calls import ControllerCalls
from millstream.broker.cluster.isr_sender import IsrRefused, IsrSender
from millstream.broker.requests.tasks import TaskScope
from millstream.controller.cluster.errors import (
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
)
from millstream.controller.cluster.port import IsrChange
from millstream.controller.image import PartitionImage
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition
from millstream.observe.client_log import ClientLog
from millstream.replication.errors import ProposalRefused
from millstream.replication.isr_port import IsrAnswer, IsrMember, IsrProposal, IsrState
from millstream.rpc.connections import Address, Connections
from millstream.rpc.settings import RpcSettings
from millstream.testing.sim.world import SimWorld
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)

ME = BrokerId(1)
EPOCH = BrokerEpoch(77)
TOPIC = TopicId(UUID(int=5))
MEMBERS = (IsrMember(ME, EPOCH), IsrMember(BrokerId(2), BrokerEpoch(78)))


def proposal(index: int = 0) -> IsrProposal:
    return IsrProposal(TopicPartition("t", index), TOPIC, LeaderEpoch(4), 9, MEMBERS)


class Controller:
    """This broker's own, as far as it is asked."""

    def __init__(self, *outcomes: OperatingError | None) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[Sequence[IsrChange]] = []

    async def alter_partitions(
        self, changes: Sequence[IsrChange], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[PartitionImage | OperatingError]:
        assert (broker_id, broker_epoch) == (ME, EPOCH)
        self.asked.append(changes)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, NotController | StaleBrokerEpoch):
            raise outcome
        await asyncio.sleep(0.01)
        return [outcome or _decided(one) for one in changes]


def _decided(one: IsrChange) -> PartitionImage:
    isr = tuple(broker_id for broker_id, _ in one.isr)
    return PartitionImage(one.partition, isr, isr, ME, one.leader_epoch, one.partition_epoch + 1)


class World:
    """One broker's sender."""

    def __init__(self, located: Any) -> None:
        self.sim = SimWorld(3)
        self.located = located
        self.epoch: BrokerEpoch | None = EPOCH
        self.answers: list[IsrAnswer] = []

    def play(self, story: Callable[[], Coroutine[Any, Any, None]], **servers: Server) -> None:
        async def main() -> None:
            for name, server in servers.items():
                await server.listen(self.sim.network.host(name), name)
            node = self.sim.node("broker")
            connections = Connections(node.network, RpcSettings(), node.randomness)
            tasks = TaskScope(ClientLog(node.clock))
            calls = ControllerCalls(
                lambda: cast("Any", self.located), connections, node.randomness, timeout_s=2.0
            )
            self.sender = IsrSender(
                calls, broker_id=ME, broker_epoch=lambda: self.epoch, spawn=tasks.spawn
            )
            await story()
            await tasks.close(timeout_s=30)
            await connections.close()

        self.sim.run(main)

    def propose(self, index: int = 0) -> None:
        before = len(self.answers)
        self.sender.propose(proposal(index), self.answers.append)
        assert len(self.answers) == before, "never while it is asked"

    async def answered(self, count: int) -> None:
        for _ in range(2000):
            if len(self.answers) >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.answers)


def done(index: int = 0) -> IsrState:
    del index
    return IsrState(ME, LeaderEpoch(4), (ME, BrokerId(2)), 10)


def test_own_controller_decides_for_all_that_wait_together() -> None:
    controller = Controller()
    world = World(controller)

    async def story() -> None:
        for index in range(3):
            world.propose(index)
        await world.answered(3)

    world.play(story)
    assert world.answers == [done()] * 3
    assert [len(one) for one in controller.asked] == [3]


def test_deposed_controller_is_followed_by_the_next() -> None:
    controller = Controller(NotController(), StaleBrokerEpoch(ME, EPOCH), None)
    world = World(controller)

    async def story() -> None:
        world.propose()
        await world.answered(1)

    world.play(story)
    assert world.answers == [done()]
    assert len(controller.asked) == 3


def test_refusal_is_an_answer() -> None:
    refused = InvalidUpdateVersion(TopicPartition("t", 0), ours=10, theirs=9)
    world = World(Controller(refused))

    async def story() -> None:
        world.propose()
        await world.answered(1)

    world.play(story)
    (answer,) = world.answers
    assert isinstance(answer, ProposalRefused)
    assert str(answer) == str(refused)


def test_refusal_after_a_controller_was_deposed_leaves_a_doubt() -> None:
    """The first one may have written the change before it was deposed."""
    refused = InvalidUpdateVersion(TopicPartition("t", 0), ours=10, theirs=9)
    world = World(Controller(NotController(), refused))

    async def story() -> None:
        world.propose()
        await world.answered(1)

    world.play(story)
    assert isinstance(world.answers[0], IsrRefused)


def test_lost_answer_is_asked_for_again_until_it_is_definite() -> None:
    """The leader must not forget whom it asked for while that may have been written."""
    asked: list[AlterPartitionRequest] = []

    def on_request(session: Session, request: Asked) -> None:
        assert request.key is ApiKey.ALTER_PARTITION
        asked.append(AlterPartitionRequest.decode(request.body, request.version))
        if len(asked) == 1:
            session.transport.abort()  # it was carried out, and nobody heard of it
            return
        code = ErrorCode.INVALID_UPDATE_VERSION
        part = ResponsePartitionData(partition_index=0, error_code=code)
        topic = ResponseTopicData(topic_id=TOPIC, partitions=[part])
        response = AlterPartitionResponse(topics=[topic])
        if len(asked) == 2:
            response = AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
        session.transport.write(frame_of(request, response.encode(request.version)))

    world = World(Address("c", PORT))

    async def story() -> None:
        world.propose()
        await world.answered(1)

    world.play(story, c=Server(on_request))
    (answer,) = world.answers
    assert isinstance(answer, IsrRefused), "the first may have been carried out"
    assert len(asked) == 3
    (topic,) = asked[0].topics
    states = [(one.broker_id, one.broker_epoch) for one in topic.partitions[0].new_isr_with_epochs]
    assert states == [(1, 77), (2, 78)]
    assert (asked[0].broker_id, asked[0].broker_epoch) == (1, 77)


def test_answer_of_another_controller_is_a_state() -> None:
    def on_request(session: Session, request: Asked) -> None:
        part = ResponsePartitionData(
            partition_index=0, leader_id=1, leader_epoch=4, isr=[1, 2], partition_epoch=10
        )
        response = AlterPartitionResponse(
            topics=[ResponseTopicData(topic_id=TOPIC, partitions=[part])]
        )
        session.transport.write(frame_of(request, response.encode(request.version)))

    world = World(Address("c", PORT))

    async def story() -> None:
        world.propose()
        await world.answered(1)

    world.play(story, c=Server(on_request))
    assert world.answers == [done()]


def test_lost_session_ends_what_was_asked_in_it() -> None:
    world = World(None)

    async def story() -> None:
        world.propose()
        await asyncio.sleep(1)
        assert not world.answers, "a controller may still come"
        world.epoch = None
        await world.answered(1)
        world.propose()
        await world.answered(2)

    world.play(story)
    assert [type(one) for one in world.answers] == [StaleBrokerEpoch, NotController]
