"""A broker leads only what was decided for its incarnation, and nothing without a session."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

import pytest

from millstream.broker.cluster.member import ClusterMember, MemberDependencies, MemberFault
from millstream.broker.cluster.settings import cluster_settings
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.requests.tasks import TaskScope
from millstream.controller.image import BrokerImage, ClusterImage, ImageChange, TopicImage
from millstream.controller.topics import new_topic_id
from millstream.coordination.errors import CannotConnect
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.observe.client_log import ClientLog
from millstream.rpc.connections import Connections
from millstream.rpc.settings import RpcSettings
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator
from millstream.testing.sim.world import SimWorld

ME = BrokerId(1)
NO_CHANGE = ImageChange()


class Incarnation(NamedTuple):
    epoch: BrokerEpoch
    session: Any = None
    cluster_id: str = "c"


class Lifecycle:
    """The part of the registration that is looked at."""

    def __init__(self) -> None:
        self.current: Incarnation | None = None
        self.has_connected = False
        self.seen: list[BrokerEpoch] = []

    def note_seen(self, epoch: BrokerEpoch) -> None:
        self.seen.append(epoch)


class NotedPartitions:
    """Notes what is asked of the partitions; every work has three steps."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.after_step: Callable[[], None] = lambda: None

    def _steps(self, name: str) -> StepGenerator[Any]:
        for number in range(3):
            self.done.append(f"{name} {number}")
            self.after_step()
            yield None

    def apply_image_steps(self, image: object) -> StepGenerator[None]:
        del image
        yield from self._steps("take")

    def prepare_steps(self, change: object) -> StepGenerator[None]:
        del change
        yield from self._steps("prepare")

    def follow_up_steps(self, change: object) -> StepGenerator[None]:
        del change
        yield from self._steps("follow")

    def delete_strays_steps(self, image: object) -> StepGenerator[list[Any]]:
        del image
        self.done.append("strays")
        yield None
        return []

    def close_all_leaderships(self) -> None:
        self.done.append("close")


