"""Brokers of a cluster without their data: membership, candidacy, controller, metadata."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from kits.controller.membership_kit import Member, happens, played
from kits.coordination.coordination_kit import SimulatedWorld
from kits.rpc.rpc_server import Asked, Server, Session, frame_of
from millstream.controller.cluster.active import ActiveController, Balance, ControllerSettings
from millstream.controller.cluster.candidate import Candidate, Elected
from millstream.controller.cluster.metadata_follower import MetadataFollower, locate
from millstream.controller.cluster.plans import Policy
from millstream.controller.cluster.pull_metadata import MetadataSource
from millstream.controller.cluster.registration import Registered
from millstream.controller.cluster.tally import Tally
from millstream.controller.image import ClusterImage, ImageChange, TopicImage
from millstream.controller.topics import NewTopic
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.observe.client_log import ClientLog
from millstream.rpc.connections import Connections
from millstream.rpc.settings import RpcSettings
from millstream.runtime.randomness import SeededRandomness
from millstream.runtime.scheduler import CooperativeScheduler
from millstream.wire.messages.pull_metadata import PullMetadataRequest

NO_BALANCE = Balance(is_enabled=False)


def policy_of(_configs: Mapping[str, Mapping[str, str]]) -> Policy:
    def in_sync_min(topic: TopicImage) -> int:
        return int(topic.configs.get("min.insync.replicas", "1"))

    def is_unclean_allowed(topic: TopicImage) -> bool:
        return topic.configs.get("unclean.leader.election.enable") == "true"

    return Policy(in_sync_min, is_unclean_allowed)


class Node:
    """One broker."""

    def __init__(
        self,
        world: SimulatedWorld,
        broker_id: int,
        *,
        name: str | None = None,
        loss: float = 0.0,
        balance: Balance = NO_BALANCE,
        previous_epoch: BrokerEpoch = NO_BROKER_EPOCH,
    ) -> None:
        self.world = world
        self.name = name or f"broker{broker_id}"
        self.node = world.world.node(self.name)
        self.broker_id = BrokerId(broker_id)
        self.tally = Tally()
        self.reigns: list[ActiveController] = []
        self.settings = ControllerSettings(
            make_policy=policy_of,
            check_configs=lambda _: None,
            randomness=SeededRandomness(f"{world.world.seed}/{self.name}/topics"),
            client_log=ClientLog(self.node.clock),
            balance=balance,
        )
        self.candidate: Candidate[ActiveController] = Candidate(
            self.broker_id,
            make_active=self._make_active,
            clock=self.node.clock,
            randomness=self.node.randomness,
            on_change=self._on_controller_change,
        )
        self.member = Member(
            world,
            broker_id,
            name=self.name,
            loss=loss,
            while_registered=self.candidate.run,
            previous_epoch=previous_epoch,
        )
        settings = RpcSettings(client_id=self.name, connect_timeout_s=2.0)
        self.connections = Connections(self.node.network, settings, self.node.randomness)
        self.metadata_follower = MetadataFollower(
            self.broker_id,
            locate=lambda: locate(self.candidate, "PLAINTEXT"),
            connections=self.connections,
            scheduler=CooperativeScheduler(self.node.background),
            randomness=self.node.randomness,
        )
        self.received_changes: list[ImageChange] = []
        self.prepared: list[tuple[ImageChange, int]] = []
        self.metadata_follower.subscribe(self.received_changes.append, prepare=self._prepare)
        self.source = MetadataSource(lambda: self.candidate.active)
        self.server = Server(self._on_request)
        self.tasks: list[asyncio.Task[None]] = []

    def _prepare(self, change: ImageChange) -> None:
        self.prepared.append((change, self.metadata_follower.image.version))

    def _make_active(self, incarnation: Registered, elected: Elected) -> ActiveController:
        made = ActiveController(incarnation, elected, self.settings, self.tally, self.broker_id)
        self.reigns.append(made)
        return made

    def _on_controller_change(self) -> None:
        self.metadata_follower.controller_changed()

    def _on_request(self, session: Session, asked: Asked) -> None:
        request = PullMetadataRequest.decode(asked.body, asked.version)

        async def answer() -> None:
            response = await self.source.answer(request)
            session.transport.write(frame_of(asked, response.encode(asked.version)))

        self.tasks.append(asyncio.get_running_loop().create_task(answer()))

    async def start(self) -> "Node":
        await self.server.listen(self.node.network, self.name)
        self.member.start()
        loop = asyncio.get_running_loop()
        self.tasks.append(
            loop.create_task(self.metadata_follower.run(), name=f"{self.name} follows")
        )
        await self.member.is_member()
        return self

    async def stop(self) -> None:
        await self.member.stop()
        await self._end_tasks()
        await self.connections.close()

    async def kill(self) -> None:
        self.member.kill()
        self.world.world.network.kill_host(self.name)
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    @property
    def image(self) -> ClusterImage:
        return self.metadata_follower.image

    def reigns_now(self) -> bool:
        return self.candidate.active is not None and self.candidate.active.is_open


class Cluster:
    """Several of them."""

    def __init__(self, world: SimulatedWorld, nodes: list[Node]) -> None:
        self.world = world
        self.nodes = nodes

    async def controller(self) -> ActiveController:
        """The one that is ready."""
        await happens(lambda: any(one.reigns_now() for one in self.nodes), "there is a controller")
        active = self.leader.candidate.active
        assert active is not None
        return active

    @property
    def leader(self) -> Node:
        return next(one for one in self.nodes if one.reigns_now())

    async def all_know(self) -> ClusterImage:
        """Wait until every broker has the controller's image."""
        await self.controller()

        def is_known() -> bool:
            now = self.leader.candidate.active if self._has_leader() else None
            if now is None:
                return False
            return all(same_image(one.image, now.image) for one in self.nodes)

        await happens(is_known, "all brokers know what the controller knows")
        return (await self.controller()).image

    def _has_leader(self) -> bool:
        return any(one.reigns_now() for one in self.nodes)

    async def has_brokers(self, *ids: int) -> None:
        """The controller counts these brokers as alive, and no others."""

        def are_alive() -> bool:
            if not self._has_leader():
                return False
            active = self.leader.candidate.active
            return active is not None and alive(active.image) == list(ids)

        await happens(are_alive, f"brokers {ids} are alive")


