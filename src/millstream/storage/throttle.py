"""How a cleaning or a move is throttled and cancelled."""

import math
import threading
from collections.abc import Callable
from typing import Final

from millstream.runtime.clock import Clock


class CleaningCancelled(Exception):
    """The log was closed or changed during the work, or the broker stops; not a failure."""


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


PAUSE_MAX_S: Final = 0.25
"""A longer pause is divided: the rate may have been changed meanwhile."""


class Throttle:
    """Keeps all work of a kind together under a number of bytes per second.

    What is spent is paid for afterwards, by waiting until the time it should have taken is over.
    """

    def __init__(
        self, clock: Clock, *, bytes_per_s: float = math.inf, pause: Pause = CancelFlag.wait
    ) -> None:
        self._clock = clock
        self._pause = pause
        self.bytes_per_s = bytes_per_s
        """May be changed at any time, as Kafka's dynamic settings; 0 lets nothing through."""
        self._owed_bytes = 0.0
        self._paid_at_s = clock.monotonic_s()

    def spend(self, size_bytes: int, cancel: CancelFlag) -> None:
        """Account for bytes just moved; raises CleaningCancelled, also in the middle of a pause."""
        cancel.check()
        self._pay()
        self._owed_bytes += size_bytes
        while (wait_s := self._wait_s()) > 0:
            self._pause(cancel, min(wait_s, PAUSE_MAX_S))
            cancel.check()
            self._pay()

    def note(self, size_bytes: int) -> None:
        """Account for bytes that could not wait: the next `spend` waits for them too."""
        self._pay()
        self._owed_bytes += size_bytes

    def _pay(self) -> None:
        now_s = self._clock.monotonic_s()
        paid = (now_s - self._paid_at_s) * self.bytes_per_s if now_s > self._paid_at_s else 0.0
        self._owed_bytes = max(0.0, self._owed_bytes - paid)
        self._paid_at_s = now_s

    def _wait_s(self) -> float:
        if math.isinf(self.bytes_per_s):
            self._owed_bytes = 0.0
        if not self._owed_bytes:
            return 0.0
        return self._owed_bytes / self.bytes_per_s if self.bytes_per_s > 0 else math.inf
