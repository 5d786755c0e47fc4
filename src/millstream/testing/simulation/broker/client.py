"""The base of every simulated client: a process on a host of its own that talks to the broker."""

import asyncio
from typing import Any

from millstream.rpc.backoff import Backoff
from millstream.rpc.connection import Connection
from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.rpc.settings import RpcSettings
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.clock import SimClock
from millstream.testing.simulation.broker.process import SimProcess
from millstream.testing.simulation.broker.scene import HOST, PORT, Scene
from millstream.wire.api_keys import APIS
from millstream.wire.errors import ErrorCode
from millstream.wire.schema import Message

RETRIABLE = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""A client retries after these."""


class Client:
    """One life of one client. Subclasses implement `work`."""

    retriable: frozenset[ErrorCode] = RETRIABLE
    """It retries after these."""

    def __init__(self, scene: Scene, name: str, randomness: SeededRandomness) -> None:
        self.scene = scene
        self.name = name
        self.randomness = randomness
        world = scene.world
        self.process = SimProcess(world.loop, name, world.network.host(name))
        self.clock = SimClock(world.loop)
        self._address = Address(HOST, PORT)
        settings = RpcSettings(
            client_id=name,
            connect_timeout_s=2.0,
            request_timeout_s=randomness.choice([1.5, 3.0, 6.0]),
            in_flight_max=8,
            idle_s=15.0,
        )
        self._connections = Connections(
            self.process.network, settings, randomness.fork("back-off"), backoff=Backoff()
        )
        self.is_finished = False
        self.life = 1
        """How often a client of this name was started."""

    def start(self) -> None:
        self.scene.watch_task(self.process.spawn(self._run(), "work"))

    async def _run(self) -> None:
        await self.work()
        await self._connections.close()
        self.is_finished = True

    async def work(self) -> None:
        raise NotImplementedError

    def vanish(self) -> None:
        """The machine loses its power: the broker's end of the connection stays half-open."""
        self.process.kill()
        self.scene.world.network.kill_host(self.name, is_silent=True)

    # -- for subclasses --------------------------------------------------------------------

    async def connection(self) -> Connection:
        return await self._connections.get(self._address)

    async def call_with_retries(self, request: Message, version: int | None = None) -> Any:
        """Send until it is answered; only for requests that may be carried out twice."""
        while True:
            try:
                return await self.call(request, version)
            except RpcError:
                await self.pause(0.05, 0.5)

    async def call(self, request: Message, version: int | None = None) -> Any:
        connection = await self.connection()
        versions = None if version is None else range(version, version + 1)
        return await connection.send(request, versions=versions)

    async def pause(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self.randomness.between(low_s, high_s))

    def any_version(self, request: type[Message], served: range) -> int:
        """One of those that both sides have."""
        known = APIS[request.API_KEY].versions
        first, last = max(known.start, served.start), min(known.stop, served.stop)
        return self.randomness.integer(first, last)
