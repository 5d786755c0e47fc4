"""A broker that was alone founds a cluster: nothing that it knew or held is lost on the way."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kits.controller.membership_kit import happens, played
from kits.coordination.coordination_kit import CREDENTIALS, KEEPER, PORT, SimulatedWorld
from kits.storage.log_stories import batch_of
from millstream.broker.broker import Broker, BrokerDependencies
from millstream.broker.cluster.member import ClusterMember
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.controller.cluster import nodes
from millstream.controller.cluster.standalone_bootstrap import (
    STANDALONE_EPOCH,
    StandaloneState,
    bootstrap_from_standalone,
)
from millstream.controller.errors import DirectoryNotOfThisCluster, DirectoryOfCluster
from millstream.controller.topics import NewTopic
from millstream.coordination.port import Coordination
from millstream.model.errors import AllDirectoriesFailed
from millstream.model.ids import BrokerId, TopicPartition
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.manager.log_manager import LogManager
from millstream.testing.log_kit import read_all
from millstream.testing.sim.flaky_session import FlakyCoordination, ReplyLosses
from millstream.testing.sim.keeper_session import WireCoordination
from millstream.testing.sim.world import SimNode
from millstream.testing.simulation.broker.process import SimProcess

DIRECTORIES = ("/data", "/more")
SETTINGS = {
    "node.id": "1",
    "listeners": "PLAINTEXT://broker:9092",
    "log.dirs": ",".join(DIRECTORIES),
    "metrics.port": "-1",
    "zookeeper.session.timeout.ms": "2000",
}
CONFIGS = {"retention.ms": "12345", "segment.bytes": "2097152"}


class Machine:
    """The broker's, through all its lives."""

    def __init__(self, world: SimulatedWorld, *, loss: float = 0.0) -> None:
        self.world = world
        self.node: SimNode = world.world.node("broker", directories=DIRECTORIES)
        self.loss = loss
        self.process = self._process()

    def _process(self) -> SimProcess:
        return SimProcess(self.world.world.loop, "broker", self.node.network)

    def _dependencies(self, coordination: Coordination | None) -> BrokerDependencies:
        node = self.node
        dependencies: dict[str, Any] = {
            "disk": node.disk,
            "clock": node.clock,
            "randomness": node.randomness,
            "background": node.background,
            "network": self.process.network,
            "coordination": coordination,
        }
        return BrokerDependencies(**dependencies)

    def _broker(self, coordination: Coordination | None, changed: Mapping[str, str]) -> Broker:
        return Broker(BrokerConfigs({**SETTINGS, **changed}), self._dependencies(coordination))

    async def alone(self, **changed: str) -> Broker:
        broker = self._broker(None, {name.replace("_", "."): one for name, one in changed.items()})
        await broker.start()
        return broker

    async def member(self, **changed: str) -> Broker:
        servers = [(KEEPER, PORT)]
        wire = WireCoordination(self.process.network, self.node.clock, servers, CREDENTIALS)
        losses = ReplyLosses(SeededRandomness(self.world.world.seed), probability=self.loss)
        broker = self._broker(
            FlakyCoordination(wire, losses),
            {name.replace("_", "."): one for name, one in changed.items()},
        )
        await broker.start()
        return broker

    def next_life(self) -> None:
        """After a stop, or instead of one: the process is gone, what it wrote stays."""
        self.process.kill()
        self.node.kill()
        self.node = self.node.restart()
        self.process = self._process()


async def fill(broker: Broker) -> None:
    """Two topics with records, one that is deleted, settings, and producer ids in use."""
    controller = broker.controller
    wanted = [
        NewTopic(name="kept", partition_count=3, replication_factor=1, configs=CONFIGS),
        NewTopic(name="gone", partition_count=1, replication_factor=1),
        NewTopic(name="plain", partition_count=1, replication_factor=1),
    ]
    for made in await controller.create_topics(wanted):
        assert not isinstance(made, Exception)
    await controller.delete_topics(["gone"])
    await controller.alter_broker_configs("1", {"log.retention.ms": "7"})
    await controller.alter_broker_configs("", {"message.max.bytes": "70000"})
    await controller.allocate_producer_id_block()
    for topic, index, count in (("kept", 0, 3), ("kept", 2, 5), ("plain", 0, 2)):
        put(broker, topic, index, count)


def put(broker: Broker, topic: str, index: int, count: int) -> None:
    leader = broker.partitions.get((topic, index))
    for number in range(count):
        outcomes: list[Any] = []
        leader.append(batch_of(b"%s %d" % (topic.encode(), number)), acks=-1, done=outcomes.append)
        assert [one.error for one in outcomes] == [None]


