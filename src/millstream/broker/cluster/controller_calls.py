"""Calls of the controller by a broker itself, and who may be it while nobody says.

In this process, or over a connection. Each is tried until a controller has said something definite,
or the caller's condition is gone: a controller that was deposed, or whose answer was lost, is
followed by another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.port import ClusterController
from millstream.controller.image import BrokerImage, Endpoint
from millstream.model.ids import BrokerId
from millstream.rpc.backoff import Backoff
from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import Randomness
from millstream.wire.errors import ErrorCode
from millstream.wire.primitives import MalformedFrame
from millstream.wire.schema import Message

T = TypeVar("T")

Located = ClusterController | Address
"""The controller: this broker's own, or where another one is."""

BACKOFF: Final = Backoff(initial_s=0.02, max_s=0.5)

AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Answers to a whole request that are not the last word. A stale epoch is one that the controller
has not seen yet, as long as the broker has it."""


class GivenUp(Exception):
    """The caller's condition is gone."""


class _Answer(Protocol):
    """Every answer that is asked for here has an error of the whole request."""

    @property
    def error_code(self) -> int: ...


class ControllerCalls:
    """One broker's; all methods run on the loop's thread."""

    def __init__(
        self,
        locate: Callable[[], Located | None],
        connections: Connections,
        randomness: Randomness,
        *,
        timeout_s: float,
    ) -> None:
        self._locate = locate
        self._connections = connections
        self._randomness = randomness
        self._timeout_s = timeout_s

    async def call(
        self,
        here: Callable[[ClusterController], Awaitable[T]],
        there: Callable[[Callable[[Message], Awaitable[Any]]], Awaitable[T]],
        *,
        purpose: str,
        is_wanted: Callable[[], bool],
    ) -> T:
        """What the controller says; raises GivenUp when `is_wanted` says no.

        `here` asks this broker's own controller. `there` gets a way to send a request to another
        one, whose answer has no error of `AGAIN` then.
        """
        failures = 0
        while is_wanted():
            located = self._locate()
            try:
                if isinstance(located, Address):
                    address = located._replace(purpose=purpose)
                    return await there(partial(self._send, address))
                if located is not None:
                    return await here(located)
            except (NotController, RpcError, MalformedFrame):
                pass  # it is somewhere else by now, or will be
            failures += 1
            await asyncio.sleep(BACKOFF.delay_s(failures, self._randomness))
        raise GivenUp

    async def _send(self, address: Address, request: Message) -> Any:
        connection = await self._connections.get(address)
        answer: _Answer = await connection.send(request, timeout_s=self._timeout_s)
        if getattr(answer, "error_code", 0) in AGAIN:
            raise NotController
        return answer


class ControllerSearch:
    """Whom a broker asks for metadata while the coordination service does not reach it. Pure.

    Nobody tells it who the controller is by now. So all whom it has met, as long as its process
    lives, are asked in turn, and who is not the controller points to the one who is.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._met: dict[BrokerId, BrokerImage] = {}
        self._pointed_to: BrokerImage | None = None
        self._turn = 0

    def met(self, brokers: Mapping[BrokerId, BrokerImage]) -> None:
        """One that is fenced in later images may be back when it is asked."""
        self._met.update({one: broker for one, broker in brokers.items() if not broker.is_fenced})

    def met_one(self, broker_id: BrokerId, endpoints: Sequence[Endpoint]) -> None:
        """In the coordination service, before any image had it."""
        self._met[broker_id] = BrokerImage(broker_id, tuple(endpoints))

    def pointed_to(self, broker_id: BrokerId, endpoints: Sequence[Endpoint]) -> None:
        """By somebody who was asked: is the next to be asked, once."""
        self._pointed_to = BrokerImage(broker_id, tuple(endpoints))

    def next(self, listener: str) -> Endpoint | None:
        """Who is asked now; None where nobody else is known."""
        pointed_to, self._pointed_to = self._pointed_to, None
        if pointed_to is not None and pointed_to.broker_id != self._broker_id:
            endpoint = pointed_to.endpoint(listener)
            if endpoint is not None:
                return endpoint
        others = [self._met[one] for one in sorted(self._met) if one != self._broker_id]
        places = [place for one in others if (place := one.endpoint(listener)) is not None]
        if not places:
            return None
        self._turn += 1
        return places[self._turn % len(places)]
