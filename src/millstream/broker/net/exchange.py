"""One event-loop iteration: everything that arrived is handled together.

The carriers of connections hand in what arrived; requests are walked in order, produce requests on
the fast path are staged by the connection core, everything else goes to dispatch. Then comes the
work that handlers left for the end of the iteration, to be done for many requests at once, then one
write per partition, and only then the answers: one send per connection.

Handlers have a limited time in each iteration. What is left when it is over waits for a turn in a
later one, those first that have had least (`broker/net/connection_queue.py`), and is not read from
meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.broker.net.connection_queue import ConnectionQueue
from millstream.broker.net.held_memory import HeldMemory
from millstream.broker.net.peer import Cause, ClientPeer
from millstream.broker.requests.context import RequestFacts
from millstream.broker.requests.dispatch import Dispatch
from millstream.broker.requests.error_codes import code_of
from millstream.broker.requests.request_memory import COUNTED_BYTES_MIN, RequestMemory
from millstream.kernels.connection import Connection, FrameError
from millstream.kernels.slots import SlotTable
from millstream.model.limits import (
    ITERATION_SERVING_S,
    REQUEST_MEMORY_BYTES,
    TASK_SERVING_S,
    TURN_SERVING_S,
)
from millstream.observe.api_counters import ApiCounters
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.clock import Clock
from millstream.runtime.fatal import end_if_fatal

if TYPE_CHECKING:
    from millstream.broker.net.admission import Admission

log = get_logger("millstream.broker.net.exchange")

_PRODUCE: Final = 0

REQUESTS_PER_TURN_MAX: Final = 16
"""Requests of one connection that handlers serve before other connections have their turn."""

ROUNDS_MAX: Final = 2
"""How often an iteration returns to connections whose answers made room for more of their requests.
The time it has for that ends it earlier, except in a simulation, where no time passes."""


CallSoon = Callable[[Callable[[], None]], object]
"""`call_soon` of the event loop."""


def _nothing(*_: object) -> None: ...


@dataclass(slots=True, frozen=True, kw_only=True)
class ExchangeHooks:
    """What the exchange calls in the rest of the broker."""

    after_write: Callable[[], None] = _nothing
    """Notifies the fetches that wait for what was written."""
    on_read_error: Callable[[OSError], None] = _nothing
    """Called with the error, which names the file, when records for an answer could not be read."""
    admission: "Admission | None" = None
    """Decides about connections beyond the limits; without it there are none."""
    client_log: ClientLog | None = None
    """The broker's; without it the exchange has its own."""
    memory: RequestMemory | None = None
    """The budget for what requests take; without it one of the default size."""
    return_memory: Callable[[], None] = _nothing
    """Gives memory that is free back to the system, after requests have released much."""


