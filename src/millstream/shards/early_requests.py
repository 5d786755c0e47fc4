"""Requests that come before the shard of their partition serves.

A client comes as soon as it knows the coordinator. In a fresh cluster that is before the partition
is loaded here, or before this broker has heard of the topic. Refused, clients pause before they
try again, librdkafka for three seconds; a request that waits is served milliseconds later.
"""

from collections.abc import Callable
from typing import Any, Final

from millstream.model.errors import OperatingError
from millstream.observe.logs import get_logger
from millstream.runtime.timers import Timers
from millstream.shards.context import ResponseSink
from millstream.shards.effects import Caller

log = get_logger("millstream.shards")

WAIT_S: Final = 1.0
"""Then the client is refused: a long load must not look like a broker that does not answer."""
WAITING_MAX: Final = 1_000
"""They are submitted in turn when a partition is loaded, about 30 ms for all of them."""

TOPIC_UNKNOWN: Final = -1
"""Instead of a partition: the topic may be there, and this broker does not know it yet."""

Awaited = Callable[[str], int | None]
"""The partition that requests for a key can wait for, TOPIC_UNKNOWN, or None: it is not coming."""


class _Early:
    """One request."""

    __slots__ = ("error", "key", "sink", "submit", "timer")

    def __init__(self, key: str, submit: Callable[[], None], sink: ResponseSink) -> None:
        self.key = key
        self.submit = submit
        self.sink = sink
        self.error: OperatingError | None = None
        self.timer: Any = None


class EarlyRequests:
    """Submits them again, in the order in which they came, whenever that may help."""

    def __init__(self, timers: Timers, awaited: Awaited) -> None:
        self._timers = timers
        self._awaited = awaited
        self._waiting: dict[int, list[_Early]] = {}
        self._count = 0

    def wait(
        self, key: str, caller: Caller, submit: Callable[[], None], error: OperatingError
    ) -> bool:
        """Submit again later, instead of the refusal; False where that cannot help."""
        sink: Any = caller.token
        return self._wait(_Early(key, submit, sink), error)

    def _wait(self, early: _Early, error: OperatingError) -> bool:
        index = self._awaited(early.key)
        if index is None or self._count >= WAITING_MAX:
            return False
        # Its frames know the caller: with them nothing is freed before the garbage collector comes.
        early.error = error.with_traceback(None)
        if early.timer is None:
            early.timer = self._timers.call_later(WAIT_S, self._give_up, early)
        self._waiting.setdefault(index, []).append(early)
        self._count += 1
        return True

    def release(self, index: int) -> None:
        """The shard of the partition serves now, or is known not to be led here."""
        waiting = self._waiting.pop(index, ())
        self._count -= len(waiting)
        for one in waiting:
            try:
                self._submit_again(one)
            except Exception as error:  # noqa: BLE001 - the others must be served all the same
                log.error("a request that waited for its coordinator failed", error=error)

    def _submit_again(self, one: _Early) -> None:
        try:
            one.submit()
        except OperatingError as error:
            if self._wait(one, error):
                return
            one.sink.respond(error)
        one.timer.cancel()

    def release_all(self) -> None:
        """Metadata changed: see for all of them what that means."""
        for index in list(self._waiting):
            self.release(index)

    def _give_up(self, one: _Early) -> None:
        for index, waiting in self._waiting.items():
            if one in waiting:
                waiting.remove(one)
                self._count -= 1
                if not waiting:
                    del self._waiting[index]
                break
        one.sink.respond(one.error)

    def stop(self) -> None:
        """No timer rings any more."""
        for waiting in self._waiting.values():
            for one in waiting:
                one.timer.cancel()
        self._waiting.clear()
        self._count = 0
