"""What requests cost a broker in memory: one budget, and the queue for parts of it.

The bytes of a connection are counted by what they are used for: input that was received and not
served, requests that are being served, answers that were not taken. What clients leave behind
(fetch sessions, members of groups), and what is too small to be counted one by one, is counted in
bulk.

A request that is larger than what is free waits, in the order of arrival, with one turn for each
address; a connection that has sent a part of a large request waits before the rest is read. Clients
may use three quarters of the budget, and seven eighths for what is small. The rest is for the
connections of other brokers, and for what was allocated before it could be counted. All of this is
a plain machine: the caller has the clock, and acts on what it returns.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

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

_DECODED_BYTES_PER_BYTE: Final = 8
_DECODED_BYTES_MAX: Final = 256 * KIB
"""Of a request of at most a thousand items."""
_FETCH_BYTES_PER_BYTE: Final = 24
"""A partition of a Fetch is 26 bytes, and a cursor, a position and a result while it waits."""

_BROKERS: Final = ""
"""The queue of proven brokers, in place of an address."""


class Account:
    """The charges of one connection."""

    __slots__ = (
        "address",
        "answer_bytes",
        "input_bytes",
        "is_broker",
        "request_bytes",
        "since_s",
        "waiter",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_broker = False
        """Proven to be another broker's."""
        self.input_bytes = 0
        """Received, and not served yet."""
        self.request_bytes = 0
        """The bytes and the decoded form of requests that are being served."""
        self.answer_bytes = 0
        """Not taken by the client."""
        self.since_s = 0.0
        """Since when it has had input or answers that count."""
        self.waiter: Waiter | None = None

    @property
    def idle_bytes(self) -> int:
        """What only the client can free: by sending the rest, or taking its answers."""
        return self.input_bytes + self.answer_bytes


class Waiter:
    """One request, or the rest of one, that waits for memory."""

    __slots__ = ("account", "queue", "resume", "since_s", "size_bytes")

    def __init__(
        self, account: Account, size_bytes: int, since_s: float, resume: Callable[[], None]
    ) -> None:
        self.account = account
        self.queue = _BROKERS if account.is_broker else account.address
        self.size_bytes = size_bytes
        self.since_s = since_s
        self.resume = resume


def cost_of(api_key: int, size_bytes: int) -> int:
    """What a request of so many bytes takes, if it has few items."""
    if api_key == ApiKey.FETCH:
        return size_bytes * (1 + _FETCH_BYTES_PER_BYTE)
    if api_key == ApiKey.PRODUCE:
        return size_bytes
    return size_bytes + min(size_bytes * _DECODED_BYTES_PER_BYTE, _DECODED_BYTES_MAX)


def cost_of_items(size_bytes: int) -> int:
    """What more it takes if it has many."""
    return min(size_bytes * ITEM_BYTES_PER_BYTE, REQUEST_ITEMS_MAX * ITEM_BYTES)


def _none() -> int:
    return 0


class RequestMemory:
    """One per broker."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._charged = 0
        self._small_bytes = 0
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
        return self._charged + self._small_bytes + lasting + min(self._decompressed(), quarter)

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
        return self.used_bytes + size_bytes <= self.limit_of(account, size_bytes)

    def is_within(self, account: Account, size_bytes: int) -> bool:
        """Whether it may have so much, which is counted already."""
        return self.used_bytes <= self.limit_of(account, size_bytes)

    # -- charges ---------------------------------------------------------------------------

    def set_input(self, account: Account, size_bytes: int) -> None:
        """What the connection has received and was not served."""
        self._charged += size_bytes - account.input_bytes
        account.input_bytes = size_bytes
        self._charged_max = max(self._charged_max, self._charged)

    def set_answers(self, account: Account, size_bytes: int) -> None:
        """What it has not taken."""
        self._charged += size_bytes - account.answer_bytes
        account.answer_bytes = size_bytes
        self._charged_max = max(self._charged_max, self._charged)

    def add_request(self, account: Account, size_bytes: int) -> None:
        """A request is being served; with a negative size, it no longer is."""
        self._charged += size_bytes
        account.request_bytes += size_bytes
        self._charged_max = max(self._charged_max, self._charged)
        invariant(
            account.request_bytes >= 0 <= self._charged,
            "I-37 memory of a request was released twice",
            of_connection=account.request_bytes,
            of_all=self._charged,
        )

    def set_small(self, size_bytes: int) -> None:
        """What is too small to be counted one by one, of all connections."""
        self._small_bytes = size_bytes

    def add_small(self, size_bytes: int) -> None:
        self._small_bytes += size_bytes

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

    def close(self, account: Account, *, is_served: bool) -> None:
        """The connection has ended; `is_served`: a request of it is still being worked on."""
        self.stop_waiting(account)
        self.set_input(account, 0)
        self.set_answers(account, 0)
        if not is_served:
            self.add_request(account, -account.request_bytes)

    def take_released_bytes(self, at_least: int) -> int:
        """How far the charges are below their highest, if so much; each release counts once."""
        released = self._charged_max - self._charged
        if released < at_least:
            return 0
        self._charged_max = self._charged
        return released

    # -- waiting ---------------------------------------------------------------------------

    def try_take(self, account: Account, size_bytes: int) -> bool:
        """Charge a request that is about to be served, unless it has to wait."""
        if self.waiting_count and size_bytes > SMALL_BYTES_MAX and not account.is_broker:
            return False  # those that came before
        if not self.has_room(account, size_bytes):
            return False
        self.add_request(account, size_bytes)
        return True

    def wait(
        self, account: Account, size_bytes: int, now_s: float, resume: Callable[[], None]
    ) -> None:
        """Let it wait until there is room; `resume` is for the caller, see `take_granted`."""
        invariant(account.waiter is None, "I-37 a connection waits twice for memory")
        account.waiter = Waiter(account, size_bytes, now_s, resume)
        self._queues.setdefault(account.waiter.queue, deque()).append(account.waiter)
        self.waiting_count += 1

    def stop_waiting(self, account: Account) -> None:
        waiter, account.waiter = account.waiter, None
        if waiter is None:
            return
        queue = self._queues[waiter.queue]
        queue.remove(waiter)
        self.waiting_count -= 1
        if not queue:
            del self._queues[waiter.queue]

    def next_waiting(self) -> Waiter | None:
        """Whose turn it is. A broker's connection does not wait behind clients."""
        queues = self._queues
        if not queues:
            return None
        return (queues.get(_BROKERS) or next(iter(queues.values())))[0]

    def take_granted(self) -> Waiter | None:
        """The next one, if there is room for it; it waits no longer, and nothing is charged yet.

        Others that are smaller do not overtake it: it would wait forever.
        """
        chosen = self.next_waiting()
        if chosen is None or not self.has_room(chosen.account, chosen.size_bytes):
            return None
        self.stop_waiting(chosen.account)
        self.granted_count += 1
        queue = self._queues.pop(chosen.queue, None)
        if queue is not None:
            self._queues[chosen.queue] = queue  # the other addresses first
        return chosen

    def overdue(self, now_s: float) -> list[Account]:
        """Those that have waited too long."""
        return [
            one.account
            for queue in self._queues.values()
            for one in queue
            if now_s - one.since_s >= REQUEST_MEMORY_WAIT_S
        ]
