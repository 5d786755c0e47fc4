"""Time in which this process was able to serve: for deadlines that others must keep.

A client that sends its heartbeat in time must not lose its membership because the broker did not
read it: after a stall of the event loop the timers are due at once, and the heartbeats of all
members still wait in the sockets. So the time of a stall does not count (ADR 0028).
"""

from math import inf
from typing import Final

from millstream.runtime.clock import Clock

STEP_MAX_S: Final = 0.75
"""Counted between two ticks at most: the interval between them, and as much delay as is usual under
load. What is longer is a stall."""


class ServingClock:
    """A clock that stands still during stalls. It needs a `tick` every fraction of a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stalled_s = 0.0
        self._limit_s = inf
        """The clock goes no further before the next tick; without any tick it just goes."""
        self.wall_ms = clock.wall_ms

    def monotonic_s(self) -> float:
        now_s = self._clock.monotonic_s()
        return (now_s if now_s < self._limit_s else self._limit_s) - self._stalled_s

    def tick(self) -> None:
        """The event loop runs."""
        now_s = self._clock.monotonic_s()
        if now_s > self._limit_s:
            self._stalled_s += now_s - self._limit_s
        self._limit_s = now_s + STEP_MAX_S

    def stop(self) -> None:
        """No more ticks follow."""
        self.tick()
        self._limit_s = inf
