"""What a broker has lost reaches the controller, whoever that is, until the metadata knows it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast
from uuid import UUID

from kits.rpc.rpc_server import PORT, Asked, Server, Session, frame_of
from millstream.broker.cluster.controller_calls import ControllerCalls
from millstream.broker.cluster.lost_replicas import REPLICAS_MAX, LostReplicas
from millstream.controller.cluster.errors import NotController, StaleBrokerEpoch
from millstream.controller.cluster.port import LostReplica
from millstream.controller.image import ClusterImage, PartitionImage, TopicImage
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, LeaderEpoch, TopicId
from millstream.rpc.connections import Address, Connections
from millstream.rpc.settings import RpcSettings
from millstream.runtime.scheduler import StepGenerator
from millstream.testing.sim.world import SimWorld
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)

ME, OTHER = BrokerId(1), BrokerId(2)
EPOCH = BrokerEpoch(77)
TOPIC = TopicId(UUID(int=5))
LOST = UUID(int=2)
"""Kafka's."""


class Controller:
    """This broker's own, as far as it is asked."""

    def __init__(self, *outcomes: OperatingError | None) -> None:
        self.outcomes = list(outcomes)
        self.reported: list[Sequence[LostReplica]] = []

    async def lose_replicas(
        self, lost: Sequence[LostReplica], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[OperatingError | None]:
        assert (broker_id, broker_epoch) == (ME, EPOCH)
        self.reported.append(lost)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        return [None] * len(lost)


class World:
    """One broker, what has failed on it, and what it knows."""

    def __init__(self, located: Any, *, lost: int = 1, known: int = 0, partitions: int = 3) -> None:
        """The first `lost` partitions have no log; of the first `known` the metadata says so."""
        self.sim = SimWorld(3)
        self.located = located
        self.epoch = EPOCH
        self.lost = lost
        self.topics: dict[str, TopicImage] = {}
        self.show(known=known, partitions=partitions)

    @property
    def has_lost(self) -> bool:
        return self.lost > 0

    def find_lost_steps(self) -> StepGenerator[list[tuple[TopicId, int]]]:
        yield None
        return [(TOPIC, index) for index in range(self.lost)]

    def show(
        self, *, known: int, partitions: int, replicas: tuple[BrokerId, ...] = (ME, OTHER)
    ) -> None:
        parts = tuple(
            PartitionImage(
                index,
                replicas,
                (OTHER,),
                OTHER,
                LeaderEpoch(0),
                0,
                lost=(ME,) if index < known else (),
            )
            for index in range(partitions)
        )
        self.topics = {"t": TopicImage("t", TOPIC, parts, {})}

    def image(self) -> ClusterImage:
        return ClusterImage(
            cluster_id="c", controller_id=ME, brokers={}, topics=self.topics, broker_configs={}
        )

    def play(self, story: Callable[[], Coroutine[Any, Any, None]], **servers: Server) -> None:
        async def main() -> None:
            for name, server in servers.items():
                await server.listen(self.sim.network.host(name), name)
            node = self.sim.node("broker")
            connections = Connections(node.network, RpcSettings(), node.randomness)
            calls = ControllerCalls(
                lambda: cast("Any", self.located), connections, node.randomness, timeout_s=2.0
            )
            self.sender = LostReplicas(
                calls,
                lambda: cast("Any", self),
                self.image,
                broker_id=ME,
                broker_epoch=lambda: self.epoch,
            )
            await story()
            await connections.close()

        self.sim.run(main)

    async def check(self) -> bool:
        """Whether there was anything to do."""
        work = self.sender.check()
        if work is not None:
            await work
        return work is not None


def replicas(*indexes: int) -> list[LostReplica]:
    return [LostReplica(TOPIC, index) for index in indexes]


def test_what_the_metadata_does_not_know_is_told() -> None:
    controller = Controller()
    world = World(controller, lost=3, known=1)

    async def story() -> None:
        assert await world.check()
        world.show(known=3, partitions=3)
        await world.check()

    world.play(story)
    assert controller.reported == [replicas(1, 2)]


def test_it_is_told_again_when_the_metadata_has_forgotten_it() -> None:
    """After a registration under another epoch, which forgets the marks."""
    controller = Controller()
    world = World(controller, lost=1, known=1)

    async def story() -> None:
        await world.check()
        assert controller.reported == []
        world.show(known=0, partitions=3)
        await world.check()

    world.play(story)
    assert controller.reported == [replicas(0)]


def test_nothing_is_told_of_what_is_deleted_or_somebody_elses() -> None:
    controller = Controller()
    world = World(controller, lost=5, partitions=3)

    async def story() -> None:
        await world.check()
        assert controller.reported.pop() == replicas(0, 1, 2)
        world.show(known=0, partitions=3, replicas=(OTHER,))
        await world.check()
        world.topics = {}
        await world.check()

    world.play(story)
    assert controller.reported == []


def test_without_a_failure_or_a_session_there_is_nothing_to_do() -> None:
    world = World(Controller(), lost=0)

    async def story() -> None:
        assert not await world.check()
        world.lost = 1
        world.epoch = NO_BROKER_EPOCH
        assert not await world.check()

    world.play(story)


def test_a_deposed_controller_is_followed_by_the_next() -> None:
    controller = Controller(NotController(), StaleBrokerEpoch(ME, EPOCH), None)
    world = World(controller)

    async def story() -> None:
        await world.check()

    world.play(story)
    assert controller.reported == [replicas(0)] * 3


def test_another_controller_is_asked_in_kafkas_words_until_it_answers() -> None:
    reported: list[AssignReplicasToDirsRequest] = []

    def on_request(session: Session, request: Asked) -> None:
        assert request.key is ApiKey.ASSIGN_REPLICAS_TO_DIRS
        reported.append(AssignReplicasToDirsRequest.decode(request.body, request.version))
        if len(reported) == 1:
            session.transport.abort()
            return
        codes = {2: ErrorCode.NOT_CONTROLLER, 3: ErrorCode.STALE_BROKER_EPOCH}
        response = AssignReplicasToDirsResponse(error_code=codes.get(len(reported), ErrorCode.NONE))
        session.transport.write(frame_of(request, response.encode(request.version)))

    world = World(Address("c", PORT), lost=2)

    async def story() -> None:
        await world.check()

    world.play(story, c=Server(on_request))
    assert len(reported) == 4
    for one in reported:
        assert (one.broker_id, one.broker_epoch) == (ME, EPOCH)
        (directory,) = one.directories
        (topic,) = directory.topics
        assert (directory.id, topic.topic_id) == (LOST, TOPIC)
        assert [part.partition_index for part in topic.partitions] == [0, 1]


def test_a_lost_session_ends_it() -> None:
    """Its next incarnation looks anew."""
    world = World(None)

    async def story() -> None:
        work = world.sender.check()
        assert work is not None
        task = asyncio.ensure_future(work)
        await asyncio.sleep(1)
        assert not task.done(), "a controller may still come"
        world.epoch = BrokerEpoch(78)
        await task

    world.play(story)


def test_many_are_told_in_several_requests() -> None:
    controller = Controller()
    count = REPLICAS_MAX + 1
    world = World(controller, lost=count, partitions=count)

    async def story() -> None:
        await world.check()

    world.play(story)
    assert [len(one) for one in controller.reported] == [REPLICAS_MAX, 1]
