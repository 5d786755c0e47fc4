"""One request on its way through the broker: what a handler gets and how it answers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream.storage.log.reader import ReadSlice

if TYPE_CHECKING:
    from millstream.broker.requests.broker_proof import Challenge
    from millstream.broker.requests.services import Services
    from millstream.model.ids import BrokerId

AnswerPart = bytes | bytearray | memoryview | ReadSlice
"""Bytes, or a range of a segment file that is read only when the socket can take it."""


class Peer(Protocol):
    """The connection of a request, as far as handlers may use it."""

    @property
    def listener(self) -> str:
        """Name of the listener the client connected to; it gets the endpoints of this listener."""

    @property
    def client_host(self) -> str: ...

    @property
    def local_host(self) -> str:
        """The address of this broker that the client connected to; advertised as ""."""

    @property
    def connection_id(self) -> int: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def proven_broker(self) -> "BrokerId | None":
        """The broker of this cluster that it has proven to be; None: any client."""

    challenge: "Challenge | None"
    """That a broker has yet to answer."""

    def prove(self, broker_id: "BrokerId") -> None:
        """It has proven to be that broker; it remains that as long as it is open."""

    @property
    def is_admitted(self) -> bool:
        """False while it is beyond the limit of connections; then `admit` decides."""

    def admit(self, api_key: int) -> bool:
        """Whether a request of such a connection is served; otherwise it was closed."""

    def send_answer(self, number: int, parts: Sequence[AnswerPart]) -> None:
        """The whole response frame of request `number`; sent when all earlier ones are."""

    def send_nothing(self, number: int) -> None:
        """Request `number` has no response (acks=0)."""

    def close(self, reason: str) -> None: ...

    def charge(
        self,
        number: int,
        *,
        kept_bytes: int,
        more_bytes: int,
        go_on: Callable[[], None],
        had_turn: bool = False,
    ) -> None:
        """Charge what a large request takes in memory until its answer, in place of what it was
        charged so far: its own bytes at once, and what it takes beyond them (but no more than
        `charged_max`) when there is room. Then `go_on`; it waits muted, and may be closed instead.

        `had_turn`: it was served already, and waits before those that were not.
        """

    def charged_max(self, kept_bytes: int) -> int:
        """What one request of so many bytes may be charged beyond these."""

    def park(self, number: int, size_bytes: int, drop: Callable[[], None]) -> None:
        """A request waits for something else than memory: for records, or for other clients. It
        takes so much meanwhile; `drop` is called if the connection ends before its answer.
        """

    def hold(self, number: int) -> None:
        """A task works on a request: it is charged until its answer and until `let_go`, also when
        its connection has ended. It nests.
        """

    def let_go(self, number: int) -> None: ...

    def mute(self) -> None:
        """Take no more requests from it until `unmute`: one takes long to serve. It nests."""

    def unmute(self) -> None: ...


class RequestFacts(NamedTuple):
    """The request's header, decoded."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    number: int
    """Position in the connection's order of requests."""
    received_us: int
    """Monotonic time at which the frame was complete."""
    bytes_in: int
    """Size of the frame."""


class Context:
    """Handed to a handler with the decoded request. Answer exactly once (I-36)."""

    __slots__ = ("facts", "peer", "services")

    def __init__(self, services: "Services", peer: Peer, facts: RequestFacts) -> None:
        self.services = services
        self.peer = peer
        self.facts = facts

    @property
    def version(self) -> int:
        return self.facts.version

    @property
    def client_id(self) -> str | None:
        return self.facts.client_id

    def answer(self, response: Any) -> None:
        """Encode and send a response message of this request's API and version."""
        self.services.responder.answer(self, response)

    def answer_parts(self, body: Sequence[AnswerPart], *, error_count: int = 0) -> None:
        """Send a body that was encoded by the handler; the header and the frame are added here."""
        self.services.responder.answer_parts(self, body, error_count=error_count)

    def answer_frame(
        self, parts: Sequence[AnswerPart], size_bytes: int, *, error_count: int = 0
    ) -> None:
        """Send a whole frame, whose size without the first four bytes is `size_bytes`."""
        self.services.responder.answer_frame(self, parts, size_bytes, error_count=error_count)

    def answer_nothing(self) -> None:
        """For acks=0: the client waits for no response."""
        self.services.responder.answer_nothing(self)

    def close(self, reason: str) -> None:
        """Close the connection: the only way to report a failure to a producer with acks=0."""
        self.peer.close(reason)