def alive(image: ClusterImage) -> list[int]:
    return [one.broker_id for one in image.alive_brokers()]


def same_image(one: ClusterImage, other: ClusterImage) -> bool:
    return (
        one.cluster_id == other.cluster_id
        and one.controller_id == other.controller_id
        and one.version == other.version
        and dict(one.topics) == dict(other.topics)
        and dict(one.topics_by_id) == dict(other.topics_by_id)
        and dict(one.brokers) == dict(other.brokers)
        and dict(one.broker_configs) == dict(other.broker_configs)
    )


def new_topic(name: str, partitions: int = 1, factor: int = 1, **configs: str) -> NewTopic:
    return NewTopic(
        name=name,
        partition_count=partitions,
        replication_factor=factor,
        configs={key.replace("_", "."): value for key, value in configs.items()},
    )


def cluster_played(
    seed: int,
    story: Callable[[Cluster], Awaitable[None]],
    *,
    count: int = 3,
    loss: float = 0.0,
    balance: Balance = NO_BALANCE,
) -> None:
    async def whole(world: SimulatedWorld) -> None:
        nodes = [Node(world, number, loss=loss, balance=balance) for number in range(1, count + 1)]
        cluster = Cluster(world, nodes)
        for one in nodes:
            await one.start()
        await cluster.has_brokers(*range(1, count + 1))
        await story(cluster)
        for one in cluster.nodes:
            await one.stop()

    played(seed, whole)
