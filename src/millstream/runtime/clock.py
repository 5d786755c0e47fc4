"""The clock seam: monotonic time for time-outs, wall time for record timestamps only."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that are never mixed: wall time may jump, monotonic time may not."""

    def monotonic_s(self) -> float:
        """Seconds that only grow; for time-outs and intervals."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for record timestamps and retention."""


class SystemClock:
    """The machine's own clocks."""

    monotonic_s = staticmethod(time.monotonic)
    """Without a call of ours around it: every request asks several times."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
