"""Detects an event loop that hangs while the process's threads keep running.

kazoo pings from a thread of its own: a broker whose loop hangs would keep its session, and with it
its leaderships, forever. A thread therefore checks a stamp that the loop renews.
"""

from typing import Final

STAMPS_PER_LIMIT: Final = 4
"""How often the loop stamps, and the watchdog checks, within the allowed silence."""

_STEPS_PER_CHECK_MAX: Final = 2


class LoopWatchdog:
    """Sums up the silence of the loop over the checks of a thread.

    Only time in which that thread itself was running is counted. After the whole process was
    stopped and resumed it is not known that the loop hung; whether the session is still valid, the
    service decides.
    """

    def __init__(self, *, now_s: float) -> None:
        self._checked_s = now_s
        self._stamp_seen = -1
        self._silent_s = 0.0

    def is_hung(self, *, stamp: int, now_s: float, limit_s: float) -> bool:
        """Check the loop's stamp, which differs every time it was renewed."""
        step_s = min(now_s - self._checked_s, interval_s(limit_s) * _STEPS_PER_CHECK_MAX)
        self._checked_s = now_s
        if stamp != self._stamp_seen:
            self._stamp_seen = stamp
            self._silent_s = 0.0
            return False
        self._silent_s += step_s
        return self._silent_s > limit_s


def interval_s(limit_s: float) -> float:
    """The time between two stamps, and between two checks."""
    return limit_s / STAMPS_PER_LIMIT
