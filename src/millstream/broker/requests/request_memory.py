"""What requests cost a broker in memory: one budget, and the queue for parts of it.

The bytes of a connection are counted by what they are used for: input that was received and not
served, requests that are not answered, answers that were not taken, and what is too small to be
counted one by one. What clients leave behind (fetch sessions, members of groups) is counted in
bulk.

A request that takes more than is free waits with its own bytes charged, in the order of arrival,
with one turn for each address; a connection that has sent a part of a large request waits before
the rest is read. Clients may use three quarters of the budget, and seven eighths for what is small.
The rest is for the connections of other brokers, and for what was allocated before it could be
counted. All of this is a plain machine: the caller has the clock, and acts on what it returns.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from millstream.broker.requests.account import Account, Idle, Waiter
from millstream.model.invariant import invariant
from millstream.model.limits import KIB, MIB, REQUEST_ITEMS_MAX, REQUEST_MEMORY_WAIT_S
from millstream.wire.api_keys import ApiKey

COUNTED_BYTES_MIN: Final = 64 * KIB
"""Less input, or fewer bytes of answers, of a connection are only counted in bulk."""

REQUEST_BYTES_MIN: Final = 4 * KIB
"""Smaller requests are only counted in bulk: most are a few hundred bytes."""

SMALL_BYTES_MAX: Final = MIB
"""Requests that take no more pass those that wait for more, and have an eighth of the budget to
themselves: who pins memory with large requests does not stop ordinary producers."""

INPUT_STEP_BYTES: Final = MIB
"""What must be free for the rest of a request that waits to be read."""

ITEM_BYTES: Final = 800
"""What an item of a large request takes at the most until it is answered: decoded, its part of the
answer, and the bytes of that."""

ITEM_BYTES_PER_BYTE: Final = 80
"""The same for each byte of the request: the smallest items are a few bytes."""

ITEMS_GROWTH: Final = 8
"""A request with more items than it was charged for is charged for so many times as many."""

_DECODED_BYTES_PER_BYTE: Final = 8
_DECODED_BYTES_MAX: Final = 256 * KIB
"""Of a request of at most a thousand items."""
_FETCH_BYTES_PER_BYTE: Final = 24
"""A partition of a Fetch is 26 bytes, and a cursor, a position and a result while it is read."""

_BROKERS: Final = ""
"""The queue of proven brokers, in place of an address."""
_HAD_TURN: Final = " "
"""The queue of requests that had their turn and turned out to take more."""


def cost_of(api_key: int, size_bytes: int) -> int:
    """What a request of so many bytes takes beyond these, if it has few items."""
    if api_key == ApiKey.FETCH:
        return size_bytes * _FETCH_BYTES_PER_BYTE
    if api_key == ApiKey.PRODUCE:
        return 0
    return min(size_bytes * _DECODED_BYTES_PER_BYTE, _DECODED_BYTES_MAX)


def cost_of_items(size_bytes: int, items_max: int = REQUEST_ITEMS_MAX) -> int:
    """What it takes beyond its bytes if it may have so many items."""
    return min(size_bytes * ITEM_BYTES_PER_BYTE, items_max * ITEM_BYTES)


def next_items_max(size_bytes: int, items_max: int, bytes_max: int) -> int:
    """How many items to allow a request that has more than `items_max`; 0: no more than those.

    `bytes_max`: what may be charged for it.
    """
    wanted = items_max * ITEMS_GROWTH
    if wanted * ITEM_BYTES >= size_bytes * ITEM_BYTES_PER_BYTE:
        wanted = REQUEST_ITEMS_MAX  # its bytes limit what it takes
    if cost_of_items(size_bytes, wanted) > bytes_max:
        wanted = bytes_max // ITEM_BYTES
    wanted = min(wanted, REQUEST_ITEMS_MAX)
    return wanted if wanted > items_max else 0


def _none() -> int:
    return 0


class RequestMemory:
    """One per broker."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._charged = 0
        self._charged_max = 0
        """Since `take_released_bytes` last returned something."""
        self._lasting: Callable[[], int] = _none
        self._decompressed: Callable[[], int] = _none
        self._queues: dict[str, deque[Waiter]] = {}
        """Those that wait, by address; the address whose turn it is comes first."""
        self.waiting_count = 0
        self.granted_count = 0
        """Since the start."""

    # -- sizes -----------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        # What others count has limits of its own. With a small budget it must not take all of it:
        # requests would wait for what does not end with them.
        quarter = self.budget_bytes // 4
        lasting = min(self._lasting(), quarter)
        return self._charged + lasting + min(self._decompressed(), quarter)

    @property
    def excess_bytes(self) -> int:
        """Beyond the whole budget: then connections are closed."""
        return self.used_bytes - self.budget_bytes

    def limit_of(self, account: Account, size_bytes: int) -> int:
        """How much may be used, by all together, when this one wants so much more."""
        budget = self.budget_bytes
        if account.is_broker:
            return budget
        return budget - budget // (8 if size_bytes <= SMALL_BYTES_MAX else 4)

    def has_room(self, account: Account, size_bytes: int) -> bool:
        return self.missing_bytes(account, size_bytes) <= 0

    def missing_bytes(self, account: Account, size_bytes: int) -> int:
        """What must be released before this one can have so much."""
        return self.used_bytes + size_bytes - self.limit_of(account, size_bytes)

    def is_within(self, account: Account, size_bytes: int) -> bool:
        """Whether it may have so much, which is counted already."""
        return self.used_bytes <= self.limit_of(account, size_bytes)

    def bytes_max(self, account: Account, kept_bytes: int) -> int:
        """What one request may be charged beyond its own bytes, whatever is estimated.

        Three quarters of what there is: so it is served when no other is being served, although
        some hold a part that they do not release.
        """
        limit = self.limit_of(account, SMALL_BYTES_MAX + 1)
        return max(0, min(limit - limit // 4, limit - kept_bytes))

    # -- charges ---------------------------------------------------------------------------

    def _add(self, size_bytes: int) -> None:
        self._charged += size_bytes
        self._charged_max = max(self._charged_max, self._charged)
        invariant(self._charged >= 0, "I-37 memory was released twice", charged_bytes=self._charged)

    def set_input(self, account: Account, size_bytes: int) -> None:
        """What the connection has received and was not served."""
        self._add(size_bytes - account.input_bytes)
        account.input_bytes = size_bytes

    def set_answers(self, account: Account, size_bytes: int) -> None:
        """What it has not taken."""
        self._add(size_bytes - account.answer_bytes)
        account.answer_bytes = size_bytes

    def set_small(self, account: Account, size_bytes: int) -> None:
        """What of it is too small to be counted one by one."""
        self._add(size_bytes - account.small_bytes)
        account.small_bytes = size_bytes

    def set_request(self, account: Account, number: int, size_bytes: int) -> None:
        """What a request takes that is not answered."""
        change = size_bytes - account.charges.get(number, 0)
        account.charges[number] = size_bytes
        account.request_bytes += change
        self._add(change)

    def set_idle(self, account: Account, number: int, idle: Idle) -> None:
        """No task works on a request that is charged."""
        if number in account.charges:
            account.idle[number] = idle

    def release(self, account: Account, number: int) -> Idle | None:
        """A request takes nothing any more; returns why it waited, if it did."""
        size = account.charges.pop(number, 0)
        account.request_bytes -= size
        self._add(-size)
        return account.idle.pop(number, None)

    def include(
        self,
        *,
        lasting: Callable[[], int] | None = None,
        decompressed: Callable[[], int] | None = None,
    ) -> None:
        """What other parts of the broker count: what clients leave behind, and batches that are
        being checked.
        """
        self._lasting = lasting or self._lasting
        self._decompressed = decompressed or self._decompressed

    def close(self, account: Account) -> list[Idle]:
        """The connection has ended: all is released but requests on which tasks work. Returns what
        its other requests waited for.
        """
        self.stop_waiting(account)
        self.set_input(account, 0)
        self.set_answers(account, 0)
        self.set_small(account, 0)
        ended = [one for one in account.charges if one not in account.working]
        idle = [self.release(account, number) for number in ended]
        return [one for one in idle if one is not None]

    def take_released_bytes(self, at_least: int) -> int:
        """How far the charges are below their highest, if so much; each release counts once."""
        released = self._charged_max - self._charged
        if released < at_least:
            return 0
        self._charged_max = self._charged
        return released

    # -- waiting ---------------------------------------------------------------------------

    def may_have(self, account: Account, size_bytes: int, *, had_turn: bool = False) -> bool:
        """Whether a request is served at once that takes so much more."""
        is_early = self.waiting_count and (not had_turn or _HAD_TURN in self._queues)
        if is_early and size_bytes > SMALL_BYTES_MAX and not account.is_broker:
            return False  # those that came before have theirs first
        return self.has_room(account, size_bytes)

    def wait(
        self,
        account: Account,
        size_bytes: int,
        now_s: float,
        resume: Callable[[], None],
        *,
        had_turn: bool = False,
    ) -> None:
        """Let it wait until there is room; `resume` is for the caller, see `take_granted`."""
        queue = _HAD_TURN if had_turn else account.address
        waiter = Waiter(
            account, _BROKERS if account.is_broker else queue, size_bytes, now_s, resume
        )
        account.waiters.append(waiter)
        self._queues.setdefault(waiter.queue, deque()).append(waiter)
        self.waiting_count += 1

    def stop_waiting(self, account: Account) -> None:
        for waiter in list(account.waiters):
            self._remove(waiter)

    def _remove(self, waiter: Waiter) -> None:
        waiter.account.waiters.remove(waiter)
        queue = self._queues[waiter.queue]
        queue.remove(waiter)
        self.waiting_count -= 1
        if not queue:
            del self._queues[waiter.queue]

    def next_waiting(self) -> Waiter | None:
        """Whose turn it is. A broker's connection does not wait behind clients, and a request that
        had its turn waits behind no other client.
        """
        queues = self._queues
        if not queues:
            return None
        return (queues.get(_BROKERS) or queues.get(_HAD_TURN) or next(iter(queues.values())))[0]

    def take_granted(self) -> Waiter | None:
        """The next one, if there is room for it; it waits no longer, and nothing is charged yet.

        Others that are smaller do not overtake it: it would wait forever.
        """
        chosen = self.next_waiting()
        if chosen is None or not self.has_room(chosen.account, chosen.size_bytes):
            return None
        self._remove(chosen)
        self.granted_count += 1
        queue = self._queues.pop(chosen.queue, None)
        if queue is not None:
            self._queues[chosen.queue] = queue  # the other addresses first
        return chosen

    def overdue(self, now_s: float) -> list[Account]:
        """Clients that have waited too long."""
        return [
            one.account
            for queue in self._queues.values()
            for one in queue
            if now_s - one.since_s >= REQUEST_MEMORY_WAIT_S and not one.account.is_broker
        ]
