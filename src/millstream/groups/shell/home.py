"""What the shell needs from outside, and what all shards of a broker share."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream.groups.effects import Outbox, Reply, Write
from millstream.model.errors import OperatingError
from millstream.observe.logs import get_logger
from millstream.runtime.clock import Clock
from millstream.runtime.scheduler import Turns

if TYPE_CHECKING:
    from millstream.groups.shard import Shard

log = get_logger("millstream.groups")


class Asker(Protocol):
    """Who waits for an answer: the token of an `effects.Caller`."""

    def answered(self, response: Any) -> None:
        """Called once: a response message, or the OperatingError that its code is made of."""


class Timers(Protocol):
    """The event loop's."""

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
        """Returns a handle with `cancel()`."""


class ShellSettings(Protocol):
    """Read live, by Kafka's names."""

    @property
    def offsets_commit_timeout_ms(self) -> int:
        """`offsets.commit.timeout.ms`"""

    @property
    def offsets_load_bytes(self) -> int:
        """`offsets.load.buffer.size`"""

    @property
    def append_linger_ms(self) -> int:
        """`group.coordinator.append.linger.ms`: -1 waits for what arrives in the same turn."""

    @property
    def offsets_retention_check_interval_ms(self) -> int:
        """`offsets.retention.check.interval.ms`"""


class Moment(NamedTuple):
    """The time as machines are told it."""

    now_ms: int
    """Monotonic."""
    wall_ms: int
    """Of the day."""


@dataclass(slots=True)
class ShellCounts:
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
class ShellSeams:
    """Borrowed from the broker."""

    clock: Clock
    timers: Timers
    turns: Turns
    settings: ShellSettings
    new_shard: "Callable[[int, Outbox], Shard]"
    is_gatherable: Callable[[Write], bool]
    """Whether a write may wait for others of its kind."""
    at_turn_end: Callable[[Callable[[], None]], object]
    """Calls back once, when all requests that arrived together have been asked."""


class Home:
    """Shared by the shards: the time, and the answers that are ready.

    Answers leave when no machine is at work: whoever gets one may send the next request at once,
    and a machine must not be called before its effects were taken.
    """

    def __init__(self, seams: ShellSeams) -> None:
        self.seams = seams
        self.settings = seams.settings
        self.counts = ShellCounts()
        self._ready: deque[Reply] = deque()
        self._is_delivering = False

    def moment(self) -> Moment:
        clock = self.seams.clock
        return Moment(int(clock.monotonic_s() * 1000), clock.wall_ms())

    def answer(self, reply: Reply) -> None:
        """Leaves with the next `deliver`."""
        self._ready.append(reply)

    def refuse(self, token: object, error: OperatingError) -> None:
        self._ready.append(Reply(token, error))

    def deliver(self) -> None:
        """Send what is ready."""
        if self._is_delivering or not self._ready:
            return  # whoever is at it goes on until nothing is left
        self._is_delivering = True
        try:
            while self._ready:
                token, response = self._ready.popleft()
                asker: Any = token
                try:
                    asker.answered(response)
                except Exception as error:  # noqa: BLE001 - the others must be told all the same
                    log.error("an answer of a group could not be sent", error=error)
        finally:
            self._is_delivering = False
