"""What the coordinator's pure machines hand out: answers, and records that must be written first.

A machine is called with a request or the time, decides, and leaves effects in its outbox. The shell
takes them out at once, in order, before it calls the machine again:

- `Reply`: send it.
- `Write`: append the entries as one batch, all or none of them. If the log refuses, nothing
  happened: every reply is answered with the error, and `refused(ticket)` is told. If it takes them,
  they are handed to `apply` (unless the machine has done so itself), and when the high watermark
  has passed them the replies are sent and `written(ticket)` is told. If the leadership ends before,
  the whole machine is dropped, and callers that still wait get NotCoordinator: what was written may
  be committed or not, and the next coordinator reads it from the log.

So an answer never tells of a state that a failover could take back.
"""

from typing import Any, NamedTuple, NewType

from millstream.model.errors import OperatingError
from millstream.model.ids import ProducerEpoch, ProducerId

Ticket = NewType("Ticket", int)


class Producer(NamedTuple):
    """Whose transaction a record belongs to."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Caller(NamedTuple):
    """Who asks. The token is the shell's: an answer goes to it."""

    token: object
    version: int
    """Of the request's API."""
    client_id: str
    client_host: str


class Reply(NamedTuple):
    """An answer: a response message, or what its error code is made of."""

    token: object
    response: Any


class Write(NamedTuple):
    """Entries of the internal topic, and what is answered when they are committed."""

    entries: tuple[Any, ...]
    """Key and value of each record, in order."""
    replies: tuple[Reply, ...] = ()
    ticket: Ticket | None = None
    """For machines that want to hear what became of it."""
    is_applied: bool = False
    """The machine's state has these entries already: `apply` is for loading only."""
    producer: Producer | None = None
    """Whose transaction the entries belong to: they are written as a batch of it."""


Effect = Reply | Write


class Outbox:
    """Effects in the order in which they were decided."""

    __slots__ = ("_effects", "_tickets")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._tickets = 0

    def reply(self, caller: Caller, response: Any | OperatingError) -> None:
        """Answer now."""
        self._effects.append(Reply(caller.token, response))

    def write(self, write: Write) -> None:
        """Write, then answer."""
        self._effects.append(write)

    def ticket(self) -> Ticket:
        """One that was not given before."""
        self._tickets += 1
        return Ticket(self._tickets)

    def take(self) -> list[Effect]:
        """Everything that is in it; it is empty then."""
        effects, self._effects = self._effects, []
        return effects
