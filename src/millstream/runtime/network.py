"""The network seam: listen and connect with asyncio's transports and protocols.

Only the two calls that make connections are behind the seam. What they give is asyncio's own
(`Transport`, `Protocol`, `BufferedProtocol`), so in production no layer of ours lies between the
socket and the protocol, and the simulated twin has to be a transport and nothing more.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)

ACCEPT_BACKLOG: Final = 1024
"""Connections the kernel holds for us while the loop is busy; a restart brings all clients."""


class Listener(Protocol):
    """An open listening port."""

    @property
    def port(self) -> int:
        """The port that clients reach; chosen by the system when 0 was requested."""

    def close(self) -> None:
        """Accept no more; connections that were made stay."""

    async def wait_closed(self) -> None: ...


class Network(Protocol):
    """Makes connections for one process."""

    async def listen(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
    ) -> Listener:
        """Accept connections, each with a protocol of its own."""

    async def connect(
        self,
        make_protocol: Callable[[], P],
        *,
        host: str,
        port: int,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[asyncio.Transport, P]:
        """Connect, or raise OSError (refused, unreachable) or its subclass TimeoutError."""


class LoopListener:
    """A listening socket of the event loop."""

    __slots__ = ("_server", "port")

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()

    async def wait_closed(self) -> None:
        await self._server.wait_closed()


class LoopNetwork:
    """The machine's network through the running event loop."""

    __slots__ = ()

    async def listen(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
    ) -> LoopListener:
        server = await asyncio.get_running_loop().create_server(
            make_protocol, host, port, ssl=tls, backlog=ACCEPT_BACKLOG, reuse_address=True
        )
        return LoopListener(server)

    async def connect(
        self,
        make_protocol: Callable[[], P],
        *,
        host: str,
        port: int,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[asyncio.Transport, P]:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().create_connection(
                make_protocol, host, port, ssl=tls
            )