def contents(broker: Broker) -> dict[TopicPartition, list[bytes | None]]:
    return {log.partition: [one.value for one in read_all(log)] for log in broker.logs}


def known(broker: Broker) -> tuple[Any, ...]:
    """What must stay as it was."""
    image = broker.image
    topics = {
        topic.name: (topic.topic_id, dict(topic.configs), len(topic.partitions))
        for topic in image.topics.values()
    }
    return image.cluster_id, topics, dict(image.broker_configs)


def epochs(broker: Broker) -> dict[TopicPartition, int]:
    return {one.partition: one.leader_epoch for one in broker.partitions}


async def is_leading(broker: Broker, count: int = 4) -> None:
    await happens(lambda: len(broker.partitions) == count, "everything is led")


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_everything_that_was_known_and_held_is_there_in_the_cluster(
    caplog: pytest.LogCaptureFixture, is_clean: bool, loss: float
) -> None:
    async def story(world: SimulatedWorld) -> None:
        machine = Machine(world, loss=loss)
        lone = await machine.alone()
        await fill(lone)
        before, held, led = known(lone), contents(lone), epochs(lone)
        if is_clean:
            await lone.stop()
        machine.next_life()
        member = await machine.member()
        await is_leading(member)
        assert known(member) == before
        assert contents(member) == held
        assert all(epochs(member)[one] > epoch for one, epoch in led.items())
        put(member, "kept", 0, 1)
        assert member.cluster is not None
        block = await member.cluster.member.producer_id_blocks.allocate_producer_id_block()
        assert block.start >= 1000, "I-20 ids that the broker alone gave out"
        tally = member.cluster.member.tally
        assert tally.last_leader_elections == (0 if is_clean else 4)
        assert tally.unclean_elections == 0, "no other replica could have had more"
        await member.stop()
        machine.next_life()
        again = await machine.member()
        await is_leading(again)
        assert known(again) == before
        assert len(contents(again)[TopicPartition("kept", 0)]) == 4
        await again.stop()

    played(21, story)
    told = [one.getMessage() for one in caplog.records]
    assert not [one for one in told if "unclean" in one]
    assert len([one for one in told if "last leaders elected again" in one]) == (not is_clean)


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_founding_that_is_cut_off_anywhere_is_done_again(seed: int) -> None:
    """The process dies in the middle; between two attempts the broker may be alone again."""

    async def story(world: SimulatedWorld) -> None:
        random = SeededRandomness(f"{seed}/story")
        machine = Machine(world)
        lone = await machine.alone()
        await fill(lone)
        await lone.stop()
        for _ in range(3):
            machine.next_life()
            machine.process.spawn(machine.member(), "start")
            session = await world.open(f"eye {world.world.loop.time()}")
            for _ in range(random.integer(0, 40)):
                await world.pause()
                if await session.exists(nodes.CONTROLLER_EPOCH) is not None:
                    break
            has_begun = await session.exists(nodes.CONTROLLER_EPOCH) is not None
            machine.next_life()
            if has_begun:
                break
            if random.chance(0.5) and not machine.node.disk.exists("/data/cluster.member"):
                lone = await machine.alone()
                extra = NewTopic(
                    name=f"more{world.world.loop.time()}", partition_count=1, replication_factor=1
                )
                await lone.controller.create_topics([extra])
                await lone.stop()
                machine.next_life()
        member = await machine.member()
        await happens(
            lambda: len(member.partitions) == sum(1 for _ in member.logs), "everything is led"
        )
        held = contents(member)
        assert len(held[TopicPartition("kept", 2)]) == 5
        assert {one.topic for one in held} == set(member.image.topics)
        await member.stop()

    played(seed, story)


def test_a_cluster_that_is_there_does_not_take_a_broker_that_was_alone() -> None:
    async def story(world: SimulatedWorld) -> None:
        machine = Machine(world)
        lone = await machine.alone()
        await fill(lone)
        held = contents(lone)
        await lone.stop()
        machine.next_life()
        session = await world.open("another")
        await session.create(nodes.CONTROLLER_EPOCH, b"1")
        with pytest.raises(DirectoryNotOfThisCluster, match="has had a controller"):
            await machine.member()
        machine.next_life()
        lone = await machine.alone()
        assert contents(lone) == held
        await lone.stop()

    played(22, story)


