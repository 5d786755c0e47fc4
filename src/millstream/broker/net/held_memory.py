"""Applies the budget of `RequestMemory` to connections: which wait, and which are closed.

Connections wait muted: neither their buffer nor their socket is read. One that has waited too long
is closed. While some wait and none of them gets on, and where the whole budget is exceeded, those
are closed that have held most for longest: unfinished requests, answers that are not taken. There
is no error code for that: an error would have to name what the request asked for, which was not
decoded for lack of memory, and every client retries after a closed connection.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from millstream.broker.net.cause import Cause
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

GRACE_S: Final = 1.0
"""Added to the time for which memory is held: of those that just came the largest is closed."""

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
        self._holders: dict[ClientPeer, None] = {}
        """Connections whose input or answers are counted."""
        self._is_action_due = False
        self._recounted_s = 0.0
        self._return_memory = return_memory
        self._returned_s = exchange.now_s
        self._granted_count = 0
        """As of the last sweep."""

    # -- charges ---------------------------------------------------------------------------

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
        peer.mute()
        step = max(INPUT_STEP_BYTES, min(size, 2 * INPUT_STEP_BYTES))
        memory.wait(account, step, self._exchange.now_s, lambda: self._read_on(peer))
        self._act_soon()

    def _count_input(self, peer: "ClientPeer") -> None:
        core = peer.core
        is_counted = core.unread_bytes >= COUNTED_BYTES_MIN
        self.memory.set_input(peer.account, core.buffer_bytes if is_counted else 0)
        self._note_holder(peer)

    def _read_on(self, peer: "ClientPeer") -> None:
        # Counted as if it were there: not all that wait may go on because of the same free bytes.
        self.memory.set_input(peer.account, peer.account.input_bytes + INPUT_STEP_BYTES)
        self._note_holder(peer)
        peer.unmute()

    def account_answers(self, peer: "ClientPeer", size_bytes: int) -> None:
        """Count what the client has not taken."""
        account = peer.account
        before, now = account.answer_bytes, size_bytes if size_bytes >= COUNTED_BYTES_MIN else 0
        if now != before:
            self.memory.set_answers(account, now)
            self._note_holder(peer)
            if now < before or self.memory.excess_bytes > 0:
                self._act_soon()

    def _note_holder(self, peer: "ClientPeer") -> None:
        if not peer.account.idle_bytes:
            self._holders.pop(peer, None)
        elif peer not in self._holders:
            self._holders[peer] = None
            peer.account.since_s = self._exchange.now_s

    def charge(self, peer: "ClientPeer", number: int, size_bytes: int) -> bool:
        """Whether request `number` may be served now."""
        memory, account = self.memory, peer.account
        if not memory.try_take(account, size_bytes):
            if account.input_bytes:  # the bytes of this very request
                self._count_input(peer)
            self._recount()
            if not memory.try_take(account, size_bytes):
                return False
        peer.charges[number] = peer.charges.get(number, 0) + size_bytes
        return True

    def charge_later(
        self, peer: "ClientPeer", number: int, size_bytes: int, go_on: Callable[[], None]
    ) -> None:
        """Let it wait for what it was not charged; one that can never have it is closed."""
        memory, account = self.memory, peer.account
        wanted = peer.charges.get(number, 0) + size_bytes
        if wanted > memory.limit_of(account, wanted):
            peer.close("the request takes more memory than there is for requests", Cause.MEMORY)
            return
        peer.mute()

        def resume() -> None:
            memory.add_request(account, size_bytes)
            peer.charges[number] = wanted
            self._serve(peer, go_on)
            peer.unmute()

        memory.wait(account, size_bytes, self._exchange.now_s, resume)
        self._act_soon()

    def release(self, peer: "ClientPeer", number: int) -> None:
        """Request `number` was answered."""
        size = peer.charges.pop(number, 0)
        if size:
            self.memory.add_request(peer.account, -size)
            if self.memory.waiting_count:
                self._act_soon()

    def closed(self, peer: "ClientPeer") -> None:
        """Release everything, but for a request that is still being worked on."""
        self._holders.pop(peer, None)
        if peer.account.waiter is not None:
            peer.forget_mute()  # what it waited for does not come
        self.memory.close(peer.account, is_served=peer.is_muted)
        if not peer.is_muted:
            peer.charges.clear()
        self._act_soon()

    def served_after_end(self, peer: "ClientPeer") -> None:
        """The work on the last request of a closed connection is done."""
        peer.charges.clear()
        self.memory.add_request(peer.account, -peer.account.request_bytes)
        self._act_soon()

    # -- waiting ---------------------------------------------------------------------------

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
            self._count_input(peer)
        self._act_soon()

    def _act_soon(self) -> None:
        """Not now: the caller is in the middle of serving a connection."""
        if not self._is_action_due and (self.memory.waiting_count or self.memory.excess_bytes > 0):
            self._is_action_due = True
            self._exchange.run_at_end(self._act)

    def _act(self) -> None:
        self._is_action_due = False
        self._close_holders(lambda: self.memory.excess_bytes <= 0)
        for _ in range(GRANTS_MAX):
            granted = self.memory.take_granted()
            if granted is None:
                return
            granted.resume()
        self._act_soon()

    def _serve(self, peer: "ClientPeer", go_on: Callable[[], None]) -> None:
        try:
            go_on()
        except Exception as error:  # noqa: BLE001 - one connection's error must not stop others
            self._exchange.abort_failed(peer, error)

    # -- closing ---------------------------------------------------------------------------

    def sweep(self, peers: Iterable["ClientPeer"]) -> None:
        """Once a second: count what is small, close who waited too long, and who is in the way."""
        memory, every = self.memory, list(peers)
        for peer in every:
            peer.core.trim()  # one that sent a large request, and nothing since, has its buffer
        memory.set_small(sum(map(_small_bytes, every)))
        self._recount()
        self._close_overdue(every)
        if memory.granted_count == self._granted_count:  # none of them gets on
            self._close_holders(self._can_go_on)
        self._granted_count = memory.granted_count
        if memory.excess_bytes > 0:
            self._close_small(every)
        self._return_released()
        self._act_soon()

    def _return_released(self) -> None:
        now_s = self._exchange.now_s
        if now_s - self._returned_s < RETURN_INTERVAL_S:
            return
        if self.memory.take_released_bytes(self.memory.budget_bytes // RELEASED_SHARE):
            self._returned_s = now_s
            self._return_memory()

    def _close_overdue(self, peers: list["ClientPeer"]) -> None:
        overdue = set(map(id, self.memory.overdue(self._exchange.now_s)))
        if overdue:
            for peer in peers:
                if id(peer.account) in overdue:
                    peer.abort("its request waited too long for memory", Cause.MEMORY)

    def _can_go_on(self) -> bool:
        first = self.memory.next_waiting()
        return first is None or self.memory.has_room(first.account, first.size_bytes)

    def _close_holders(self, is_enough: Callable[[], bool]) -> None:
        """Those that have held most for longest."""
        if is_enough():
            return
        clients = [one for one in self._holders if not one.account.is_broker]
        for worst in sorted(clients, key=self._burden, reverse=True):
            worst.abort("it holds memory that other requests need", Cause.MEMORY)
            if is_enough():
                return

    def _close_small(self, peers: list["ClientPeer"]) -> None:
        left = [one for one in peers if one.is_open and not one.account.is_broker]
        left.sort(key=_small_bytes)
        while left and self.memory.excess_bytes > 0:
            peer = left.pop()
            self.memory.add_small(-_small_bytes(peer))
            peer.abort("the connections take too much memory", Cause.MEMORY)

    def _burden(self, peer: "ClientPeer") -> float:
        """Bytes held times how long: not the newest client is closed, but those that send large
        requests and do not finish them. A byte now and then does not make them younger.
        """
        account = peer.account
        return account.idle_bytes * (self._exchange.now_s - account.since_s + GRACE_S)


def _small_bytes(peer: "ClientPeer") -> int:
    """What is not counted one by one."""
    core, account = peer.core, peer.account
    size = CONNECTION_BYTES + core.in_flight * IN_FLIGHT_REQUEST_BYTES
    unread = core.unread_bytes
    if unread and not account.input_bytes:
        size += max(unread, BUFFER_BYTES)
    if not account.answer_bytes:
        size += core.output_bytes
    return size
