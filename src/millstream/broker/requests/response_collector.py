"""Stands in for the connection of a forwarded request, and keeps its answer for the forwarder.

A request that was forwarded is served like any other; only its answer goes another way.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from millstream.broker.requests.context import AnswerPart
from millstream.broker.requests.request_memory import cost_of_items
from millstream.controller.cluster.errors import NotController
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId
from millstream.model.invariant import invariant

if TYPE_CHECKING:
    from millstream.broker.requests.broker_proof import Challenge

_FRAME_SIZE_BYTES: Final = 4


class RequestRefused(OperatingError):
    """A client's connection would be closed: the request is malformed or could not be answered."""


class CollectingPeer:
    """Takes one answer; `response` has it without the size of its frame."""

    is_open = True
    proven_broker = None
    is_admitted = True

    def __init__(self, *, listener: str, client_host: str, local_host: str) -> None:
        self.listener = listener
        self.client_host = client_host
        self.local_host = local_host
        self.connection_id = 0
        self.challenge: Challenge | None = None
        self.response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """Raises NotController or RequestRefused."""
        self._is_deposed = False

    def send_answer(self, number: int, parts: Sequence[AnswerPart]) -> None:
        del number
        if self._is_deposed:
            self._fail(NotController())
            return
        chunks = []
        for part in parts:
            invariant(isinstance(part, bytes | bytearray | memoryview), "records were forwarded")
            chunks.append(bytes(part))  # type: ignore[arg-type]
        if not self.response.done():
            self.response.set_result(b"".join(chunks)[_FRAME_SIZE_BYTES:])

    def send_nothing(self, number: int) -> None:
        del number
        self._fail(RequestRefused("the request has no answer"))

    def close(self, reason: str) -> None:
        self._fail(RequestRefused(reason))

    def prove(self, broker_id: BrokerId) -> None:
        """No such request is forwarded."""

    def admit(self, api_key: int) -> bool:
        del api_key
        return True

    def note_not_controller(self) -> None:
        """The answer that follows says so; it is discarded, and the forwarder tries again."""
        self._is_deposed = True

    def charge(
        self,
        number: int,
        *,
        kept_bytes: int,
        more_bytes: int,
        go_on: Callable[[], None],
        had_turn: bool = False,
    ) -> None:
        """It was charged to the connection that it came from."""
        del number, kept_bytes, more_bytes, had_turn
        go_on()

    def charged_max(self, kept_bytes: int) -> int:
        """As it was charged for as many items as there may be."""
        return cost_of_items(kept_bytes)

    def park(self, number: int, size_bytes: int, drop: Callable[[], None]) -> None:
        """Such a request waits for no more than its time limit."""

    def hold(self, number: int) -> None:
        """Its connection is held by the forwarder."""

    def let_go(self, number: int) -> None:
        """As above."""

    def mute(self) -> None:
        """Nothing to do: no other request could overtake it."""

    def unmute(self) -> None:
        """Nothing to do: nothing was held back."""

    def _fail(self, error: OperatingError) -> None:
        if not self.response.done():
            self.response.set_exception(error)
            self.response.exception()  # mark it as retrieved, also when the forwarder is gone
