"""Applies the budget of `RequestMemory` to connections: which wait, and which are closed.

Connections wait muted: neither their buffer nor their socket is read. One that has waited too long
is closed. While some wait and none of them gets on, and where the whole budget is exceeded, those
are closed that have held most for longest (`broker/net/burden.py`): unfinished requests, requests
that wait, answers that are not taken. There is no error code for that: an error would have to name
what the request asked for, which was not decoded for lack of memory, and every client retries after
a closed connection.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.broker.net.cause import Cause
from millstream.broker.requests.account import Account, Idle
from millstream.broker.requests.request_memory import (
    COUNTED_BYTES_MIN,
    INPUT_STEP_BYTES,
    RequestMemory,
)
from millstream.model.limits import KIB

if TYPE_CHECKING:
    from millstream.broker.net.exchange import Exchange
    from millstream.broker.net.peer import ClientPeer

IN_FLIGHT_REQUEST_BYTES: Final = 4 * KIB
"""A small request that waits for its answer: its objects and a timer."""

CONNECTION_BYTES: Final = 4 * KIB
"""A connection that does nothing."""

BUFFER_BYTES: Final = 32 * KIB
"""Of a connection that has sent a part of a request."""

GRANTS_MAX: Final = 4
"""Requests that waited for memory and are served in one iteration: each takes up to 2 ms."""

RELEASED_SHARE: Final = 32
"""When requests have released this part of the budget, 16 MiB by default, the heap's free pages are
returned to the system."""

RETURN_INTERVAL_S: Final = 5.0
"""No more often: a heap of 500 MiB takes some 50 ms, in which no client is served."""

RECOUNT_INTERVAL_S: Final = 0.05
"""Requests that are served without Python are noticed so late, while others wait for memory."""


class HeldMemory:
    """One per exchange. All methods run on the loop's thread."""

    def __init__(
        self, exchange: "Exchange", memory: RequestMemory, return_memory: Callable[[], None]
    ) -> None:
        """`return_memory`: gives what is free back to the system."""
        self.memory = memory
        self._exchange = exchange
        self._peers: dict[ClientPeer, None] = {}
        """All, as of the last sweep, but those that have ended since."""
        self._holders: dict[ClientPeer, None] = {}
        """Connections with something that is counted and that no task works on."""
        self._served: dict[ClientPeer, None] = {}
        """Connections of large requests, whose buffers may be returned."""
        self._is_action_due = False
        self._recounted_s = 0.0
        self._return_memory = return_memory
        self._returned_s = exchange.now_s
        self._granted_count = 0
        """As of the last sweep."""
        self._is_hopeless = False
        """Closing all that may be closed would not be enough, as of the last sweep or since."""

    # -- input and answers -----------------------------------------------------------------

    def account_input(self, peer: "ClientPeer") -> None:
        """Count what was received and not served; with much of it, and no memory, it waits."""
        memory, account = self.memory, peer.account
        self._count_input(peer)
        size = account.input_bytes
        if not size or peer.is_muted or not peer.is_open:
            return
        if memory.is_within(account, size):
            return
        self._recount()
        if memory.is_within(account, size):
            return
        step = max(INPUT_STEP_BYTES, min(size, 2 * INPUT_STEP_BYTES))
        self._wait(peer, step, partial(self._read_on, peer, step))

    def _count_input(self, peer: "ClientPeer") -> None:
        core = peer.core
        is_counted = core.unread_bytes >= COUNTED_BYTES_MIN
        self.memory.set_input(peer.account, core.resident_bytes if is_counted else 0)
        self._note_holder(peer)

    def _read_on(self, peer: "ClientPeer", step_bytes: int) -> None:
        # Counted as if it were there: not all that wait may go on because of the same free bytes.
        self.memory.set_input(peer.account, peer.account.input_bytes + step_bytes)
        self._note_holder(peer)

    def account_answers(self, peer: "ClientPeer", size_bytes: int) -> None:
        """Count what the client has not taken, and what waits for an earlier answer."""
        account = peer.account
        before, now = account.answer_bytes, size_bytes if size_bytes >= COUNTED_BYTES_MIN else 0
        if now != before:
            self.memory.set_answers(account, now)
            self._note_holder(peer)
            if now < before or self.memory.excess_bytes > 0:
                self._act_soon()

    def _note_holder(self, peer: "ClientPeer") -> None:
        account = peer.account
        if not account.idle_bytes:
            account.since_s = None
        elif account.since_s is None:
            account.since_s = self._exchange.now_s
        if account.idle_bytes or account.idle:
            self._holders[peer] = None
        else:
            self._holders.pop(peer, None)

    # -- requests --------------------------------------------------------------------------

    def charge(
        self,
        peer: "ClientPeer",
        number: int,
        *,
        kept_bytes: int,
        more_bytes: int,
        go_on: Callable[[], None],
        had_turn: bool = False,
    ) -> None:
        """Charge request `number` for its own bytes, and for what it takes beyond them: now, or
        when there is room for that. Then `go_on`.
        """
        if not peer.is_open:
            return  # no client waits for the answer
        memory, account = self.memory, peer.account
        more_bytes = min(more_bytes, memory.bytes_max(account, kept_bytes))
        # In its place: what it was charged so far, and the bytes of it that count as input.
        if account.input_bytes:
            self._count_input(peer)
        memory.set_request(account, number, kept_bytes)
        if kept_bytes >= COUNTED_BYTES_MIN:
            self._trim_soon(peer)
        if not memory.may_have(account, more_bytes, had_turn=had_turn):
            self._recount()
            if not memory.may_have(account, more_bytes, had_turn=had_turn):
                idle = Idle(self._exchange.now_s, waits_for_memory=True)
                memory.set_idle(account, number, idle)
                self._note_holder(peer)
                resume = partial(self._serve, peer, number, kept_bytes + more_bytes, go_on)
                self._wait(peer, more_bytes, resume, had_turn=had_turn)
                return
        self._serve(peer, number, kept_bytes + more_bytes, go_on)

    def _serve(
        self, peer: "ClientPeer", number: int, size_bytes: int, go_on: Callable[[], None]
    ) -> None:
        account = peer.account
        account.idle.pop(number, None)
        self.memory.set_request(account, number, size_bytes)
        go_on()
        if number not in account.working and number not in account.idle:
            # It waits for something, if it is not answered.
            self.memory.set_idle(account, number, Idle(self._exchange.now_s))
            self._note_holder(peer)

    def park(
        self, peer: "ClientPeer", number: int, size_bytes: int, drop: Callable[[], None]
    ) -> None:
        """Request `number` waits for something, and takes so much as long as it does; `drop` lets
        go of it when the connection ends.
        """
        if not peer.is_open:
            drop()
            return
        self.memory.set_request(peer.account, number, size_bytes)
        self.memory.set_idle(peer.account, number, Idle(self._exchange.now_s, drop))
        self._note_holder(peer)
        self._act_soon()

    def hold(self, peer: "ClientPeer", number: int) -> None:
        """A task works on request `number`: it is in memory until `let_go`, whatever becomes of the
        connection. It nests.
        """
        working = peer.account.working
        working[number] = working.get(number, 0) + 1
        peer.account.idle.pop(number, None)

    def let_go(self, peer: "ClientPeer", number: int) -> None:
        """The task has ended; if the request is not answered it waits for something."""
        account = peer.account
        left = account.working[number] - 1
        if left:
            account.working[number] = left
            return
        del account.working[number]
        self._trim_soon(peer)
        if peer.has_ended:
            self.release(peer, number, has_ended=True)
        elif number not in account.idle:
            self.memory.set_idle(account, number, Idle(self._exchange.now_s))
            self._note_holder(peer)

    def release(self, peer: "ClientPeer", number: int, *, has_ended: bool = False) -> None:
        """Request `number` was answered, or its connection has ended."""
        idle = self.memory.release(peer.account, number)
        if has_ended and idle is not None and idle.drop is not None:
            idle.drop()
        if idle is not None:
            self._note_holder(peer)
        self._act_soon()

    def closed(self, peer: "ClientPeer") -> None:
        """Release everything, but for requests that are still being worked on."""
        self._holders.pop(peer, None)
        self._peers.pop(peer, None)
        for _ in peer.account.waiters:
            peer.forget_mute()  # what it waited for does not come
        for idle in self.memory.close(peer.account):
            if idle.drop is not None:
                idle.drop()
        self._act_soon()

    def _trim_soon(self, peer: "ClientPeer") -> None:
        """The buffer that a request came in is returned when there is no view of it: not yet."""
        if not self._served:
            self._exchange.run_at_end(self._trim)
        self._served[peer] = None

    def _trim(self) -> None:
        served, self._served = self._served, {}
        for peer in served:
            peer.core.trim()

    # -- waiting ---------------------------------------------------------------------------

    def _wait(
        self,
        peer: "ClientPeer",
        size_bytes: int,
        go_on: Callable[[], None],
        *,
        had_turn: bool = False,
    ) -> None:
        """Let it wait, muted, for so many bytes."""
        peer.mute()

        def resume() -> None:
            try:
                go_on()
            except Exception as error:  # noqa: BLE001 - one connection must not stop others
                self._exchange.abort_failed(peer, error)
            peer.unmute()

        now_s = self._exchange.now_s
        self.memory.wait(peer.account, size_bytes, now_s, resume, had_turn=had_turn)
        self._act_soon()

    def after_iteration(self) -> None:
        """Look, while others wait, for input that was served meanwhile."""
        if self.memory.waiting_count:
            self._recount()

    def _recount(self) -> None:
        now_s = self._exchange.now_s
        if now_s - self._recounted_s < RECOUNT_INTERVAL_S:
            return
        self._recounted_s = now_s
        for peer in list(self._holders):
            if peer.account.input_bytes:
                self._count_input(peer)
        self._act_soon()

    def _act_soon(self) -> None:
        """Not now: the caller is in the middle of serving a connection."""
        if not self._is_action_due and (self.memory.waiting_count or self.memory.excess_bytes > 0):
            self._is_action_due = True
            self._exchange.run_at_end(self._act)

    def _act(self) -> None:
        self._is_action_due = False
        self._close_excess()
        for _ in range(GRANTS_MAX):
            granted = self.memory.take_granted()
            if granted is None:
                return
            self._exchange.run_in_turn(granted.resume)
            if not self._exchange.has_time:
                break
        self._act_soon()

    # -- closing ---------------------------------------------------------------------------

    def sweep(self, peers: Iterable["ClientPeer"]) -> None:
        """Once a second: count what is small, close who waited too long, and who is in the way."""
        memory, now_s = self.memory, self._exchange.note_time()
        self._peers = dict.fromkeys(peers)
        for peer in self._peers:
            peer.core.trim()  # there may have been a view of its buffer when that was tried last
            memory.set_small(peer.account, _small_bytes(peer))
            _note_in_flight(peer, now_s)
        self._close_those_that_left()
        self._recount()
        self._is_hopeless = False
        self._close_overdue()
        self._close_excess()
        if memory.granted_count == self._granted_count:  # none of them gets on
            self._close_for_next()
        self._granted_count = memory.granted_count
        self._return_released()
        self._act_soon()

    def _return_released(self) -> None:
        now_s = self._exchange.now_s
        if now_s - self._returned_s < RETURN_INTERVAL_S:
            return
        if self.memory.take_released_bytes(self.memory.budget_bytes // RELEASED_SHARE):
            self._returned_s = now_s
            self._return_memory()

    def _close_those_that_left(self) -> None:
        """What waits for clients that are gone, and are not read from, is of no use."""
        for peer in list(self._holders):
            if peer.is_blocked and peer.has_left():
                peer.abort("closed by the client", Cause.CLIENT)

    def _close_overdue(self) -> None:
        overdue = set(map(id, self.memory.overdue(self._exchange.now_s)))
        if overdue:
            for peer in list(self._peers):
                if id(peer.account) in overdue:
                    peer.abort("its request waited too long for memory", Cause.MEMORY)

    def _close_excess(self) -> None:
        excess = self.memory.excess_bytes
        if excess > 0 and not self._is_hopeless:
            self._is_hopeless = not self._close(excess)

    def _close_for_next(self) -> None:
        """Make room for the one whose turn it is."""
        first = self.memory.next_waiting()
        if first is None:
            return
        account, size = first.account, first.size_bytes
        missing = self.memory.missing_bytes(account, size)
        if missing > 0:
            self._close(missing, account, 0 if account.is_broker else size)

    def _close(
        self, need_bytes: int, next_one: Account | None = None, claim_bytes: int = 0
    ) -> bool:
        """Whether it could be done."""
        # Local import: most brokers never need it, and a start loads little.
        from millstream.broker.net.burden import to_close

        chosen = to_close(
            {**self._peers, **self._holders},
            need_bytes,
            self._exchange.now_s,
            next_one=next_one,
            claim_bytes=claim_bytes,
        )
        for peer in chosen:
            peer.abort("it holds memory that other requests need", Cause.MEMORY)
        return bool(chosen)


def _small_bytes(peer: "ClientPeer") -> int:
    """What is not counted one by one."""
    core, account = peer.core, peer.account
    in_flight = core.in_flight - len(account.charges)
    size = CONNECTION_BYTES + in_flight * IN_FLIGHT_REQUEST_BYTES
    unread = core.unread_bytes
    if unread and not account.input_bytes:
        size += max(unread, BUFFER_BYTES)
    if not account.answer_bytes:
        size += core.output_bytes + core.late_bytes
    return size


def _note_in_flight(peer: "ClientPeer", now_s: float) -> None:
    account = peer.account
    if account.small_bytes <= CONNECTION_BYTES:
        account.small_since_s = None
    elif account.small_since_s is None:
        account.small_since_s = now_s
