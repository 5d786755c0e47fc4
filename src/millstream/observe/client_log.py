"""Log lines that clients can cause: few per address and kind, however many requests they send.

    client_log.warning(log, "connection closed", client=peer.client_host, reason=reason)

The message is the kind. What was suppressed is in a line of its own when the interval has passed:
`log lines suppressed kind="connection closed" client=192.0.2.7 suppressed=19999`.

Code that serves clients logs this way; `tests/unit/repository/test_client_lines.py` has the list of
exceptions, each with its reason.
"""

import logging
from typing import Any, Final, Protocol

from millstream.model.limits import (
    LOG_CHANGES_PER_INTERVAL_MAX,
    LOG_CLIENTS_PER_INTERVAL_MAX,
    LOG_DEBUG_PER_INTERVAL_MAX,
    LOG_INTERVAL_S,
    LOG_ONCE_CLIENTS_MAX,
    LOG_ONCE_INTERVAL_S,
)
from millstream.observe.line_limiter import LineLimiter, LineLimits, Suppressed
from millstream.observe.logs import Log, get_logger

log = get_logger("millstream.observe.client_log")

_ORDINARY: Final = LineLimits(LOG_INTERVAL_S, 1, LOG_CLIENTS_PER_INTERVAL_MAX)
_ONCE: Final = LineLimits(LOG_ONCE_INTERVAL_S, 1, LOG_ONCE_CLIENTS_MAX)
_DEBUG: Final = LineLimits(LOG_INTERVAL_S, LOG_DEBUG_PER_INTERVAL_MAX, LOG_CLIENTS_PER_INTERVAL_MAX)
_CHANGES: Final = LineLimits(LOG_INTERVAL_S, LOG_CHANGES_PER_INTERVAL_MAX, 1)


class MonotonicClock(Protocol):
    """As much of a clock as is needed here."""

    def monotonic_s(self) -> float: ...


class ClientLog:
    """One per broker or other server. All methods run on the loop's thread."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._ordinary = LineLimiter(_ORDINARY)
        self._once = LineLimiter(_ONCE)
        self._debug = LineLimiter(_DEBUG)
        self._changes = LineLimiter(_CHANGES)
        self._limiters = (self._ordinary, self._once, self._debug, self._changes)

    def debug(self, log: Log, message: str, *, client: str, **values: object) -> None:
        """Limited as well: a client can set the level of a logger."""
        self._write(self._debug, (log, logging.DEBUG, message), client, values)

    def warning(self, log: Log, message: str, *, client: str, **values: object) -> None:
        """`client` is an address; "" where the cause is no single client's request."""
        self._write(self._ordinary, (log, logging.WARNING, message), client, values)

    def error(self, log: Log, message: str, *, client: str, **values: object) -> None:
        """For faults of ours that a client can cause again and again."""
        self._write(self._ordinary, (log, logging.ERROR, message), client, values)

    def warning_once(self, log: Log, message: str, *, client: str, **values: object) -> None:
        """For what a client does not stop doing: once per address and hour."""
        self._write(self._once, (log, logging.WARNING, message), client, values)

    def change(
        self, log: Log, message: str, *, level: int = logging.INFO, **values: object
    ) -> None:
        """Something that was changed for a client: many lines are right, thousands are not."""
        self._write(self._changes, (log, level, message), "", values)

    def sweep(self) -> None:
        """Report what was suppressed in intervals that have passed; call it once a second."""
        now_s = self._clock.monotonic_s()
        for limiter in self._limiters:
            _report(limiter.take_ended(now_s))

    def close(self) -> None:
        """Report what was suppressed until now: there is no later."""
        for limiter in self._limiters:
            _report(limiter.take_all())

    def _write(
        self,
        limiter: LineLimiter,
        line: tuple[Log, int, str],
        client: str,
        values: dict[str, Any],
    ) -> None:
        log, level, message = line
        if not log.is_enabled(level):
            return
        now_s = self._clock.monotonic_s()
        _report(limiter.take_ended(now_s))
        if limiter.allows(message, client, now_s):
            log.write(level, message, {"client": client, **values} if client else values)


def _report(suppressed: list[Suppressed]) -> None:
    for kind, client, lines in suppressed:
        values: dict[str, Any] = {"kind": kind, "suppressed": lines}
        if client:
            values["client"] = client
        log.write(logging.WARNING, "log lines suppressed", values)
