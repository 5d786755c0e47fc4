"""The clock seam: monotonic time for timeouts, wall time for record timestamps only."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that are never mixed: wall time may jump, monotonic time may not."""

    def monotonic_s(self) -> float:
        """Seconds that only grow; for timeouts and intervals."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for record timestamps and retention."""


class SystemClock:
    """The machine's own clocks."""

    monotonic_s = staticmethod(time.monotonic)
    """Not wrapped in a method: every request reads it several times."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
