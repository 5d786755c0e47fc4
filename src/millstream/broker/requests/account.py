"""What one connection takes of the memory for requests; changed by `RequestMemory` only."""

from collections.abc import Callable
from typing import NamedTuple


class Idle(NamedTuple):
    """A request on which no task works: it waits for memory, for records, for followers."""

    since_s: float
    drop: Callable[[], None] | None = None
    """Called when its connection ends: lets go of what is kept for it elsewhere."""
    waits_for_memory: bool = False


class Account:
    """The charges of one connection."""

    __slots__ = (
        "address",
        "answer_bytes",
        "charges",
        "idle",
        "input_bytes",
        "is_broker",
        "request_bytes",
        "since_s",
        "small_bytes",
        "small_since_s",
        "waiters",
        "working",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_broker = False
        """Proven to be another broker's."""
        self.input_bytes = 0
        """Received, and not served yet."""
        self.request_bytes = 0
        """The bytes and the decoded form of requests that are not answered: sum of `charges`."""
        self.answer_bytes = 0
        """Not taken by the client, or waiting for an earlier answer."""
        self.small_bytes = 0
        """What is too small to be counted one by one, as of the last sweep."""
        self.since_s: float | None = None
        """Since when it has had input or answers that count."""
        self.small_since_s: float | None = None
        """Since when it has had small requests in flight."""
        self.charges: dict[int, int] = {}
        """Of large requests that are not answered, by their number."""
        self.idle: dict[int, Idle] = {}
        """Those of them on which no task works."""
        self.working: dict[int, int] = {}
        """How many tasks work on a request: it is in memory until they end."""
        self.waiters: list[Waiter] = []

    @property
    def idle_bytes(self) -> int:
        """What only the client can free: by sending the rest, or taking its answers."""
        return self.input_bytes + self.answer_bytes


class Waiter:
    """One request, or the rest of one, that waits for memory."""

    __slots__ = ("account", "queue", "resume", "since_s", "size_bytes")

    def __init__(
        self,
        account: Account,
        queue: str,
        size_bytes: int,
        since_s: float,
        resume: Callable[[], None],
    ) -> None:
        self.account = account
        self.queue = queue
        self.size_bytes = size_bytes
        self.since_s = since_s
        self.resume = resume
