"""Requests that arrive before the shard of their partition is active.

A client sends requests as soon as it knows the coordinator. In a new cluster that may be before the
partition is loaded here, or before this broker knows the topic. If refused, clients pause before
they retry, librdkafka for three seconds; a request that waits is served milliseconds later.
"""

from collections.abc import Callable
from typing import Any, Final

from millstream.model.errors import OperatingError, without_frames
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.timers import Timers
from millstream.shards.context import ResponseSink
from millstream.shards.effects import Caller

log = get_logger("millstream.shards")

WAIT_S: Final = 1.0
"""Then the client is refused: a long load must not look like an unresponsive broker."""
WAITING_MAX: Final = 1_000
"""They are submitted one by one when a partition is loaded, about 30 ms for all of them."""

TOPIC_UNKNOWN: Final = -1
"""Instead of a partition: the topic may exist, and this broker does not know it yet."""

Awaited = Callable[[str], int | None]
"""The partition that requests for a key can wait for, TOPIC_UNKNOWN, or None: do not wait."""


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
    """Resubmits them, in the order of arrival, when the shard may have become active."""

    def __init__(self, timers: Timers, awaited: Awaited) -> None:
        self._timers = timers
        self._client_log = ClientLog(timers)
        self._awaited = awaited
        self._waiting: dict[int, list[_Early]] = {}
        self._count = 0

    def wait(
        self, key: str, caller: Caller, submit: Callable[[], None], error: OperatingError
    ) -> bool:
        """Resubmit later instead of refusing; False if that cannot help."""
        sink: Any = caller.token
        return self._wait(_Early(key, submit, sink), error)

    def _wait(self, early: _Early, error: OperatingError) -> bool:
        index = self._awaited(early.key)
        if index is None or self._count >= WAITING_MAX:
            return False
        early.error = without_frames(error)
        if early.timer is None:
            early.timer = self._timers.call_later(WAIT_S, self._time_out, early)
        self._waiting.setdefault(index, []).append(early)
        self._count += 1
        return True

    def release(self, index: int) -> None:
        """The shard of the partition is active now, or is known not to be led here."""
        waiting = self._waiting.pop(index, ())
        self._count -= len(waiting)
        for one in waiting:
            try:
                self._resubmit(one)
            except Exception as error:  # noqa: BLE001 - the others must be served all the same
                end_if_fatal(error)
                message = "a request that waited for its coordinator failed"
                self._client_log.error(log, message, client="", error=error)

    def _resubmit(self, one: _Early) -> None:
        try:
            one.submit()
        except OperatingError as error:
            if self._wait(one, error):
                return
            one.sink.respond(without_frames(error))
        one.timer.cancel()
        one.timer = None

    def release_all(self) -> None:
        """Metadata changed: resubmit all of them."""
        for index in list(self._waiting):
            self.release(index)

    def _time_out(self, one: _Early) -> None:
        for index, waiting in self._waiting.items():
            if one in waiting:
                waiting.remove(one)
                self._count -= 1
                if not waiting:
                    del self._waiting[index]
                break
        one.timer = None  # it has the request as an argument: a cycle
        one.sink.respond(one.error)

    def stop(self) -> None:
        """Cancel the timers."""
        for waiting in self._waiting.values():
            for one in waiting:
                one.timer.cancel()
        self._waiting.clear()
        self._count = 0
