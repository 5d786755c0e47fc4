"""A client's connection and a server on a simulated network, for tests of the connection."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kits.rpc.rpc_server import PORT, Asked, Server, Session, echo
from millstream.rpc.connection import Connection, connect
from millstream.rpc.settings import RpcSettings
from millstream.testing.sim.world import SimWorld

QUICK = RpcSettings(client_id="me", request_timeout_s=5.0, connect_timeout_s=3.0, in_flight_max=4)


class Pair:
    """A server and a client in one world."""

    def __init__(self, server: Server | None = None, settings: RpcSettings = QUICK) -> None:
        self.world = SimWorld(11)
        self.server = server if server is not None else Server()
        self.settings = settings

    async def connect(self) -> Connection:
        return await connect(
            self.world.network.host("client"), self.settings, host="server", port=PORT
        )

    def play(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.server.listen(self.world.network.host("server"), "server")
            await scenario()

        self.world.run(main)


class Held:
    """An `on_request` that answers when told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Session, Asked]] = []
        self.got_two = asyncio.Event()

    def __call__(self, session: Session, asked: Asked) -> None:
        self.waiting.append((session, asked))
        if len(self.waiting) == 2:
            self.got_two.set()

    def release(self, count: int = 1 << 30) -> None:
        for session, asked in self.waiting[:count]:
            session.transport.write(echo(asked))
        del self.waiting[:count]


async def run_pending() -> None:
    """Let everything under way arrive: links take at most two milliseconds."""
    await asyncio.sleep(0.1)


def now_s() -> float:
    return asyncio.get_running_loop().time()
