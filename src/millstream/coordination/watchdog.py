"""Whether the event loop hangs while its threads go on.

kazoo pings from a thread of its own: a broker whose loop hangs would keep its session, and with it
its leaderships, for ever. A thread therefore looks at a stamp that the loop renews.
"""

from typing import Final

STAMPS_PER_LIMIT: Final = 4
"""How often the loop stamps, and the watchdog looks, within the time it may be silent."""

_STEPS_PER_LOOK_MAX: Final = 2


class LoopWatchdog:
    """Sums up the silence of the loop over the looks of a thread.

    Only time in which that thread itself was running counts. After the whole process was stopped
    and woken nobody can say that the loop hung; what the session is worth then, the service knows.
    """

    def __init__(self, *, now_s: float) -> None:
        self._looked_s = now_s
        self._stamp_seen = -1
        self._silent_s = 0.0

    def is_hung(self, *, stamp: int, now_s: float, limit_s: float) -> bool:
        """Look at the loop's stamp, which is another one every time it was renewed."""
        step_s = min(now_s - self._looked_s, interval_s(limit_s) * _STEPS_PER_LOOK_MAX)
        self._looked_s = now_s
        if stamp != self._stamp_seen:
            self._stamp_seen = stamp
            self._silent_s = 0.0
            return False
        self._silent_s += step_s
        return self._silent_s > limit_s


def interval_s(limit_s: float) -> float:
    """Between two stamps, and between two looks."""
    return limit_s / STAMPS_PER_LIMIT
