"""Tells an event loop that hangs from one that is busy for a moment.

kazoo pings from a thread of its own: a broker whose loop hangs would keep its session, and with it
its leaderships, forever. A thread therefore checks a stamp that the loop renews. A missing stamp
alone does not mean much: the loop may be in the middle of a large request, and closing the session
would make a cheap request an outage. So the thread also looks at the CPU time of the loop's thread
(ADR 0028):

- Blocked, no CPU time is used: a deadlock, or a device that does not answer. It may take as long as
  a broker may be silent anyway.
- Busy, CPU time is used: most probably it goes on. An endless loop looks the same, so this has a
  limit, too, only a longer one.

Safety does not depend on these limits (leader epochs, in-sync sets and the controller's fence see
to that), only how soon the partitions of a hung broker are led by others.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from millstream.runtime.clock import Clock, thread_cpu_clock

CHECKS_PER_TIMEOUT: Final = 12
"""How often the loop stamps, and the thread checks, within the session timeout."""

BLOCKED_TIMEOUTS: Final = 1
"""How long a loop may be blocked, in session timeouts: as long as a broker that was killed, or cut
off, has its session."""

BUSY_TIMEOUTS: Final = 3
"""How long a loop may be silent, in session timeouts, while it uses the CPU. With the default
timeout of 6 s that is 18 s: more than any request needs, less than a producer's delivery timeout or
the 30 s after which clients give up a request."""

CPU_SHARE_MIN: Final = 0.01
"""Less of a CPU than this is not work: waiting in small steps uses some, too."""

REPORT_SHARE: Final = 3
"""A loop that was silent for this fraction of the session timeout is reported: by then a client
notices it."""

FRAMES_REPORTED: Final = 6
"""The innermost calls of the loop's thread."""

_STEPS_PER_CHECK_MAX: Final = 2


class Hang(StrEnum):
    """In which way a loop hangs."""

    BLOCKED = "blocked"
    BUSY = "busy"


class LoopWatchdog:
    """Sums up the silence of a loop over the checks of a thread: the decision, without the loop.

    Only time in which that thread itself was running is counted. After the whole process was
    stopped and resumed it is not known that the loop hung; whether the session is still valid, the
    service decides.
    """

    def __init__(self, *, now_s: float, cpu_s: float) -> None:
        self._checked_s = now_s
        self._cpu_s = cpu_s
        self._stamp_seen = -1
        self._blocked_s = 0.0
        self.silent_s = 0.0
        """Since the last stamp."""

    def check(self, *, stamp: int, cpu_s: float, now_s: float, timeout_s: float) -> Hang | None:
        """Check the loop's stamp, which differs every time it was renewed.

        `cpu_s`: the CPU time that the loop's thread has used so far.
        """
        step_s = min(now_s - self._checked_s, interval_s(timeout_s) * _STEPS_PER_CHECK_MAX)
        is_working = cpu_s - self._cpu_s >= step_s * CPU_SHARE_MIN
        self._checked_s, self._cpu_s = now_s, cpu_s
        if stamp != self._stamp_seen:
            self._stamp_seen = stamp
            self.silent_s = self._blocked_s = 0.0
            return None
        self.silent_s += step_s
        self._blocked_s = 0.0 if is_working else self._blocked_s + step_s
        if self._blocked_s > timeout_s * BLOCKED_TIMEOUTS:
            return Hang.BLOCKED
        return Hang.BUSY if self.silent_s > timeout_s * BUSY_TIMEOUTS else None


def interval_s(timeout_s: float) -> float:
    """The time between two stamps, and between two checks."""
    return timeout_s / CHECKS_PER_TIMEOUT


class LoopWatch:
    """Watches the running loop. Constructed and stopped on the loop, else used by one thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, *, timeout_s: Callable[[], float]
    ) -> None:
        """`timeout_s`: the session timeout, which the service may change."""
        self._loop = loop
        self._clock = clock
        self._timeout_s = timeout_s
        self._thread_ident = threading.get_ident()
        self._cpu_s = thread_cpu_clock(self._thread_ident)
        self._watchdog = LoopWatchdog(now_s=clock.monotonic_s(), cpu_s=self._cpu_s())
        self._is_reported = False
        self._stamp = 0
        self._stamper = loop.call_soon(self._renew)

    def stop(self) -> None:
        self._stamper.cancel()

    def _renew(self) -> None:
        self._stamp += 1
        self._stamper = self._loop.call_later(self.interval_s, self._renew)

    # -- for the thread

    @property
    def interval_s(self) -> float:
        """Between two checks."""
        return interval_s(self._timeout_s())

    @property
    def silent_s(self) -> float:
        return self._watchdog.silent_s

    def check(self) -> Hang | None:
        """To be called every `interval_s`; whether the loop hangs, and how."""
        return self._watchdog.check(
            stamp=self._stamp,
            cpu_s=self._cpu_s(),
            now_s=self._clock.monotonic_s(),
            timeout_s=self._timeout_s(),
        )

    def takes_long(self) -> bool:
        """Whether the loop is silent for so long that a log line is due; once in a silence."""
        was_reported = self._is_reported
        self._is_reported = self._watchdog.silent_s > self._timeout_s() / REPORT_SHARE
        return self._is_reported and not was_reported

    def doing(self) -> str:
        """Where the loop's thread is, the innermost call first."""
        frame = sys._current_frames().get(self._thread_ident)  # noqa: SLF001 - its documented name
        calls: list[str] = []
        while frame is not None and len(calls) < FRAMES_REPORTED:
            code = frame.f_code
            file = code.co_filename.rpartition("/")[2]
            calls.append(f"{code.co_qualname} ({file}:{frame.f_lineno})")
            frame = frame.f_back
        return ", ".join(calls)
