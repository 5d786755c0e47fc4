"""Controllers that are cut off, killed, deposed and answered with nothing, while topics change.

What was acknowledged is so. Nodes and images agree in the end, every image that a broker saw was
the controller's, and no partition has two leaders in one epoch.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from kits.controller.controllers_kit import Cluster, Node, cluster_played, new_topic, same_image
from kits.coordination.coordination_kit import KEEPER, SHORT_SESSION_MS
from millstream.controller.cluster.active import ActiveController
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.image_loader import load
from millstream.controller.cluster.node_reader import BrokerWatch, read_everything
from millstream.controller.cluster.nodes import CONTROLLER
from millstream.controller.cluster.port import IsrChange
from millstream.controller.image import NO_LEADER, ClusterImage, TopicImage
from millstream.controller.topics import MorePartitions
from millstream.coordination.errors import NoNode
from millstream.coordination.port import ANY_VERSION, Session
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId
from millstream.runtime.randomness import SeededRandomness

FAULTS = 6


async def image_of_nodes(session: Session) -> ClusterImage:
    """What the next controller would load."""
    found = {**await read_everything(session), **await BrokerWatch(session).read()}
    loaded = load(found, controller_id=BrokerId(0))
    assert not loaded.unfinished
    assert not loaded.leftovers
    return loaded.image


class Witness:
    """Checks every image that any broker applies."""

    def __init__(self, cluster: Cluster) -> None:
        self.leaders: dict[tuple[TopicId, int, LeaderEpoch], BrokerId] = {}
        self.states: dict[tuple[TopicId, int, int], object] = {}
        self.images: dict[int, ClusterImage] = {}
        for one in cluster.nodes:
            self.watch(one)

    def watch(self, node: Node) -> None:
        versions: list[int] = []

        def check(_change: object) -> None:
            image = node.metadata_follower.image
            assert versions == sorted(versions)
            versions.append(image.version)
            self.see(image)

        node.metadata_follower.subscribe(check)

    def see(self, image: ClusterImage) -> None:
        known = self.images.setdefault(image.version, image)
        assert same_image(known, image), "two brokers saw different images of one version"
        for topic in image.topics.values():
            for one in topic.partitions:
                if one.leader != NO_LEADER:
                    led = self.leaders.setdefault(
                        (topic.topic_id, one.index, one.leader_epoch), one.leader
                    )
                    assert led == one.leader, "I-15 two leaders in one epoch"
                key = (topic.topic_id, one.index, one.partition_epoch)
                state = self.states.setdefault(key, (one.leader, one.isr, one.leader_epoch))
                assert state == (one.leader, one.isr, one.leader_epoch)


class Operator:
    """Requests changes from the current controller, and records the answers."""

    def __init__(self, cluster: Cluster, random: SeededRandomness) -> None:
        self.cluster = cluster
        self.random = random
        self.created: dict[TopicId, str] = {}
        self.deleted: set[TopicId] = set()
        self.unsure: set[str] = set()
        self.met: Counter[str] = Counter()
        self.is_over = False

    async def run(self) -> None:
        number = 0
        while not self.is_over:
            await asyncio.sleep(self.random.between(0, 0.2))
            number += 1
            controllers = [
                one.candidate.active for one in self.cluster.nodes if one.candidate.active
            ]
            if not controllers:
                continue
            try:
                async with asyncio.timeout(20):
                    await self._ask(self.random.choice(controllers), number)
                self.met["done"] += 1
            except NotController:
                self.met["not controller"] += 1
            except TimeoutError:
                self.met["too late"] += 1

    async def _ask(self, controller: ActiveController, number: int) -> None:
        names = sorted(controller.image.topics)
        match self.random.integer(0, 5):
            case 0 | 1:
                await self._create(controller, f"topic{number}")
            case 2 if names:
                await self._delete(controller, self.random.choice(names))
            case 3 if names:
                name = self.random.choice(names)
                count = len(controller.image.topics[name].partitions) + 1
                await controller.create_partitions([MorePartitions(name=name, total_count=count)])
            case 4 if names:
                await self._change_isr(controller, self.random.choice(names))

    async def _create(self, controller: ActiveController, name: str) -> None:
        self.unsure.add(name)
        count = self.random.choice([1, 2, 3, 4, 5, 6, 7, 260])  # the last takes two multis
        (made,) = await controller.create_topics([new_topic(name, count, 2)])
        if isinstance(made, TopicImage):
            self.created[made.topic_id] = name

    async def _delete(self, controller: ActiveController, name: str) -> None:
        topic = controller.image.topics[name]
        self.unsure.add(name)
        self.created.pop(topic.topic_id, None)
        (error,) = await controller.delete_topics([topic.topic_id])
        if error is None:
            self.deleted.add(topic.topic_id)

    async def _change_isr(self, controller: ActiveController, name: str) -> None:
        image = controller.image
        topic = image.topics[name]
        partition = topic.partitions[0]
        leader = partition.leader
        if leader == NO_LEADER:
            return
        size = self.random.integer(1, len(partition.replicas) + 1)
        rest = [one for one in partition.replicas if one != leader][: size - 1]
        members = tuple((one, image.brokers[one].epoch) for one in (leader, *rest))
        change = IsrChange(
            topic.topic_id, 0, partition.leader_epoch, partition.partition_epoch, members
        )
        with suppress(OperatingError):
            await controller.alter_partitions(
                [change], broker_id=leader, broker_epoch=image.brokers[leader].epoch
            )

    def check(self, image: ClusterImage) -> None:
        for topic_id, name in self.created.items():
            assert topic_id in image.topics_by_id, f"{name} was created"
        for topic_id in self.deleted:
            assert topic_id not in image.topics_by_id, "it was deleted"
        assert {topic.name for topic in image.topics.values()} <= self.unsure


async def do_harm(cluster: Cluster, random: SeededRandomness, met: Counter[str]) -> None:
    network = cluster.world.world.network
    await asyncio.sleep(random.between(0, 2.5))
    reigning = [one for one in cluster.nodes if one.reigns_now()]
    # The controller is the one that matters: hit it half of the time.
    victim = reigning[0] if reigning and random.chance(0.5) else random.choice(cluster.nodes)
    match random.integer(0, 6):
        case 4 | 5:
            met["usurped"] += 1
            # It receives nothing, its session stays alive, and another is elected: its writes come
            # late.
            network.clog(KEEPER, victim.name, duration_s=random.between(0.2, 1.2))
            operator = await cluster.world.open("operator")
            with suppress(NoNode):
                await operator.delete(CONTROLLER, version=ANY_VERSION)
        case 0:
            met["reset"] += 1
            network.reset(victim.name, KEEPER)
        case 1:
            met["deaf"] += 1
            network.clog(KEEPER, victim.name, duration_s=random.between(0, 5))
        case 2:
            met["mute"] += 1
            network.clog(victim.name, KEEPER, duration_s=random.between(0, 5))
        case 3:
            met["keeper killed"] += 1
            await cluster.world.kill_keeper()


def simulate(seed: int) -> Counter[str]:
    met: Counter[str] = Counter()

    async def story(cluster: Cluster) -> None:
        random = SeededRandomness(f"{seed}/story")
        witness = Witness(cluster)
        operator = Operator(cluster, SeededRandomness(f"{seed}/operator"))
        task = asyncio.get_running_loop().create_task(operator.run())
        for _ in range(FAULTS):
            await do_harm(cluster, random, met)
        cluster.world.world.network.heal_all()
        operator.is_over = True
        await task
        for one in cluster.nodes:
            one.member.losses.probability = 0.0
        # Sessions that were cut off too long expire within this time, and their brokers come again.
        await asyncio.sleep(2 * SHORT_SESSION_MS / 1000)
        await cluster.has_brokers(1, 2, 3)
        image = await cluster.all_know()
        stored = await image_of_nodes(await cluster.world.open("reader"))
        assert dict(stored.topics) == dict(image.topics)
        assert dict(stored.broker_configs) == dict(image.broker_configs)
        operator.check(image)
        for one in cluster.nodes:
            witness.see(one.image)
            met.update(one.member.losses.counts)
            met["reigns"] += len(one.reigns)
        met.update(operator.met)

    cluster_played(seed, story, loss=0.1)
    return met
