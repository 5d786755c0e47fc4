"""A client's connection as the broker sees it, independent of its carrier.

The connection core (`kernels.connection`) does framing and keeps answers in order; this class adds
what every carrier needs: the queue of bytes and file ranges that could not be sent yet, the
watermarks that stop reading while a client does not read, and an end that releases everything. The
carriers are `broker/net/socket_shell.py` (unencrypted sockets) and `broker/net/transport_shell.py`
(TLS, and the simulator).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from millstream.broker.net.cause import Cause as Cause
from millstream.broker.requests.account import Account
from millstream.broker.requests.answer_parts import memory_of, path_of, release, size_of
from millstream.broker.requests.context import AnswerPart
from millstream.broker.requests.request_memory import COUNTED_BYTES_MIN
from millstream.kernels.connection import Connection
from millstream.model.ids import BrokerId
from millstream.model.limits import CLOSING_GRACE_S

if TYPE_CHECKING:
    from millstream.broker.net.exchange import Exchange
    from millstream.broker.requests.broker_proof import Challenge

OPEN: Final = 0
DRAINING: Final = 1
"""Nothing more is read; the queue is sent, then the connection is closed."""
CLOSED: Final = 2

MUTED_BYTES: Final = 2**40
"""Counted as unsent while the connection is muted: the core then takes no more requests from it,
whatever has arrived."""


class ClientPeer(ABC):
    """One connection; all methods run on the loop's thread."""

    def __init__(
        self,
        exchange: "Exchange",
        core: Connection,
        *,
        listener: str,
        client_host: str,
        number: int,
    ) -> None:
        self.core = core
        self.listener = listener
        self.client_host = client_host
        self.local_host = ""
        """The address of this broker that the client connected to."""
        self.connection_id = number
        self.proven_broker: BrokerId | None = None
        """The broker of this cluster that it has proven to be."""
        self.challenge: Challenge | None = None
        """That a broker has yet to answer."""
        self.is_admitted = True
        """False while it is beyond the limits of connections (`broker/net/admission.py`)."""
        self.last_active_s = exchange.now_s
        self.account = Account(client_host)
        """What it takes of the memory for requests."""
        self._charges = self.account.charges
        self.state = OPEN
        self.close_reason = ""
        self.close_cause = Cause.CLIENT
        self.closing_since_s = 0.0
        self._exchange = exchange
        self._queue: deque[AnswerPart] = deque()
        self._is_reading = True
        self.awaits_turn = False
        """Whether requests in its buffer wait for a turn (`broker/net/connection_queue.py`)."""
        self._mutes = 0
        self._muted_bytes = 0
        core.owner = self

    # -- what handlers use -----------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.state == OPEN

    def prove(self, broker_id: BrokerId) -> None:
        self.proven_broker = broker_id
        self.account.is_broker = True
        if self._exchange.admission is not None and self.state != CLOSED:
            self._exchange.admission.proven(self)

    def admit(self, api_key: int) -> bool:
        admission = self._exchange.admission
        return admission is None or admission.admit(self, api_key)

    @property
    def has_ended(self) -> bool:
        return self.state == CLOSED

    def charge(
        self,
        number: int,
        *,
        kept_bytes: int,
        more_bytes: int,
        go_on: Callable[[], None],
        had_turn: bool = False,
    ) -> None:
        self._exchange.held.charge(
            self,
            number,
            kept_bytes=kept_bytes,
            more_bytes=more_bytes,
            go_on=go_on,
            had_turn=had_turn,
        )

    def charged_max(self, kept_bytes: int) -> int:
        return self._exchange.held.memory.bytes_max(self.account, kept_bytes)

    def park(self, number: int, size_bytes: int, drop: Callable[[], None]) -> None:
        self._exchange.held.park(self, number, size_bytes, drop)

    def hold(self, number: int) -> None:
        self._exchange.held.hold(self, number)

    def let_go(self, number: int) -> None:
        self._exchange.held.let_go(self, number)

    def send_answer(self, number: int, parts: Sequence[AnswerPart]) -> None:
        if self.state == CLOSED:
            release(parts)
            return
        if self._charges:
            self._exchange.held.release(self, number)
        self.core.answer(number, parts)
        self._exchange.on_output_ready(self)

    def send_nothing(self, number: int) -> None:
        if self.state != CLOSED:
            if self._charges:
                self._exchange.held.release(self, number)
            self.core.answer_nothing(number)
            self._exchange.on_output_ready(self)

    def close(self, reason: str, cause: Cause = Cause.PROTOCOL) -> None:
        """Read no more, send what is queued, close."""
        if self.state != OPEN:
            return
        self.close_cause = cause
        self.state = DRAINING
        self.close_reason = reason
        self.closing_since_s = self._exchange.now_s
        self.pause_reading()
        self._exchange.on_output_ready(self)

    @property
    def is_muted(self) -> bool:
        return self._mutes > 0

    def mute(self) -> None:
        """Take no more requests from it, neither from its buffer nor its socket.

        It may be muted for several reasons at once: until as many calls of `unmute`.
        """
        self._mutes += 1
        if self._mutes == 1:
            self._muted_bytes = MUTED_BYTES
            self.core.unsent_bytes += MUTED_BYTES
            self.pause_reading()

    def forget_mute(self) -> None:
        """It has ended, and one of the reasons for which it is muted with it."""
        self._mutes -= 1

    def unmute(self) -> None:
        if not self._mutes:
            return
        self._mutes -= 1
        if self._mutes:
            return
        self._muted_bytes = 0
        self.core.unsent_bytes -= MUTED_BYTES
        if self.state == OPEN:
            self.resume_if_idle()
            self._exchange.flush_ready()

    # -- output ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Send as much as the carrier takes, then check whether there is room for more requests."""
        self._queue.extend(self.core.take_output())
        late_bytes = 0
        if not self._queue:
            late_bytes = self.core.late_bytes  # an answer that waits for an earlier one
        elif not self.send_queue():
            self._apply_backpressure()
            return
        self.core.unsent_bytes = self._muted_bytes
        if self.account.answer_bytes or late_bytes >= COUNTED_BYTES_MIN:
            self._exchange.held.account_answers(self, self.core.late_bytes)
        if self.state == DRAINING:
            self.abort(self.close_reason, self.close_cause)
        elif self.state == OPEN:
            self.resume_if_idle()

    def _apply_backpressure(self) -> None:
        """Read no more from a client that does not take its answers (I-37)."""
        if self.state == CLOSED:
            return
        unsent = sum(map(size_of, self._queue))
        self.core.unsent_bytes = self._muted_bytes + unsent
        if unsent >= COUNTED_BYTES_MIN or self.account.answer_bytes:
            kept = sum(map(memory_of, self._queue)) + self.core.late_bytes
            self._exchange.held.account_answers(self, kept)
        if self.core.is_blocked:
            self.pause_reading()

    def resume_if_idle(self) -> None:
        """Requests that waited in the buffer for room come first, then the socket."""
        if self._queue or self.core.is_blocked:
            self.pause_reading()
        elif self._is_reading or self.awaits_turn:
            return
        elif self.core.unread_bytes:
            self._exchange.on_requests_waiting(self)
        else:
            self.resume_reading()

    def resume_after_turn(self) -> None:
        """What has arrived is served, but for the beginning of a request: read the rest of it."""
        is_waiting = self._is_reading or self.awaits_turn
        if self.state == OPEN and not (is_waiting or self._queue or self.core.is_blocked):
            self.resume_reading()

    @abstractmethod
    def send_queue(self) -> bool:
        """Send from the queue's front; True when it is empty, else `flush` is called again."""

    # -- input -----------------------------------------------------------------------------

    @abstractmethod
    def pause_reading(self) -> None: ...

    @abstractmethod
    def resume_reading(self) -> None: ...

    @property
    def is_blocked(self) -> bool:
        """Not read from until answers leave, or are there: its end would not be noticed."""
        return not (self._is_reading or self.awaits_turn or self._mutes)

    def has_left(self) -> bool:
        """Whether the client has closed its side, although nothing is read from it now; False also
        where the carrier cannot tell.
        """
        return False

    # -- end -------------------------------------------------------------------------------

    def abort(self, reason: str, cause: Cause) -> None:
        """Close now; what is queued is dropped."""
        if self.state == CLOSED:
            return
        if self.state == OPEN:
            self.close_reason, self.close_cause = reason, cause
        self.state = CLOSED
        self.close_carrier()
        release(self._queue)
        self._queue.clear()
        release(self.core.drop_output())
        self._exchange.on_closed(self)

    def fail_reading(self, error: OSError, part: AnswerPart) -> None:
        """Records of an answer that has begun cannot be read: the client has to fetch again, and
        gets the log's error then.
        """
        error.filename = error.filename or path_of(part)
        self.abort(f"reading {error.filename} failed: {error.strerror}", Cause.FAILURE)
        self._exchange.on_read_error(error)

    @abstractmethod
    def close_carrier(self) -> None: ...

    def is_overdue(self, now_s: float, *, idle_s: float) -> bool:
        """Whether the sweep should end it: idle, or draining for too long."""
        if self.state == DRAINING:
            return now_s - self.closing_since_s > CLOSING_GRACE_S
        return now_s - max(self.last_active_s, self.core.last_active_s) > idle_s
