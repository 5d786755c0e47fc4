"""Finds a reachable broker: tries several addresses, each with a short lead over the next.

An address that drops packets would otherwise hold up the ones after it for the whole connection
timeout.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from millstream.client.errors import BrokersUnreachable
from millstream.rpc.addresses import host_port
from millstream.rpc.connection import Connection
from millstream.rpc.connections import Address
from millstream.rpc.errors import ConnectionLost, RpcError
from millstream.runtime.randomness import Randomness

T = TypeVar("T")

LEAD_S: Final = 0.25
"""How long one address is tried before the next is tried as well."""

UNDER_WAY: Final = "no answer yet"

Connect = Callable[[Address], Awaitable[Connection]]
Running = dict[asyncio.Task[Connection], str]


class Search:
    """A search, with the addresses tried so far for the error of a timeout."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """By address, including those in progress. Empty when the last search succeeded."""

    async def connect_first(self, addresses: Iterable[Address], connect: Connect) -> Connection:
        """The first that can be connected to; raises BrokersUnreachable when none can."""
        waiting = deque(addresses)
        running: Running = {}
        reasons: dict[str, str] = {}
        self.reasons = reasons
        try:
            while waiting or running:
                if waiting:
                    _start(waiting.popleft(), connect, running, reasons)
                done, _ = await asyncio.wait(
                    running,
                    timeout=LEAD_S if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    found = _outcome(task, running.pop(task), reasons)
                    if found is not None:
                        self.reasons = {}
                        return found
        finally:
            await _drop(running)
        raise BrokersUnreachable(reasons)


def _start(address: Address, connect: Connect, running: Running, reasons: dict[str, str]) -> None:
    address_text = host_port(address.host, address.port)
    reasons.setdefault(address_text, UNDER_WAY)

    async def work() -> Connection:
        return await connect(address)

    running[asyncio.get_running_loop().create_task(work(), name=f"try {address_text}")] = (
        address_text
    )


def _outcome(
    task: asyncio.Task[Connection], address_text: str, reasons: dict[str, str]
) -> Connection | None:
    error = task.exception()
    if error is None:
        return task.result()
    if not isinstance(error, RpcError):
        raise error
    reasons[address_text] = error.reason if isinstance(error, ConnectionLost) else str(error)
    return None


async def _drop(running: Running) -> None:
    """Cancel the waits; a connection that is being made is kept by the pool."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def shuffled(items: Sequence[T], randomness: Randomness) -> list[T]:
    """In random order, so that clients with the same list do not all connect to the first."""
    left = list(items)
    mixed = []
    while left:
        mixed.append(left.pop(randomness.integer(0, len(left))))
    return mixed
