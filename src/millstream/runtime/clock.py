"""The clock seam: monotonic time for timeouts, wall time for record timestamps only."""

import sys
import time
from collections.abc import Callable
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


def thread_cpu_clock(thread_ident: int) -> Callable[[], float]:
    """Reads the CPU time of a running thread, from any other one.

    It stands still where the system has no such clock.
    """
    if sys.platform == "win32" or sys.platform == "darwin":
        return lambda: 0.0
    clock_id = time.pthread_getcpuclockid(thread_ident)

    def read() -> float:
        try:
            return time.clock_gettime(clock_id)
        except OSError:  # the thread has ended
            return 0.0

    return read
