"""All that one wake-up brings, handled together.

The carriers of connections hand in what arrived; requests are walked in order, plain produce
requests are staged by the connection core, everything else goes to dispatch. Then comes what
handlers left for the end of the wake-up, to be done for many requests at once, and one write per
partition, and only then the answers: one send per connection.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millstream.broker.net.peer import CLOSED, Cause, ClientPeer
from millstream.broker.requests.context import RequestFacts
from millstream.broker.requests.dispatch import Dispatch
from millstream.broker.requests.error_codes import code_of
from millstream.kernels.connection import Connection, FrameError
from millstream.kernels.slots import SlotTable
from millstream.model.limits import BUFFERED_REQUEST_BYTES_MAX, KIB
from millstream.observe.api_counters import ApiCounters
from millstream.observe.logs import get_logger
from millstream.runtime.clock import Clock

log = get_logger("millstream.broker.net.exchange")

_PRODUCE: Final = 0

REQUESTS_PER_TURN_MAX: Final = 16
"""Requests of one connection that handlers serve before the others have their turn."""

ROUNDS_MAX: Final = 2
"""Times a wake-up goes back to connections whose answers made room for more of their requests.
A client that pipelines without end must let the others have their turn."""

HELD_FROM_BYTES: Final = 64 * KIB
"""Smaller leftovers in a connection's buffer are not counted: most connections have none, and there
are at most as many as connections."""


HELD_GRACE_S: Final = 1.0
"""Added to how long a request has been held: among those that came just now the largest goes."""


CallSoon = Callable[[Callable[[], None]], object]
"""The event loop's."""


def _nothing(*_: object) -> None: ...


@dataclass(slots=True, frozen=True, kw_only=True)
class ExchangeHooks:
    """What the exchange calls in the rest of the broker."""

    after_commit: Callable[[], None] = _nothing
    """Lets the readers look that wait for what was written."""
    reading_failed: Callable[[OSError], None] = _nothing
    """Told of a file, by its name in the error, that could not be read for an answer."""


