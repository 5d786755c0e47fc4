"""Brokers as far as the coordination service knows them, in a simulated world."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from kits.coordination.coordination_kit import (
    CREDENTIALS,
    KEEPER,
    PORT,
    SHORT_SESSION_MS,
    SimulatedWorld,
    World,
)
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.registration import BrokerLifecycle, ClusterIds, Registered
from millstream.controller.image import Endpoint
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.flaky_session import FlakyCoordination, ReplyLosses
from millstream.testing.sim.keeper_session import WireCoordination

CLUSTER = "a-cluster-of-our-own00"
PAUSE_S = 0.01
PATIENCE = 6000
TIME_LIMIT_S = 600.0


async def happens(condition: Callable[[], object], what: str) -> None:
    for _ in range(PATIENCE):
        if condition():
            return
        await asyncio.sleep(PAUSE_S)
    raise AssertionError(f"never: {what}")


class Member:
    """One broker's process: its registration, and the callbacks it got."""

    def __init__(
        self,
        world: SimulatedWorld,
        broker_id: int,
        *,
        name: str | None = None,
        directory: int | None = None,
        loss: float = 0.0,
        known_cluster: str | None = None,
        previous_epoch: BrokerEpoch = NO_BROKER_EPOCH,
        seen_epoch: BrokerEpoch = NO_BROKER_EPOCH,
        complete_since: BrokerEpoch | None = None,
        while_registered: Callable[[Registered], Awaitable[None]] | None = None,
    ) -> None:
        self.world = world
        self.name = name or f"broker{broker_id}"
        self.broker_id = BrokerId(broker_id)
        node = world.world.node(self.name)
        seed = f"{world.world.seed}/{self.name}"
        self.losses = ReplyLosses(SeededRandomness(f"{seed}/losses"), probability=loss)
        wire = WireCoordination(node.network, node.clock, [(KEEPER, PORT)], CREDENTIALS)
        self.coordination = FlakyCoordination(wire, self.losses)
        self.events: list[tuple[str, BrokerEpoch]] = []
        self.has_failed_disk = False
        self.registration = Registration(
            self.broker_id,
            (Endpoint("PLAINTEXT", self.name, 9092),),
            directory_id=UUID(int=directory or 1000 + broker_id),
            previous_epoch=previous_epoch,
        )
        self.lifecycle = BrokerLifecycle(
            self.coordination,
            self.registration,
            clock=node.clock,
            broker=self,
            cluster_ids=ClusterIds(known_cluster, CLUSTER, seen_epoch, complete_since),
            session_timeout_ms=SHORT_SESSION_MS,
            randomness=node.randomness,
            while_registered=while_registered,
        )
        self.task: asyncio.Task[None] | None = None

    def registered(self, incarnation: Registered) -> None:
        self.events.append(("registered", incarnation.epoch))

    def session_lost(self, epoch: BrokerEpoch) -> None:
        self.events.append(("lost", epoch))

    def reachability_changed(self) -> None:
        pass

    def has_all_data(self) -> bool:
        return not self.has_failed_disk

    def start(self) -> "Member":
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self.lifecycle.run(), name=self.name)
        return self

    async def is_member(self) -> "Member":
        await happens(lambda: self.lifecycle.current is not None, f"{self.name} is a member")
        return self

    @property
    def epoch(self) -> BrokerEpoch:
        current = self.lifecycle.current
        assert current is not None
        return current.epoch

    async def stop(self) -> None:
        self.lifecycle.close()
        if self.task is not None:
            await self.task

    def kill(self) -> None:
        """As if the process had died: nothing is said, the session goes on until it expires."""
        self.world.world.network.partition(self.name, KEEPER)
        if self.task is not None:
            self.task.cancel()

    # -- faults ----------------------------------------------------------------------------

    def cut(self) -> None:
        self.world.world.network.reset(self.name, KEEPER)
        self.world.world.network.partition(self.name, KEEPER)

    def mend(self) -> None:
        self.world.world.network.heal(self.name, KEEPER)


def played(seed: int, story: Callable[[SimulatedWorld], Awaitable[Any]]) -> None:
    world = SimulatedWorld(seed)
    world.world.loop._time_limit_s = TIME_LIMIT_S  # a story that hangs ends soon

    async def whole(_: World) -> None:
        await story(world)

    world.play(whole)
