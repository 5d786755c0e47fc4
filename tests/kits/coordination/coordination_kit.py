"""Worlds in which stories about coordination are played: simulated, embedded keeper, ZooKeeper."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Protocol

from kits.process.lossy_proxy import LossyProxy
from millstream.coordination.credentials import Credentials
from millstream.coordination.kazoo_client import Access
from millstream.coordination.kazoo_coordination import KazooCoordination
from millstream.coordination.keeper.server import KeeperDependencies, KeeperServer, KeeperSettings
from millstream.coordination.keeper.sessions import SessionRules
from millstream.coordination.port import Session
from millstream.observe.redaction import Secret
from millstream.runtime.clock import SystemClock
from millstream.testing.sim.durability import FateChooser
from millstream.testing.sim.keeper_session import WireCoordination
from millstream.testing.sim.world import SimNode, SimWorld
from millstream.testing.simulation.broker.process import SimProcess

SESSION_MS = 6000
SHORT_SESSION_MS = 2000
"""For sessions that are to expire: two ticks are the least, and expiry is rounded up."""
KEEPER = "keeper"
PORT = 2181
WAIT_S = 30.0
CREDENTIALS = Credentials(Secret("the-secret-of-all-the-stories"))


class World(Protocol):
    """One service and its clients, each of which can be cut off."""

    root: str
    """A node of its own for every story."""

    async def open(
        self,
        name: str,
        timeout_ms: int = SESSION_MS,
        credentials: Credentials | None = CREDENTIALS,
    ) -> Session: ...

    def cut(self, name: str) -> None:
        """Connections of that client break, and it gets no new ones."""

    def mend(self, name: str) -> None: ...

    def deafen(self, name: str) -> None:
        """What the client sends arrives, what it is answered does not; `cut` ends that."""

    async def pause(self) -> None:
        """A little time passes; for `eventually`."""


Story = Callable[[World], Awaitable[None]]


async def eventually(world: World, condition: Callable[[], object], what: str) -> None:
    for _ in range(3000):
        if condition():
            return
        await world.pause()
    raise AssertionError(f"never: {what}")


async def eventually_true(
    world: World, condition: Callable[[], Awaitable[object]], what: str
) -> None:
    for _ in range(3000):
        if await condition():
            return
        await world.pause()
    raise AssertionError(f"never: {what}")


class SimulatedWorld:
    """The keeper's server on a virtual loop, its disk and network included."""

    def __init__(self, seed: int) -> None:
        self.world = SimWorld(seed)
        self.root = "/story"
        self.node = self.world.node(KEEPER)
        self.process: SimProcess
        self.server: KeeperServer
        self.sessions: list[Session] = []

    def play(self, story: Story) -> None:
        async def main() -> None:
            await self.start_keeper()
            first = await self.open("first")
            await first.create(self.root)
            await story(self)
            for session in self.sessions:
                await session.close()
            await self.stop_keeper()

        self.world.run(main)

    async def stop_keeper(self) -> None:
        """I-42: nothing is left of it."""
        await self.process.spawn(self.server.stop(), "stop")
        await asyncio.sleep(0.1)
        assert self.process.leftovers() == []

    async def kill_keeper(self) -> None:
        """The process dies and comes back; what it wrote stays."""
        self.process.kill()
        self.node.kill()
        await self.start_keeper(self.node.restart())

    async def crash_keeper(self, choose: FateChooser, dark_s: float) -> None:
        """The power goes, and what was not synced with it."""
        self.process.kill()
        self.node.lose_power()
        await asyncio.sleep(dark_s)
        await self.start_keeper(self.node.restore_power(choose))

    async def start_keeper(self, node: SimNode | None = None) -> None:
        self.node = node or self.node
        self.process = SimProcess(self.world.loop, KEEPER, self.node.network)
        dependencies = KeeperDependencies(
            network=self.process.network,
            disk=self.node.disk,
            background=self.node.background,
            clock=self.node.clock,
            randomness=self.node.randomness,
        )
        rules = SessionRules(tick_ms=500)
        settings = KeeperSettings(
            directory="/data/keeper",
            host=KEEPER,
            port=PORT,
            rules=rules,
            log_roll_bytes=2000,
            credentials=CREDENTIALS,
        )
        self.server = self.process.run(KeeperServer, dependencies, settings)
        await self.process.spawn(self.server.start(), "start")

    async def open(
        self,
        name: str,
        timeout_ms: int = SESSION_MS,
        credentials: Credentials | None = CREDENTIALS,
    ) -> Session:
        node = self.world.node(name)
        servers = [(KEEPER, PORT)]
        coordination = WireCoordination(node.network, node.clock, servers, credentials)
        session = await coordination.connect(timeout_ms=timeout_ms, wait_s=WAIT_S)
        self.sessions.append(session)
        return session

    def cut(self, name: str) -> None:
        self.world.network.heal_all()
        self.world.network.reset(name, KEEPER)
        self.world.network.partition(name, KEEPER)

    def mend(self, name: str) -> None:
        self.world.network.heal_all()

    def deafen(self, name: str) -> None:
        self.world.network.cut(KEEPER, name)

    async def pause(self) -> None:
        await asyncio.sleep(0.01)


class RealWorld:
    """A server that listens on loopback, reached through kazoo and a proxy for each client."""

    def __init__(self, servers: list[tuple[str, int]], root: str) -> None:
        self._servers = servers
        self.root = root
        self._proxies: dict[str, list[LossyProxy]] = {}
        self._stack = ExitStack()
        self._sessions: list[Session] = []

    def play(self, story: Story) -> None:
        async def main() -> None:
            try:
                first = await self.open("first")
                await first.create(self.root)
                await story(self)
            finally:
                for session in self._sessions:
                    await session.close()

        with self._stack:
            asyncio.run(main())

    async def open(
        self,
        name: str,
        timeout_ms: int = SESSION_MS,
        credentials: Credentials | None = CREDENTIALS,
    ) -> Session:
        if name not in self._proxies:
            made = [self._stack.enter_context(LossyProxy(one)) for one in self._servers]
            self._proxies[name] = made
        node_configs = ",".join(proxy.address for proxy in self._proxies[name])
        access = None if credentials is None else Access(credentials)
        coordination = KazooCoordination(node_configs, SystemClock(), access)
        session = await coordination.connect(timeout_ms=timeout_ms, wait_s=WAIT_S)
        self._sessions.append(session)
        return session

    def cut(self, name: str) -> None:
        for proxy in self._proxies[name]:
            proxy.forward_to(("127.0.0.1", 1))  # no server listens there

    def mend(self, name: str) -> None:
        for proxy, server in zip(self._proxies[name], self._servers, strict=True):
            proxy.forward_to(server)
            proxy.drops_answers = False

    def deafen(self, name: str) -> None:
        for proxy in self._proxies[name]:
            proxy.drops_answers = True

    async def pause(self) -> None:
        await asyncio.sleep(0.01)


def unique_root() -> str:
    return f"/story-{time.monotonic_ns()}"
