"""One connection per address, opened when first needed and again after it was closed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from millstream.model.invariant import invariant
from millstream.rpc.addresses import host_port
from millstream.rpc.backoff import Attempts, Backoff
from millstream.rpc.connection import Connection, connect
from millstream.rpc.errors import ConnectFailed
from millstream.rpc.settings import RpcSettings
from millstream.runtime.network import Network
from millstream.runtime.randomness import Randomness

ADDRESSES_MAX: Final = 4096
"""Addresses whose failures are kept; they come from metadata, which a peer can make up."""


class Address(NamedTuple):
    """A peer and a purpose: a long fetch must not delay a heartbeat behind it."""

    host: str
    port: int
    purpose: str = ""


class Connections:
    """Shared within one component. `prepare` runs on every new connection (authentication)."""

    def __init__(
        self,
        network: Network,
        settings: RpcSettings,
        randomness: Randomness,
        *,
        backoff: Backoff | None = None,
        prepare: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> None:
        self._network = network
        self._settings = settings
        self._randomness = randomness
        self._backoff = backoff if backoff is not None else Backoff()
        self._prepare = prepare
        self._open: dict[Address, Connection] = {}
        self._connecting: dict[Address, asyncio.Task[Connection]] = {}
        self._attempts: dict[Address, Attempts] = {}
        self._is_closed = False

    def existing(self, address: Address) -> Connection | None:
        """The open connection, if there is one."""
        connection = self._open.get(address)
        if connection is not None and not connection.is_open:
            del self._open[address]
            return None
        return connection

    def wait_s(self, address: Address) -> float:
        """How long `get` would wait before it connects; callers may choose another address."""
        attempts = self._attempts.get(address)
        return attempts.wait_s(now_s=self._now_s()) if attempts is not None else 0.0

    async def get(self, address: Address) -> Connection:
        """The open connection, or a new one; concurrent callers get the same.

        After failures it first waits for the backoff. Raises ConnectFailed, or what `prepare`
        raises.
        """
        invariant(not self._is_closed, "a connection is wanted after close", address=address)
        connection = self.existing(address)
        if connection is not None:
            return connection
        task = self._connecting.get(address)
        if task is None:
            name = f"connect to {_address_text(address)}"
            task = asyncio.get_running_loop().create_task(self._connect(address), name=name)
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._on_connect_done(address, done))
        # Shielded: a cancelled caller must not cancel the connection of the others.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ConnectFailed(_address_text(address), "the connections were closed") from None
            raise

    async def _connect(self, address: Address) -> Connection:
        attempts = self._attempts_of(address)
        await asyncio.sleep(attempts.wait_s(now_s=self._now_s()))
        try:
            connection = await connect(
                self._network, self._settings, host=address.host, port=address.port
            )
            try:
                if self._prepare is not None:
                    await self._prepare(connection)
            except BaseException:
                connection.close("could not be prepared")
                raise
        except Exception:
            attempts.record_failure(now_s=self._now_s())
            raise
        attempts.record_success()
        self._open = {at: one for at, one in self._open.items() if one.is_open}
        self._open[address] = connection
        return connection

    def _on_connect_done(self, address: Address, task: asyncio.Task[Connection]) -> None:
        del self._connecting[address]
        if not task.cancelled():
            task.exception()  # retrieved, also when all callers were cancelled

    def _attempts_of(self, address: Address) -> Attempts:
        attempts = self._attempts.pop(address, None)
        if attempts is None:
            attempts = Attempts(self._backoff, self._randomness)
            while len(self._attempts) >= ADDRESSES_MAX:
                del self._attempts[next(iter(self._attempts))]
        self._attempts[address] = attempts
        return attempts

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Close every connection and cancel those being opened."""
        self._is_closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        for connection in self._open.values():
            connection.close()
        for connection in list(self._open.values()):
            await connection.wait_closed()
        self._open.clear()


def _address_text(address: Address) -> str:
    return host_port(address.host, address.port)
