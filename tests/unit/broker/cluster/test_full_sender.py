"""What a broker reports as full, and what as usable again."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

from millstream.broker.cluster.full_replicas import FullReplicas
from millstream.controller.cluster.port import ReplicaName
from millstream.controller.image import ClusterImage, PartitionImage, TopicImage
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId
from millstream.runtime.scheduler import StepGenerator

ME, OTHER = BrokerId(1), BrokerId(2)
EPOCH = BrokerEpoch(77)
TOPIC = TopicId(UUID(int=5))
ONE, TWO = ReplicaName(TOPIC, 0), ReplicaName(TOPIC, 1)


class World:
    """One broker with two replicas, and the controller that it reports to."""

    def __init__(self) -> None:
        self.full: set[ReplicaName] = set()
        self.failed: set[ReplicaName] = set()
        self.reports: list[tuple[list[ReplicaName], bool]] = []
        self.epoch = EPOCH
        self.sender = FullReplicas(
            cast("Any", self),
            lambda: cast("Any", self),
            self.image,
            broker_id=ME,
            broker_epoch=lambda: self.epoch,
        )

    # -- partitions

    @property
    def has_full(self) -> bool:
        return bool(self.full)

    def find_full_steps(self) -> StepGenerator[list[ReplicaName]]:
        yield None
        return sorted(self.full - self.failed)

    def find_lost_steps(self) -> StepGenerator[list[ReplicaName]]:
        yield None
        return sorted(self.failed)

    # -- the metadata and the controller

    def image(self) -> ClusterImage:
        parts = tuple(
            PartitionImage(index, (ME, OTHER), (OTHER,), OTHER, LeaderEpoch(0), 0)
            for index in range(2)
        )
        topics = {"t": TopicImage("t", TOPIC, parts, {})}
        return ClusterImage(
            cluster_id="c", controller_id=ME, brokers={}, topics=topics, broker_configs={}
        )

    async def call(self, call_local: Callable[[Any], Any], *_: Any, **__: Any) -> None:
        await call_local(self)

    async def note_room(self, replicas: Sequence[ReplicaName], *, is_full: bool, **_: Any) -> None:
        self.reports.append(([*replicas], is_full))

    def check(self) -> list[tuple[list[ReplicaName], bool]]:
        """What was reported."""
        self.reports = []
        work = self.sender.check()
        if work is not None:
            asyncio.run(cast("Any", work))
        return self.reports


def test_what_has_room_again_is_reported_as_usable_once() -> None:
    world = World()
    world.full = {ONE, TWO}
    assert world.check() == [([ONE, TWO], True)]
    world.full = {TWO}
    assert world.check()[-1] == ([ONE], False)
    world.full = set()
    assert world.check() == [([TWO], False)]
    assert world.check() == []


def test_a_full_replica_whose_log_fails_is_not_usable() -> None:
    """That report would remove its mark as lost, by which it is not elected."""
    world = World()
    world.full = {ONE, TWO}
    world.check()
    world.failed = {ONE}
    assert all(is_full for _, is_full in world.check())
    world.full = set()
    assert world.check() == [([TWO], False)]
    world.failed = set()
    assert world.check() == [], "not because its log is there again: it may be empty"
    world.sender.note_usable(ONE)
    assert world.check() == [([ONE], False)]


def test_a_lost_replica_that_begins_again_and_fails_is_not_usable() -> None:
    world = World()
    world.failed = {ONE}
    world.sender.note_usable(ONE)
    assert world.check() == []
    world.failed = set()
    assert world.check() == []
