"""Listening sockets whose connections are handed over without asyncio's transports."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from millstream.runtime.network import ACCEPT_BACKLOG

ACCEPTED_PER_EVENT_MAX: Final = 64
"""A storm of connections must leave the loop some time for those that are there."""

SHORTAGE_PAUSE_S: Final = 0.25
"""Without descriptors the listening socket stays readable: it is polled again after this."""

_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

OnAccept = Callable[[socket.socket, Any], None]
OnShortage = Callable[[OSError], None]


class SocketListener:
    """An open port whose connections are handed over as sockets."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        on_accept: OnAccept,
        on_shortage: OnShortage,
    ) -> None:
        self._loop = loop
        self._sockets = sockets
        self._on_accept = on_accept
        self._on_shortage = on_shortage
        self._is_paused = True
        self._retry: asyncio.TimerHandle | None = None
        self.port: int = sockets[0].getsockname()[1]

    def resume(self) -> None:
        """Accept what comes."""
        if self._is_paused:
            self._is_paused = False
            for one in self._sockets:
                self._loop.add_reader(one.fileno(), self._accept, one)

    def pause(self) -> None:
        """Leave new connections waiting in the kernel."""
        if not self._is_paused:
            self._is_paused = True
            for one in self._sockets:
                self._loop.remove_reader(one.fileno())

    def close(self) -> None:
        self.pause()
        if self._retry is not None:
            self._retry.cancel()
        for one in self._sockets:
            one.close()
        self._sockets = []

    async def wait_closed(self) -> None:
        """Nothing outlives `close`."""

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_EVENT_MAX):
            if self._is_paused:
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                self.pause()
                self._retry = self._loop.call_later(SHORTAGE_PAUSE_S, self.resume)
                self._on_shortage(error)
                return
            accepted.setblocking(False)
            with suppress(OSError):  # closed already: the first read will notice
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._on_accept(accepted, address)


async def listen_for_sockets(
    host: str, port: int, on_accept: OnAccept, on_shortage: OnShortage
) -> SocketListener:
    """Bind every address of `host` (all of the machine's for ""); raises OSError."""
    loop = asyncio.get_running_loop()
    found = await _resolve(loop, host, port)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            # The first address decides the port where the system chooses it.
            wanted = bound[0].getsockname()[1] if bound and not port else address[1]
            one = _bind(family, kind, protocol, (address[0], wanted, *address[2:]))
            if one is not None:
                bound.append(one)
        if not bound:
            raise OSError(errno.EADDRNOTAVAIL, f"no address to listen on for {host!r}")
    except BaseException:
        for one in bound:
            one.close()
        raise
    return SocketListener(loop, bound, on_accept, on_shortage)


async def _resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
    """As `getaddrinfo` has it; only a name needs the thread that waits for a name server."""
    numeric = socket.AI_PASSIVE | socket.AI_NUMERICHOST
    try:
        return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=numeric)
    except socket.gaierror as error:
        if error.errno != socket.EAI_NONAME:
            raise
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def _bind(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket | None:
    try:
        one = socket.socket(family, kind, protocol)
    except OSError:
        return None  # an address family that this machine was built without
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Beside a socket for IPv4 of the same port, not instead of it.
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.setblocking(False)
        one.bind(address)
        one.listen(ACCEPT_BACKLOG)
    except OSError as error:
        one.close()
        if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6:
            return None  # `localhost` may name ::1 where IPv6 is switched off
        raise
    return one
