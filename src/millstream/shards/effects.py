"""Effects of the coordinators' pure machines: replies, and records that must be written first.

A machine is called with a request or the time, decides, and leaves effects in its outbox. The shell
takes them out at once, in order, before it calls the machine again:

- `Reply`: send it.
- `Write`: append the entries as one batch, all or none of them. If the log refuses, nothing has
  changed: every reply is answered with the error, and `on_refused` is called. If they are appended,
  they are applied (unless the machine has done so itself), and when the high watermark has passed
  them the replies are sent and `on_written` is called. If the leadership ends before, the whole
  machine is dropped, and waiting callers get NotCoordinator: what was written may be committed or
  not, and the next coordinator reads it from the log.

So a reply never depends on a state that a failover could revert.
"""

from typing import Any, NamedTuple, NewType

from millstream.model.errors import OperatingError
from millstream.model.ids import ProducerEpoch, ProducerId

Ticket = NewType("Ticket", int)


class Producer(NamedTuple):
    """The producer to whose transaction a record belongs."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Caller(NamedTuple):
    """The sender of a request. The token belongs to the shell: the response goes to it."""

    token: object
    version: int
    """Of the request's API."""
    client_id: str
    client_host: str


class Reply(NamedTuple):
    """A response message, or an OperatingError, which gives the error code."""

    token: object
    response: Any


class Write(NamedTuple):
    """Entries of the internal topic, and the replies to send when they are committed."""

    entries: tuple[Any, ...]
    """Key and value of each record, in order."""
    replies: tuple[Reply, ...] = ()
    ticket: Ticket | None = None
    """For machines that need to know the outcome."""
    is_applied: bool = False
    """The machine's state has these entries already: `apply` is for loading only."""
    producer: Producer | None = None
    """The producer to whose transaction the entries belong: they are a batch of it."""


Effect = Reply | Write


class Outbox:
    """Effects in the order in which they were decided."""

    __slots__ = ("_effects", "_tickets")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._tickets = 0

    def reply(self, caller: Caller, response: Any | OperatingError) -> None:
        """Reply without waiting for a write."""
        self._effects.append(Reply(caller.token, response))

    def write(self, write: Write) -> None:
        """Write, then send the replies."""
        self._effects.append(write)

    def ticket(self) -> Ticket:
        """A new ticket."""
        self._tickets += 1
        return Ticket(self._tickets)

    def take(self) -> list[Effect]:
        """Remove and return all effects."""
        effects, self._effects = self._effects, []
        return effects