def test_a_cluster_of_another_id_does_not_either() -> None:
    async def story(world: SimulatedWorld) -> None:
        machine = Machine(world)
        await (await machine.alone()).stop()
        machine.next_life()
        session = await world.open("another")
        await session.create("/cluster")
        await session.create(nodes.CLUSTER_ID, nodes.encode_cluster_id("another"))
        with pytest.raises(DirectoryNotOfThisCluster, match="belongs to cluster another"):
            await machine.member()

    played(23, story)


def test_a_log_directory_that_is_missing_keeps_the_broker_alone() -> None:
    """Its partitions would begin anew, empty, in another directory."""

    async def story(world: SimulatedWorld) -> None:
        machine = Machine(world)
        lone = await machine.alone()
        await fill(lone)
        moved = [one for one in lone.logs if one.owner.path == "/more"]
        assert moved, "both directories have partitions"
        await lone.stop()
        machine.next_life()
        with pytest.raises(DirectoryNotOfThisCluster, match="is missing"):
            await machine.member(log_dirs="/data")

    played(24, story)


def test_a_founder_is_not_alone_again() -> None:
    async def story(world: SimulatedWorld) -> None:
        machine = Machine(world)
        await (await machine.alone()).stop()
        machine.next_life()
        await (await machine.member()).stop()
        machine.next_life()
        with pytest.raises(DirectoryOfCluster):
            await machine.alone()

    played(25, story)


def test_what_an_attempt_left_that_was_cut_off_is_not_kept() -> None:
    async def story(world: SimulatedWorld) -> None:
        session = await world.open("founder")
        state = StandaloneState(BrokerId(1), "c", [], {"1": {"a": "b"}}, 3000)
        await bootstrap_from_standalone(session, state)
        await bootstrap_from_standalone(
            session, state._replace(broker_configs={}, next_producer_id=5000)
        )
        assert (await session.children(nodes.BROKER_CONFIGS)).names == []
        block = nodes.decode_producer_ids((await session.get(nodes.PRODUCER_IDS)).data)
        assert block == range(4000, 5000)
        told = await session.get(nodes.known_broker_path(BrokerId(1)))
        assert nodes.decode_known_broker(BrokerId(1), told.data).epoch == STANDALONE_EPOCH

    played(26, story)


# -- marks in directories ----------------------------------------------------------------------
#
# The mark in an empty mount point would make the next start take that for the directory: nothing
# would be missing, and its partitions would begin empty.

LOST = "/more"


def unmount(machine: Machine, *paths: str) -> None:
    """As if it had happened while the start was at work."""
    for path in paths or (LOST,):
        machine.node.disk.rename(path, f"{path}.away")
        machine.node.disk.make_directories(path)


def start_loses_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While logs are recovered."""
    start: Callable[..., Any] = LogManager.start

    def starting(logs: LogManager, *arguments: Any) -> Any:
        report = start(logs, *arguments)
        unmount(machine)
        return report

    monkeypatch.setattr(LogManager, "start", starting)


def waiting_loses_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the coordination service is waited for."""
    wait_until_registered: Callable[..., Any] = ClusterMember.wait_until_registered

    async def waiting(member: ClusterMember) -> None:
        await wait_until_registered(member)
        unmount(machine)

    monkeypatch.setattr(ClusterMember, "wait_until_registered", waiting)


@pytest.mark.parametrize(
    ("is_alone", "lose"),
    [(True, start_loses_it), (False, start_loses_it), (False, waiting_loses_it)],
)
def test_nothing_is_written_to_an_empty_mount_point(
    monkeypatch: pytest.MonkeyPatch,
    is_alone: bool,
    lose: Callable[[Machine, pytest.MonkeyPatch], None],
) -> None:
    async def story(world: SimulatedWorld) -> None:
        machine = Machine(world)
        disk = machine.node.disk
        lose(machine, monkeypatch)
        broker = await (machine.alone() if is_alone else machine.member())
        assert disk.list_directory(LOST) == []
        assert disk.exists("/data/meta.properties")
        offline = [one.path for one in broker.logs.directories if one.failure is not None]
        assert offline == [LOST]
        await broker.stop()
        assert disk.list_directory(LOST) == []

    played(1, story)


def test_a_member_that_has_lost_every_directory_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: SimulatedWorld) -> None:
        machine = Machine(world)
        wait_until_registered: Callable[..., Any] = ClusterMember.wait_until_registered

        async def waiting(member: ClusterMember) -> None:
            await wait_until_registered(member)
            unmount(machine, *DIRECTORIES)

        monkeypatch.setattr(ClusterMember, "wait_until_registered", waiting)
        with pytest.raises(AllDirectoriesFailed):
            await machine.member()
        assert [machine.node.disk.list_directory(one) for one in DIRECTORIES] == [[], []]

    played(2, story)