class World:
    """A member with its registration and metadata set by hand."""

    def __init__(self) -> None:
        self.sim = SimWorld(5)
        self.partitions = NotedPartitions()
        self.lifecycle = Lifecycle()

    def play(self, story: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
        async def main() -> None:
            node = self.sim.node("broker")
            tasks = TaskScope(ClientLog(node.clock))
            configs = BrokerConfigs({"node.id": "1", "zookeeper.connect": "h:1"})
            self.scheduler = CooperativeScheduler(node.background, tasks.spawn)
            connections = Connections(node.network, RpcSettings(), node.randomness)
            self.member = ClusterMember(
                MemberDependencies(
                    broker_id=ME,
                    configs=configs,
                    settings=cluster_settings(configs),
                    coordination=cast("Any", None),
                    connections=connections,
                    clock=node.clock,
                    client_log=ClientLog(node.clock),
                    randomness=node.randomness,
                    scheduler=self.scheduler,
                    spawn=tasks.spawn,
                    partitions=lambda: cast("Any", self.partitions),
                )
            )
            self.member._lifecycle = cast("Any", self.lifecycle)
            await story()
            await connections.close()
            await tasks.close(timeout_s=1)

        self.sim.run(main)
        return self.partitions.done

    def show(self, epoch: int | None, *, has_topics: bool = True) -> None:
        """The metadata as it knows this broker."""
        topic = TopicImage("t", new_topic_id(self.sim.randomness), (), {})
        brokers = {} if epoch is None else {ME: BrokerImage(ME, epoch=BrokerEpoch(epoch))}
        self.member.metadata_follower.image = ClusterImage(
            cluster_id="c",
            controller_id=ME,
            brokers=brokers,
            topics={"t": topic} if has_topics else {},
            broker_configs={},
        )

    def register(self, epoch: int) -> None:
        self.lifecycle.current = Incarnation(BrokerEpoch(epoch))

    def lose(self) -> None:
        """As the registration does it: nobody is a member any more, then it is told."""
        current, self.lifecycle.current = self.lifecycle.current, None
        if current is not None:
            self.member.session_lost(current.epoch)

    async def take(self) -> None:
        await self.scheduler.run(self.member.apply_change_steps(NO_CHANGE), name="take")


TAKEN = ["take 0", "take 1", "take 2"]
FOLLOWED = ["prepare 0", "prepare 1", "prepare 2", "follow 0", "follow 1", "follow 2"]


def test_nothing_is_led_by_metadata_that_does_not_know_this_incarnation() -> None:
    """I-17. The image is of the time before a restart, or of before the registration."""
    world = World()

    async def story() -> None:
        world.register(7)
        for epoch in (None, 6):
            world.show(epoch)
            await world.take()
        assert not world.partitions.done
        world.show(7)
        await world.take()
        await world.take()

    assert world.play(story) == ["strays", *TAKEN, *FOLLOWED]


def test_lost_session_closes_every_leadership_at_once() -> None:
    """I-18. Before anything else: it is done when the call returns."""
    world = World()

    async def story() -> None:
        world.register(7)
        world.show(7)
        await world.take()
        world.lose()
        assert world.partitions.done[-1] == "close"
        await world.take()

    assert world.play(story) == ["strays", *TAKEN, "close"]


def test_steps_of_an_image_lead_nothing_once_the_session_is_lost() -> None:
    """I-18. They go on, since a log may be half made, and may not lead any more."""
    world = World()
    allowed: list[bool] = []

    def after_step() -> None:
        if world.partitions.done[-1] == "take 1":
            world.lose()
        allowed.append(world.member.may_lead())

    async def story() -> None:
        world.register(7)
        world.show(7)
        world.partitions.after_step = after_step
        await world.take()
        world.register(9)
        assert not world.member.may_lead(), "the metadata does not know it yet"
        world.partitions.after_step = lambda: None
        world.show(9)
        await world.take()
        assert world.member.may_lead()

    done = world.play(story)
    assert done == ["strays", "take 0", "take 1", "close", "take 2", "strays", *TAKEN]
    assert allowed == [True, False, False]


def test_everything_is_taken_anew_under_the_next_epoch() -> None:
    world = World()

    async def story() -> None:
        world.register(7)
        world.show(7)
        await world.take()
        world.lose()
        world.register(9)
        await world.take()  # the metadata does not know it yet
        world.show(9)
        await world.take()

    assert world.play(story) == ["strays", *TAKEN, "close", *TAKEN]


def test_cluster_without_topics_costs_no_log() -> None:
    """A coordination service that lost its data must not make brokers delete theirs."""
    world = World()

    async def story() -> None:
        world.register(7)
        world.show(7, has_topics=False)
        await world.take()

    assert world.play(story) == TAKEN


def test_ready_when_the_own_epoch_was_taken() -> None:
    world = World()

    async def story() -> None:
        world.register(7)
        ready = asyncio.get_running_loop().create_task(world.member.ready())
        world.show(6)
        await world.take()
        await asyncio.sleep(1)
        assert not ready.done()
        world.show(7)
        await world.take()
        await asyncio.wait_for(ready, 1)

    world.play(story)


def test_fault_beside_the_metadata_ends_the_broker() -> None:
    """It would be a broker that knows nothing new, and goes on."""
    world = World()

    async def fault() -> None:
        raise ValueError("a bug")

    async def story() -> None:
        await world.member._run_or_give_up(fault())
        assert world.member.failed.is_set()
        with pytest.raises(MemberFault, match="a bug"):
            await world.member.ready()

    world.play(story)


@pytest.mark.parametrize(
    ("is_there", "told"),
    [(False, "h:1 could not be reached within 18 s"), (True, "did not accept the registration")],
)
def test_a_start_says_whether_the_service_was_reached(is_there: bool, told: str) -> None:
    world = World()
    world.lifecycle.has_connected = is_there

    async def story() -> None:
        with pytest.raises(CannotConnect, match=told):
            await world.member.wait_until_registered()

    world.play(story)


def test_the_first_failure_is_the_one_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever ends after it ends because of it."""
    world = World()

    async def story() -> None:
        world.member.give_up(MemberFault("the first"))
        world.member.give_up(MemberFault("the second"))
        assert str(world.member.failure) == "the first"

    world.play(story)
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [
        "broker cannot be a member of the cluster; stopping"
    ]
