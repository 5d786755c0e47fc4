"""One timer for everything that waits with a time limit.

A timer per delayed fetch would cost more than the fetch, and most end early because data arrives.
Operations stay in a heap until their time; those that ended meanwhile are skipped, and swept out
when they are most of the heap.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

from millstream.runtime.timers import Timers

SWEEP_COUNT_MIN: Final = 256
"""Ended operations that may lie in the heap before a sweep is worth its time."""

RECHECK_INTERVAL_S: Final = 5.0
"""How long an operation of a closed connection may stay: a client may ask to wait for days,
disconnect, and reconnect with the same request, and each would be kept until its deadline
(I-37)."""


EARLY_S: Final = 0.0005
"""What is due this soon is treated as due: clocks are rounded, and a timer that fires slightly
early would be set again with no delay, forever on a clock that stands still meanwhile."""


class Operation(Protocol):
    """Something that waits with a deadline."""

    def is_over(self) -> bool:
        """Whether it has been answered, or its client is gone (then it releases what it holds)."""

    def expire(self) -> None:
        """The deadline has passed."""


_Entry = tuple[float, int, float, Operation]
"""When to check it, a number that keeps entries comparable, the deadline, the operation."""


class Deadlines:
    """All waiting operations of a broker, ordered by their deadlines."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._heap: list[_Entry] = []
        self._number = 0
        self._over_count = 0
        self._timer: Any = None
        self._timer_s = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, operation: Operation, *, timeout_ms: int) -> None:
        """Call `expire` after that time, unless it is over by then; then call `note_over`."""
        now_s = self._timers.monotonic_s()
        self._push(operation, now_s, now_s + timeout_ms / 1000)
        if self._timer is None or self._heap[0][0] < self._timer_s:
            self._arm(now_s)

    def note_over(self) -> None:
        """An operation ended before its time."""
        self._over_count += 1
        if self._over_count >= SWEEP_COUNT_MIN and 2 * self._over_count > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[3].is_over()]
            heapify(self._heap)
            self._over_count = 0

    def close(self) -> None:
        """Drop everything silently."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _push(self, operation: Operation, now_s: float, deadline_s: float) -> None:
        self._number += 1
        check_s = min(deadline_s, now_s + RECHECK_INTERVAL_S)
        heappush(self._heap, (check_s, self._number, deadline_s, operation))

    def _arm(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._heap[0][0]
        self._timer = self._timers.call_later(max(0.0, self._timer_s - now_s), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_s = self._timers.monotonic_s()
        due_s = now_s + EARLY_S
        due: list[Operation] = []
        while self._heap and self._heap[0][0] <= due_s:
            _, _, deadline_s, operation = heappop(self._heap)
            if operation.is_over():
                self._over_count = max(0, self._over_count - 1)
            elif deadline_s <= due_s:
                due.append(operation)
            else:
                self._push(operation, now_s, deadline_s)
        for operation in due:
            # Expiring one may complete another: a follower's answer moves the high watermark
            # (I-36).
            if not operation.is_over():
                operation.expire()
        if self._heap and self._timer is None:
            self._arm(now_s)
