"""Event-loop lag: the one figure that shows whether a broker is overloaded."""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from millstream.observe.api_counters import BUCKET_BOUNDS_US, BUCKETS
from millstream.observe.registry import Distribution

SAMPLE_INTERVAL_S: Final = 0.25
_WINDOW_S: Final = 60.0


class LoopLag:
    """Samples of how late timers ran."""

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * BUCKETS))
        self._sum_us = 0
        self._window_start_s = float("-inf")
        self._max_us = 0
        self._former_max_us = 0

    def observe(self, lag_us: int, *, now_s: float) -> None:
        """One sample, taken at `now_s` of any monotonic clock."""
        lag_us = max(lag_us, 0)
        if now_s - self._window_start_s >= _WINDOW_S:
            is_recent = now_s - self._window_start_s < 2 * _WINDOW_S
            self._former_max_us = self._max_us if is_recent else 0
            self._window_start_s, self._max_us = now_s, 0
        self._counts[bisect_left(BUCKET_BOUNDS_US, lag_us)] += 1
        self._sum_us += lag_us
        self._max_us = max(self._max_us, lag_us)

    def distribution(self) -> Distribution:
        """Everything since the start."""
        return Distribution(BOUNDS_S, self._counts, self._sum_us / 1e6)

    def max_s(self) -> float:
        """The largest of the last one to two minutes: no scrape can miss or clear it."""
        return max(self._max_us, self._former_max_us) / 1e6


class LoopLagSampler:
    """A timer that compares when it should have run with when it did."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lag: LoopLag,
        *,
        on_sample: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._lag = lag
        self._on_sample = on_sample
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        due_s = self._loop.time() + SAMPLE_INTERVAL_S
        self._timer = self._loop.call_at(due_s, self._sample, due_s)

    def _sample(self, due_s: float) -> None:
        now_s = self._loop.time()
        self._lag.observe(int((now_s - due_s) * 1e6), now_s=now_s)
        self._on_sample()
        self._schedule()


BOUNDS_S: Final = tuple(bound / 1e6 for bound in BUCKET_BOUNDS_US)