class Exchange:
    """One per broker.

    A carrier of many connections calls `begin`, `on_readable` for each, then `finish`. One that has
    an event for each connection calls `on_received`.
    """

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
        """`take_ready`: connections with output. A carrier that sends by itself returns only the
        others; by default those of the table.
        """
        self.table = table
        self.admission = hooks.admission
        self._apis = apis
        self._client_log = hooks.client_log or ClientLog(clock)
        self.now_s = clock.monotonic_s()
        self.wall_ms = clock.wall_ms()
        self._dispatch = dispatch
        self._clock = clock
        self._on_end = on_end
        self._after_write = hooks.after_write
        self.on_read_error = hooks.on_read_error
        self._call_soon = call_soon
        memory = hooks.memory or RequestMemory(REQUEST_MEMORY_BYTES)
        self.held = HeldMemory(self, memory, hooks.return_memory)
        self._counted = (0, 0, 0, 0)
        """The table's counters as last added to the metrics."""
        self._take_ready = take_ready or table.take_ready
        self._is_awake = False
        self._is_scheduled = False
        """Whether an iteration without new input is to come. There is one at most: each that were
        scheduled on top would schedule its own successor, for good."""
        self._with_output: dict[ClientPeer, None] = {}
        self._waiting = ConnectionQueue()
        self._left_s = ITERATION_SERVING_S
        """Time that handlers have until the next iteration."""
        self._mark_s = 0.0
        """When the last request was served; 0 before the first of an iteration."""
        self._at_end: list[Callable[[], None]] = []

    # -- carriers --------------------------------------------------------------------------

    def is_awake(self) -> bool:
        """Whether an iteration is in progress: `after_write` follows at its end, or soon after."""
        return self._is_awake

    def begin(self) -> None:
        """Start an iteration: at most one in each iteration of the event loop."""
        self._wake()
        self._left_s = ITERATION_SERVING_S

    def on_received(self, peer: ClientPeer, size_bytes: int) -> None:
        """Bytes were put into the buffer of one connection, outside an iteration.

        Many of these in one iteration of the event loop share the time of one iteration.
        """
        self._wake()
        peer.last_active_s = self.now_s
        peer.core.received(size_bytes)
        if self._waiting or self._left_s <= 0:
            self.on_requests_waiting(peer)
        else:
            self._serve(peer)
        if peer.core.unread_bytes >= COUNTED_BYTES_MIN or peer.account.input_bytes:
            self.held.account_input(peer)
        self._complete()
        self._sleep()

    def on_readable(self, peer: ClientPeer) -> None:
        """A connection has unread requests, or a large part of one."""
        if peer.core.has_request and (self._waiting or self._left_s <= 0):
            self.on_requests_waiting(peer)
        else:
            self._serve(peer)
        if peer.core.unread_bytes >= COUNTED_BYTES_MIN or peer.account.input_bytes:
            self.held.account_input(peer)

    def finish(self) -> None:
        """Write what was staged and send the answers, then let those that wait have their turns."""
        self._complete()
        for _ in range(ROUNDS_MAX):
            if not self._waiting or self._left_s <= 0:
                break
            self._serve_waiting()
            self._complete()
        self._sleep()

    def _wake(self) -> None:
        self._is_awake = True
        self._mark_s = 0.0
        self.now_s = self._clock.monotonic_s()
        self.wall_ms = self._clock.wall_ms()

    def _complete(self) -> None:
        """What follows the requests: work for all of them, one write per partition, answers."""
        if self._at_end:
            self._run_at_end()
        self._write_staged()
        for core in self._take_ready():
            self._with_output[core.owner] = None
        while self._with_output:
            peer, _ = self._with_output.popitem()
            try:
                peer.flush()
            except Exception as error:  # noqa: BLE001 - as in `_serve`
                self.abort_failed(peer, error)

    def _sleep(self) -> None:
        self._is_awake = False
        self.held.after_iteration()
        if self.table.produce_requests != self._counted[0]:
            self._count_produce()
        if self._waiting or self._with_output or self._at_end:
            self._schedule()
        else:
            self._waiting.forget_costs()

    def _serve_waiting(self) -> None:
        """One for each that waits, as long as there is time."""
        waiting = self._waiting
        for _ in range(len(waiting)):
            if not waiting or self._left_s <= 0:
                break
            peer, left_s = waiting.next(), self._left_s
            peer.awaits_turn = False
            is_left = self._serve(peer, waits=False)
            waiting.served(peer, left_s - self._left_s)
            if peer.has_ended:
                waiting.remove(peer)  # in its own turn
            elif is_left:
                self.on_requests_waiting(peer)
            else:
                peer.resume_after_turn()

    def run_at_end(self, work: Callable[[], None]) -> None:
        """Run `work` once, after all requests of this iteration and before answers are sent.

        For work that is better done for many requests together. Outside an iteration it runs soon.
        """
        self._at_end.append(work)
        if not self._is_awake:
            self._schedule()

    def _run_at_end(self) -> None:
        waiting, self._at_end = self._at_end, []
        for work in waiting:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the answers of others must be sent
                end_if_fatal(error)
                message = "work at the end of an event-loop iteration failed"
                self._client_log.error(log, message, client="", error=error)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._is_scheduled = False
        self.begin()
        self.finish()

    def _run_between(self) -> None:
        """Send answers that became ready between two iterations. No connection is served: there may
        be very many of these before the loop looks at the sockets again.
        """
        self._wake()
        self._complete()
        self._sleep()

    # -- connections -----------------------------------------------------------------------

    def flush_ready(self) -> None:
        """Answers became ready outside an iteration: after a flush or a timeout."""
        if not self._is_awake:
            self._run_between()

    def on_output_ready(self, peer: ClientPeer) -> None:
        """An answer is ready; outside an iteration it is sent at once."""
        self._with_output[peer] = None
        if not self._is_awake:
            self._run_between()

    def on_requests_waiting(self, peer: ClientPeer) -> None:
        """Requests that have arrived wait for a turn; more are not read until they had it."""
        peer.awaits_turn = True
        peer.pause_reading()
        self._waiting.add(peer)
        if not self._is_awake:
            self._schedule()

    def note_time(self) -> float:
        """The time now, outside an iteration, where nothing else notes it."""
        self.now_s = self._clock.monotonic_s()
        return self.now_s

    @property
    def has_time(self) -> bool:
        """Whether more requests may be served in this iteration."""
        return self._left_s > 0

    def run_in_turn(self, work: Callable[[], None]) -> None:
        """Serve a request that has waited for something else than a turn."""
        since_s = self._clock.monotonic_s()
        work()
        self._left_s -= self._clock.monotonic_s() - since_s

    def charge_task(self) -> None:
        """A request goes on as a task, which the loop runs before it looks at the sockets again."""
        self._left_s -= TASK_SERVING_S

    def on_closed(self, peer: ClientPeer) -> None:
        self.held.closed(peer)
        self._with_output.pop(peer, None)
        self._waiting.remove(peer)
        self._on_end(peer)

    # -- inside ----------------------------------------------------------------------------

    def _serve(self, peer: ClientPeer, *, waits: bool = True) -> bool:
        """Whether requests may be left; with `waits` they wait for a turn then."""
        core, table, clock = peer.core, self.table, self._clock
        wall_ms = self.wall_ms
        received_us = int(self.now_s * 1e6)
        left, end_s = REQUESTS_PER_TURN_MAX, max(0.0, self._left_s - TURN_SERVING_S)
        self._mark_s = self._mark_s or clock.monotonic_s()
        try:
            while peer.is_open and (request := core.next_request(wall_ms)) is not None:
                if table.staged:
                    self._write_staged()  # a handler must see what was produced before its request
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
                now_s = clock.monotonic_s()
                self._left_s -= now_s - self._mark_s
                self._mark_s = now_s
                left -= 1
                if (not left or self._left_s <= end_s) and core.unread_bytes and peer.is_open:
                    if waits:
                        self.on_requests_waiting(peer)
                    return True
        except FrameError as error:
            peer.close(str(error))
        except Exception as error:  # noqa: BLE001 - one connection's error must not stop the others
            self.abort_failed(peer, error)
            return False
        if core.is_blocked:
            peer.resume_if_idle()
        return False

    def _count_produce(self) -> None:
        """Count the requests of the fast path, each with the duration of this iteration."""
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

    def abort_failed(self, peer: ClientPeer, error: Exception) -> None:
        end_if_fatal(error)
        self._client_log.error(log, "connection failed", client=peer.client_host, error=error)
        peer.abort(f"failed: {error!r}", Cause.FAILURE)

    def _write_staged(self) -> None:
        table = self.table
        if table.staged:
            table.write_staged(code_of)
        self._after_write()
        for core in table.take_failed():
            core.owner.close("records of a producer with acks=0 could not be stored")
