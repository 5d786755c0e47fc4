"""A broker's own calls to the controller, and the search for it without the coordination service.

The controller is in this process or behind a connection. A call is retried until a controller gives
a definite answer, or the caller's condition is gone: after a controller that was deposed, or whose
answer was lost, there will be another.
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
"""The controller: this broker's own, or the address of another one."""

BACKOFF: Final = Backoff(initial_s=0.02, max_s=0.5)

RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors of a whole request after which it is sent again. A stale epoch is one that the controller
has not seen yet, as long as the broker has it."""


class GivenUp(Exception):
    """The caller's condition is gone."""


class _Answer(Protocol):
    """Every response read here has an error code of the whole request."""

    @property
    def error_code(self) -> int: ...


class ControllerCalls:
    """One per broker; all methods run on the loop's thread."""

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
        call_local: Callable[[ClusterController], Awaitable[T]],
        call_remote: Callable[[Callable[[Message], Awaitable[Any]]], Awaitable[T]],
        *,
        purpose: str,
        is_wanted: Callable[[], bool],
    ) -> T:
        """The controller's answer; raises GivenUp as soon as `is_wanted` is false.

        `call_local` calls this broker's own controller. `call_remote` gets a function that sends a
        request to another one; the answer it returns has no error of `RETRIABLE`.
        """
        failures = 0
        while is_wanted():
            located = self._locate()
            try:
                if isinstance(located, Address):
                    address = located._replace(purpose=purpose)
                    return await call_remote(partial(self._send, address))
                if located is not None:
                    return await call_local(located)
            except (NotController, RpcError, MalformedFrame):
                pass  # another broker is the controller by now, or will be
            failures += 1
            await asyncio.sleep(BACKOFF.delay_s(failures, self._randomness))
        raise GivenUp

    async def _send(self, address: Address, request: Message) -> Any:
        connection = await self._connections.get(address)
        answer: _Answer = await connection.send(request, timeout_s=self._timeout_s)
        if getattr(answer, "error_code", 0) in RETRIABLE:
            raise NotController
        return answer


class ControllerSearch:
    """Finds the controller while the coordination service is unreachable. Pure.

    All brokers that were ever known to this process are queried in turn; one that is not the
    controller names the one that is.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._known: dict[BrokerId, BrokerImage] = {}
        self._hint: BrokerImage | None = None
        self._turn = 0

    def add_brokers(self, brokers: Mapping[BrokerId, BrokerImage]) -> None:
        """Of an image. One that is fenced in later images may be back when it is queried."""
        self._known.update({one: broker for one, broker in brokers.items() if not broker.is_fenced})

    def add_broker(self, broker_id: BrokerId, endpoints: Sequence[Endpoint]) -> None:
        """From the coordination service, before any image had it."""
        self._known[broker_id] = BrokerImage(broker_id, tuple(endpoints))

    def use_hint(self, broker_id: BrokerId, endpoints: Sequence[Endpoint]) -> None:
        """The controller as another broker named it: it is queried next, once."""
        self._hint = BrokerImage(broker_id, tuple(endpoints))

    def next(self, listener: str) -> Endpoint | None:
        """The broker to query now; None if no other is known."""
        use_hint, self._hint = self._hint, None
        if use_hint is not None and use_hint.broker_id != self._broker_id:
            endpoint = use_hint.endpoint(listener)
            if endpoint is not None:
                return endpoint
        others = [self._known[one] for one in sorted(self._known) if one != self._broker_id]
        endpoints = [place for one in others if (place := one.endpoint(listener)) is not None]
        if not endpoints:
            return None
        self._turn += 1
        return endpoints[self._turn % len(endpoints)]
