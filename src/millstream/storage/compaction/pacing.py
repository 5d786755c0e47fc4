"""How a cleaning is slowed down and stopped from outside."""

import math
import threading
from collections.abc import Callable

from millstream.runtime.clock import Clock


class CleaningCancelled(Exception):
    """The log went away under the cleaning, or the broker stops; nothing is wrong."""


class CancelFlag:
    """Set by the owner's thread, seen by the thread that works."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raise CleaningCancelled when the flag is set."""
        if self._event.is_set():
            raise CleaningCancelled

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than until the flag is set."""
        self._event.wait(seconds)


Pause = Callable[[CancelFlag, float], None]
"""Waits that many seconds or until the flag is set; a test moves its clock instead."""


class Throttle:
    """Keeps all cleaning together under a number of bytes read and written per second.

    What is spent is paid for afterwards, by waiting until the time it should have taken is over.
    """

    def __init__(
        self, clock: Clock, *, bytes_per_s: float = math.inf, pause: Pause = CancelFlag.wait
    ) -> None:
        self._clock = clock
        self._pause = pause
        self.bytes_per_s = bytes_per_s
        """May be changed at any time, as Kafka's dynamic setting."""
        self._paid_until_s = 0.0

    def spend(self, size_bytes: int, cancel: CancelFlag) -> None:
        """Account for bytes just moved; raises CleaningCancelled."""
        cancel.check()
        if math.isinf(self.bytes_per_s):
            return
        now_s = self._clock.monotonic_s()
        self._paid_until_s = max(self._paid_until_s, now_s) + size_bytes / self.bytes_per_s
        if self._paid_until_s > now_s:
            self._pause(cancel, self._paid_until_s - now_s)
            cancel.check()
