"""How long a group takes to be stable: all members at once, and one more."""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_systems import System, Systems
from bench.broker_wire import Topic, create_topic, delete_topics
from bench.measure import Row
from millstream.rpc.connections import Address, Connections
from millstream.rpc.settings import RpcSettings
from millstream.runtime.network import LoopNetwork
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.history.group_events import PartitionName
from millstream.testing.protocol_members.classic import ClassicMember
from millstream.testing.protocol_members.consumer import ConsumerMember
from millstream.testing.protocol_members.member import KnownTopics, MemberSpec, ProtocolMember

SIZES: Final = (10, 50) if QUICK else (10, 100, 500)
RUNS: Final = 1 if QUICK else 3
STABLE_MAX_S: Final = 120.0
POLL_INTERVAL_S: Final = 0.005
HEARTBEAT_S: Final = 0.5
CLASSIC, SERVER_SIDE = "classic", "server-side"


class _IgnoreEvents:
    """A listener that ignores a member's events."""

    def assigned(self, places: list[PartitionName], generation: int) -> None: ...

    def revoked(self, places: list[PartitionName]) -> None: ...

    def lost(self, places: list[PartitionName]) -> None: ...


class Group:
    """Members of one group, each with a connection of its own."""

    def __init__(self, system: System, topic: Topic, kind: str) -> None:
        host, _, port = system.address.rpartition(":")
        self._address = Address(host, int(port))
        self._kind = kind
        self._topic = topic
        self._known = KnownTopics(
            partitions={topic.name: topic.partitions}, names={topic.topic_id: topic.name}
        )
        self._name = f"group-{uuid.uuid4().hex[:8]}"
        self.members: list[ProtocolMember] = []
        self._connections: list[Connections] = []
        self._tasks: list[asyncio.Task[None]] = []

    def join(self) -> None:
        number = len(self.members)
        settings = RpcSettings(client_id=f"member-{number}", request_timeout_s=60.0)
        connections = Connections(LoopNetwork(), settings, SeededRandomness(f"{number}"))
        spec = MemberSpec(
            group=self._name,
            topics=(self._topic.name,),
            session_ms=30_000,
            rebalance_ms=60_000,
            heartbeat_s=HEARTBEAT_S,
        )
        given = (spec, _IgnoreEvents(), self._known, connections, lambda: self._address)
        made: ProtocolMember
        if self._kind == CLASSIC:
            made = ClassicMember(*given)
        else:
            made = ConsumerMember(*given, member_id=str(uuid.uuid4()))
        self.members.append(made)
        self._connections.append(connections)
        self._tasks.append(asyncio.get_running_loop().create_task(made.run()))

    async def stable_s(self, began_s: float) -> float:
        """Wait until every partition has an owner and every member is in one generation."""
        while not self._is_stable():
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.perf_counter() - began_s > STABLE_MAX_S:
                raise TimeoutError(f"{self._kind} group of {len(self.members)} is not stable")
            await asyncio.sleep(POLL_INTERVAL_S)
        return time.perf_counter() - began_s

    def _is_stable(self) -> bool:
        owned = sum(len(one.positions) for one in self.members)
        generations = {one.generation for one in self.members}
        is_stable = all(one.is_stable and one.positions for one in self.members)
        return is_stable and owned == self._topic.partitions and len(generations) == 1

    async def close(self) -> None:
        for member in self.members:
            member.is_leaving = True
        await asyncio.wait(self._tasks, timeout=STABLE_MAX_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connections in self._connections:
            await connections.close()


Work = Callable[[Group, int], Coroutine[Any, Any, float]]


@contextmanager
def topic_on(system: System, partitions: int) -> Iterator[Topic]:
    topic = create_topic(system.address, partitions)
    try:
        yield topic
    finally:
        delete_topics(system.address, [topic])


def measure_stable(systems: Systems) -> list[Row]:
    """From the first join to the last member that has its partitions."""
    return [
        _row(systems, kind, size, _until_stable, "stable", "until a group is stable")
        for kind in (CLASSIC, SERVER_SIDE)
        for size in SIZES
    ]


def measure_rebalance(systems: Systems) -> list[Row]:
    """From the join of one more member to the last member that has its new partitions."""
    return [
        _row(systems, kind, size, _until_one_more, "rebalance", "until one more has its share")
        for kind in (CLASSIC, SERVER_SIDE)
        for size in SIZES
    ]


def _row(systems: Systems, kind: str, size: int, work: Work, name: str, what: str) -> Row:
    ours, peer = systems
    mine: list[float] = []
    theirs: list[float] = []
    for system, found in ((peer, []), (ours, []), *[(ours, mine), (peer, theirs)] * RUNS):
        # The first of each is a warm-up and is discarded.
        with topic_on(system, size + 1) as topic:
            found.append(asyncio.run(work(Group(system, topic, kind), size)))
    return lower_is_better(
        f"groups.{name}.{kind}.{size}",
        f"{kind}, {size} members: s {what}",
        mine,
        theirs,
        at_most=None,
    )


async def _until_stable(group: Group, size: int) -> float:
    try:
        began_s = time.perf_counter()
        for _ in range(size):
            group.join()
        return await group.stable_s(began_s)
    finally:
        await group.close()


async def _until_one_more(group: Group, size: int) -> float:
    try:
        began_s = time.perf_counter()
        for _ in range(size):
            group.join()
        await group.stable_s(began_s)
        began_s = time.perf_counter()
        group.join()
        return await group.stable_s(began_s)
    finally:
        await group.close()
