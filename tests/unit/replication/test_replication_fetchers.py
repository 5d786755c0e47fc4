"""Fetching from one leader, with a connection that the test answers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast
from uuid import UUID

from kits.broker.data_plane import DataPlane, HeldBackground
from kits.storage.log_stories import batch_of
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.fetch_wire import VERSIONS
from millstream.replication.fetchers import FetcherDependencies, ReplicaFetchers
from millstream.replication.follower import Follower, FollowerContext, FollowerCounts, FollowerState
from millstream.rpc.connections import Address
from millstream.storage.config import LogConfig
from millstream.testing.sim import virtual_loop
from millstream.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

ME, LEADER = BrokerId(1), BrokerId(2)
TOPIC_ID = TopicId(UUID(int=7))
VERSION = VERSIONS[-1]


class Leader:
    """The connection to it, and who makes it."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked: list[FetchRequest] = []
        self._take: Callable[[memoryview], None] | None = None

    async def get(self, _: Address) -> "Leader":
        return self

    def version_of(self, *_: object) -> int:
        return VERSION

    def send_raw(self, _: object, version: int, body: Any, take: Callable[..., None]) -> None:
        self.asked.append(FetchRequest.decode(b"".join(body), version))
        self._take = take

    def answer(self, records: dict[int, bytes]) -> None:
        """Records of some partitions, and the others have nothing new."""
        partitions = [
            PartitionData(partition_index=index, high_watermark=0, records=one)
            for index, one in records.items()
        ]
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)]
        body = FetchResponse(session_id=5, responses=topics).encode(VERSION)
        take, self._take = self._take, None
        assert take is not None
        take(memoryview(bytes(body)))


class World:
    """Two partitions of one leader, whose logs flush each record before the next is asked for."""

    def __init__(self) -> None:
        self.background = HeldBackground()
        self.plane = DataPlane(LogConfig(flush_messages=1), background=self.background)
        self.plane.create("t", 2)
        self.leader = Leader()
        self.tasks: list[asyncio.Task[None]] = []
        self.fetchers = ReplicaFetchers(
            FetcherDependencies(
                connections=cast("Any", self.leader),
                address_of=lambda one: Address(f"broker-{one}", 9092),
                replica=lambda: (ME, BrokerEpoch(1)),
                spawn=self._spawn,
            )
        )
        context = FollowerContext(
            self.plane.logs.flush,
            lambda _: None,
            FollowerCounts(),
            ReplicationDependencies(),
            self.fetchers.ready,
        )
        state = FollowerState(LeaderEpoch(1), 0, LEADER)
        self.followers = [
            Follower(self.plane.leader("t", index).log, TOPIC_ID, state, context)
            for index in (0, 1)
        ]

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def follow(self) -> None:
        for one in self.followers:
            self.fetchers.follow(one)
        await asyncio.gather(*self.tasks)


def of_leader() -> bytes:
    batch = batch_of(b"a")
    batch[12:16] = (1).to_bytes(4, "big")
    return bytes(batch)


def played(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await world.follow()
        try:
            await story(world)
        finally:
            world.fetchers.close()

    virtual_loop.run(main)


def test_the_next_request_follows_when_what_came_is_flushed() -> None:
    async def story(world: World) -> None:
        world.leader.answer({0: of_leader()})
        assert len(world.leader.asked) == 1
        world.background.run()
        assert len(world.leader.asked) == 2

    played(story)


def test_a_partition_that_goes_while_it_is_flushed_does_not_hold_up_the_others() -> None:
    """No request is sent while one of them is flushed: whoever goes must let the rest go on."""

    async def story(world: World) -> None:
        gone = world.followers[0]
        world.leader.answer({0: of_leader()})
        assert len(world.leader.asked) == 1
        gone.close()  # deleted, or led here from now on
        world.fetchers.unfollow(gone)
        assert len(world.leader.asked) == 2
        forgotten = world.leader.asked[1].forgotten_topics_data
        assert [one.partitions for one in forgotten] == [[0]]

    played(story)