class Exchange:
    """One per broker. A carrier calls `begin`, `arrived` for each connection, then `finish`."""

    def __init__(
        self,
        table: SlotTable,
        dispatch: Dispatch,
        clock: Clock,
        apis: ApiCounters,
        on_end: Callable[[ClientPeer], None],
        *,
        call_soon: CallSoon,
        hooks: ExchangeHooks = ExchangeHooks(),
        take_ready: Callable[[], list[Connection]] | None = None,
    ) -> None:
        """`take_ready`: connections with output. A carrier that sends by itself gives those that
        are left; without one the table's.
        """
        self.table = table
        self._apis = apis
        self.now_s = clock.monotonic_s()
        self.wall_ms = clock.wall_ms()
        self.closing: set[ClientPeer] = set()
        """Connections that drain; the sweep ends those that take too long."""
        self._dispatch = dispatch
        self._clock = clock
        self._on_end = on_end
        self._after_commit = hooks.after_commit
        self.reading_failed = hooks.reading_failed
        self._call_soon = call_soon
        self._held_bytes = 0
        self._hold_steps: dict[ClientPeer, None] = {}
        self._counted = (0, 0, 0, 0)
        """What of the table's counters is in the metrics."""
        self._take_ready = take_ready or table.take_ready
        self._is_awake = False
        self._with_output: dict[ClientPeer, None] = {}
        self._with_requests: dict[ClientPeer, None] = {}
        self._at_end: list[Callable[[], None]] = []

    # -- carriers --------------------------------------------------------------------------

    def is_awake(self) -> bool:
        """Whether a wake-up is going on: `after_commit` is called at its end, or soon after."""
        return self._is_awake

    def begin(self) -> None:
        """A wake-up starts."""
        self._is_awake = True
        self.now_s = self._clock.monotonic_s()
        self.wall_ms = self._clock.wall_ms()

    def arrived(self, peer: ClientPeer, size_bytes: int) -> None:
        """Bytes were put into the connection's buffer."""
        peer.last_active_s = self.now_s
        peer.core.received(size_bytes)
        self.told(peer)

    def told(self, peer: ClientPeer) -> None:
        """A connection has requests, or a large part of one."""
        self._serve(peer)
        if peer.core.unread_bytes >= HELD_FROM_BYTES:
            self.hold(peer)

    def finish(self) -> None:
        """Write what was staged, send what is answered; both until nothing is left to do."""
        for _ in range(ROUNDS_MAX):
            if self._at_end:
                self._run_at_end()
            self._commit()
            for core in self._take_ready():
                self._with_output[core.owner] = None
            while self._with_output:
                peer, _ = self._with_output.popitem()
                try:
                    peer.flush()
                except Exception as error:  # noqa: BLE001 - as above
                    self._break_off(peer, error)
            if not self._with_requests:
                break
            waiting, self._with_requests = self._with_requests, {}
            for peer in waiting:
                self._serve(peer)
        else:
            self._call_soon(self._again)  # what the last of them brought is still to be written
        self._is_awake = False
        if self._hold_steps:
            for peer in list(self._hold_steps):
                self.hold(peer)
        if self.table.produce_requests != self._counted[0]:
            self._count_produce()
        if self._with_requests or self._with_output or self._at_end:
            self._call_soon(self._again)

    def at_end(self, work: Callable[[], None]) -> None:
        """Run it once when all that this wake-up brought was looked at, before answers leave.

        For what is better done for many requests together. Outside a wake-up it is done soon.
        """
        self._at_end.append(work)
        if not self._is_awake:
            self._call_soon(self._again)

    def _run_at_end(self) -> None:
        waiting, self._at_end = self._at_end, []
        for work in waiting:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the answers of others must leave
                log.error("work at the end of an event-loop iteration failed", error=error)

    def _again(self) -> None:
        self.begin()
        self.finish()

    # -- connections -----------------------------------------------------------------------

    def flush_ready(self) -> None:
        """Answers became ready outside a wake-up: a flush is done, or a time is up."""
        if not self._is_awake:
            self._again()

    def has_output(self, peer: ClientPeer) -> None:
        """An answer is ready; outside a wake-up it leaves at once."""
        self._with_output[peer] = None
        if not self._is_awake:
            self._again()

    def has_requests(self, peer: ClientPeer) -> None:
        """There was no room for requests that have arrived; now there is."""
        self._with_requests[peer] = None

    def is_closing(self, peer: ClientPeer) -> None:
        self.closing.add(peer)

    def has_ended(self, peer: ClientPeer) -> None:
        self.closing.discard(peer)
        self._held_bytes -= peer.held_bytes
        peer.held_bytes = 0
        self._hold_steps.pop(peer, None)
        self._with_output.pop(peer, None)
        self._with_requests.pop(peer, None)
        self._on_end(peer)

    def hold(self, peer: ClientPeer) -> None:
        """Count what is kept of requests; beyond the limit of all somebody has to go."""
        if peer.state == CLOSED:
            return  # it was given back when it ended
        held = peer.core.unread_bytes + peer.served_bytes
        self._held_bytes += held - peer.held_bytes
        peer.held_bytes = held
        if held < HELD_FROM_BYTES:
            self._hold_steps.pop(peer, None)
        elif peer not in self._hold_steps:
            self._hold_steps[peer] = None
            peer.held_since_s = self.now_s
        while self._held_bytes > BUFFERED_REQUEST_BYTES_MAX and self._hold_steps:
            worst = max(self._hold_steps, key=self._burden)
            worst.abort("unfinished requests take too much memory", Cause.LIMIT)

    def _burden(self, peer: ClientPeer) -> float:
        """How much it holds, for how long: not whoever comes last has to go, but those who send
        large requests and do not finish them. A byte now and then does not make them younger.
        """
        return peer.held_bytes * (self.now_s - peer.held_since_s + HELD_GRACE_S)

    # -- inside ----------------------------------------------------------------------------

    def _serve(self, peer: ClientPeer) -> None:
        core, table = peer.core, self.table
        wall_ms = self.wall_ms
        received_us = int(self.now_s * 1e6)
        left = REQUESTS_PER_TURN_MAX
        try:
            while peer.is_open and (request := core.next_request(wall_ms)) is not None:
                if table.staged:
                    self._commit()  # a handler must see what was sent before its request
                number, api_key, version, correlation_id, client_id, body = request
                facts = RequestFacts(
                    api_key,
                    version,
                    correlation_id,
                    None if client_id is None else str(client_id, "utf-8", "replace"),
                    number,
                    received_us,
                    len(body),
                )
                self._dispatch.handle(peer, facts, body)
                left -= 1
                if not left:
                    self.has_requests(peer)  # the others first
                    return
        except FrameError as error:
            peer.close(str(error))
        except Exception as error:  # noqa: BLE001 - one connection's trouble is not the others'
            self._break_off(peer, error)
            return
        if core.is_blocked:
            peer.resume_if_idle()

    def _count_produce(self) -> None:
        """Requests that the core answered alone, all with the time this wake-up took."""
        table = self.table
        requests, bytes_in, bytes_out, errors = self._counted
        self._counted = counted = (
            table.produce_requests,
            table.produce_bytes_in,
            table.produce_bytes_out,
            table.produce_errors,
        )
        self._apis.observe_many(
            _PRODUCE,
            counted[0] - requests,
            int((self._clock.monotonic_s() - self.now_s) * 1e6),
            counted[1] - bytes_in,
            counted[2] - bytes_out,
            counted[3] - errors,
        )

    def _break_off(self, peer: ClientPeer, error: Exception) -> None:
        log.error("connection failed", client=peer.client_host, error=error)
        peer.abort(f"failed: {error!r}", Cause.FAILURE)

    def _commit(self) -> None:
        table = self.table
        if table.staged:
            table.commit(code_of)
        self._after_commit()
        for core in table.take_failed():
            core.owner.close("a record of a producer that waits for no answer was not stored")
