"""A controller on a simulated disk, for tests."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from millstream.controller.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    PartitionImage,
    TopicImage,
)
from millstream.controller.standalone.controller import StandaloneController
from millstream.controller.topics import NewTopic, Rules, TopicDefaults
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId
from millstream.runtime.background import Background
from millstream.runtime.disk import Disk
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim import virtual_loop
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.disk import SimDisk

T = TypeVar("T")

ME = BrokerId(1)
ROOT = "/data"
METADATA = f"{ROOT}/metadata"


def any_configs(configs: Mapping[str, str]) -> None:
    """Takes all settings: these tests are not about them."""


def new_disk() -> SimDisk:
    return SimDisk(directories=[ROOT])


def made(
    disk: Disk,
    *,
    seed: int = 0,
    directories: Sequence[str] = (ROOT,),
    broker_id: int = ME,
    background: Background | None = None,
) -> StandaloneController:
    """A controller that was not started."""
    return StandaloneController(
        disk=disk,
        background=background or InlineBackground(),
        randomness=SeededRandomness(seed),
        directories=directories,
        broker_id=BrokerId(broker_id),
        check_configs=any_configs,
    )


def started(
    disk: Disk, *, seed: int = 0, background: Background | None = None
) -> StandaloneController:
    controller = made(disk, seed=seed, background=background)
    controller.start()
    return controller


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """On a loop of its own, in virtual time."""
    return virtual_loop.run(work)


async def create(
    controller: StandaloneController, *names: str, partitions: int = 1
) -> list[TopicImage]:
    """Create topics that nothing is wrong with."""
    wanted = [
        NewTopic(name=name, partition_count=partitions, replication_factor=1) for name in names
    ]
    topics = await controller.create_topics(wanted)
    assert all(isinstance(one, TopicImage) for one in topics), topics
    return [one for one in topics if isinstance(one, TopicImage)]


# -- images of many brokers --------------------------------------------------------------------


def brokers_of(racks: Sequence[str | None], *, fenced: Sequence[int] = ()) -> list[BrokerImage]:
    """Brokers 1, 2, ... in these racks."""
    return [
        BrokerImage(
            BrokerId(number),
            (Endpoint("PLAINTEXT", f"host-{number}", 9092),),
            rack,
            is_fenced=number in fenced,
        )
        for number, rack in enumerate(racks, start=1)
    ]


def image_of(brokers: Sequence[BrokerImage], *topics: TopicImage) -> ClusterImage:
    return ClusterImage(
        cluster_id="test-cluster",
        controller_id=ME,
        brokers={broker.broker_id: broker for broker in brokers},
        topics={topic.name: topic for topic in topics},
        broker_configs={},
    )


def topic_of(
    name: str, topic_id: TopicId, *replicas: Sequence[int], configs: Mapping[str, str] | None = None
) -> TopicImage:
    """One partition for each list of replicas; the first of each leads."""
    partitions = []
    for index, brokers in enumerate(replicas):
        ids = tuple(map(BrokerId, brokers))
        partitions.append(PartitionImage(index, ids, ids, ids[0], LeaderEpoch(0), 0))
    return TopicImage(name, topic_id, tuple(partitions), configs or {})


def rules(*, seed: int = 0, check: Callable[[Mapping[str, str]], None] = any_configs) -> Rules:
    return Rules(TopicDefaults(3, 1), check, SeededRandomness(seed))
