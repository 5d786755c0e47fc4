"""The dependencies of the shell, and what all shards of a broker share."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

from millstream.model.errors import OperatingError
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.clock import Clock
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.scheduler import CooperativeScheduler
from millstream.runtime.timers import Timers
from millstream.shards.effects import Outbox, Producer, Reply, Write
from millstream.shards.machine import Machine

log = get_logger("millstream.shards")


class ResponseSink(Protocol):
    """Where a response goes: the token of an `effects.Caller`."""

    def respond(self, response: Any) -> None:
        """Called once, with a response message or an OperatingError, which gives the error code."""


class Encode(Protocol):
    """Makes one record batch of entries; ValueError if they cannot be encoded."""

    def __call__(
        self, entries: Sequence[Any], *, now_ms: int, producer: Producer | None = None
    ) -> bytearray: ...


class ShardSettings(Protocol):
    """Read live."""

    @property
    def commit_timeout_ms(self) -> int:
        """How long a write may take to be committed before its callers get a retriable error."""

    @property
    def load_bytes_max(self) -> int:
        """Read at once while a shard is loaded."""

    @property
    def append_linger_ms(self) -> int:
        """How long writes are gathered: 0 not at all, -1 for one iteration of the event loop."""

    @property
    def expire_interval_ms(self) -> int:
        """Between two sweeps that remove what has expired."""


class Timestamps(NamedTuple):
    """The time passed to machines."""

    now_ms: int
    """Monotonic."""
    wall_ms: int
    """Time of day."""


@dataclass(slots=True)
class ShardCounts:
    """For the metrics."""

    loads: int = 0
    load_failures: int = 0
    load_ms_last: int = 0
    records_loaded: int = 0
    batches: int = 0
    writes: int = 0
    writes_refused: int = 0
    writes_timed_out: int = 0
    records_skipped: int = 0


@dataclass(slots=True, kw_only=True)
class ShardDependencies(Generic[Machine]):
    """Borrowed from the broker, and from the coordinator whose shards these are."""

    name: str
    """What the shards contain, for log messages: `groups`."""
    clock: Clock
    timers: Timers
    scheduler: CooperativeScheduler
    settings: ShardSettings
    new_shard: Callable[[int, Outbox], Machine]
    encode: Encode
    is_gatherable: Callable[[Write], bool]
    """Whether a write may wait for others of its kind."""
    at_iteration_end: Callable[[Callable[[], None]], object]
    """Calls back once, when all requests that arrived together have been handled."""
    on_active: Callable[[int], None] = lambda _: None
    """Called with the index of a partition whose shard has become active."""
    on_dropped: Callable[[Machine], None] = lambda _: None
    """Called with an active shard that is not led here any more."""


class ShardContext(Generic[Machine]):
    """Shared by the shards: the time, and the responses that are ready.

    Responses are sent while no machine is running: a client that gets one may send the next
    request at once, and a machine must not be called before its effects were taken.
    """

    def __init__(self, dependencies: ShardDependencies[Machine]) -> None:
        self.dependencies = dependencies
        self.settings = dependencies.settings
        self.counts = ShardCounts()
        self.client_log = ClientLog(dependencies.clock)
        self._ready: deque[Reply] = deque()
        self._is_delivering = False

    def timestamps(self) -> Timestamps:
        clock = self.dependencies.clock
        return Timestamps(int(clock.monotonic_s() * 1000), clock.wall_ms())

    def answer(self, reply: Reply) -> None:
        """Sent by the next `deliver`."""
        self._ready.append(reply)

    def refuse(self, token: object, error: OperatingError) -> None:
        self._ready.append(Reply(token, error))

    def deliver(self) -> None:
        """Send the responses that are ready."""
        if self._is_delivering or not self._ready:
            return  # the delivery under way continues until nothing is left
        self._is_delivering = True
        try:
            while self._ready:
                token, response = self._ready.popleft()
                sink: Any = token
                try:
                    sink.respond(response)
                except Exception as error:  # noqa: BLE001 - the others must be answered all the same
                    end_if_fatal(error)
                    message = "a coordinator's response could not be sent"
                    self.client_log.error(log, message, client="", error=error)
        finally:
            self._is_delivering = False
