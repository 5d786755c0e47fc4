"""One timer for everything that waits with a time limit.

A timer per delayed fetch would cost more than the fetch, and most end early because data comes.
Operations stay in a heap until their time; those that ended meanwhile are skipped, and swept out
when they are the most of it.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

from millstream.runtime.timers import Timers

SWEEP_COUNT_MIN: Final = 256
"""Ended operations that may lie in the heap before a sweep is worth its time."""

LOOK_AGAIN_S: Final = 5.0
"""How long an operation of a connection that is gone may stay: a client may ask to wait for days,
disconnect, and come again with the same, and each would be kept until its time (I-37)."""


EARLY_S: Final = 0.0005
"""What is due so soon counts as due: clocks are rounded, and a timer that fires a hair early would
be set again for no time at all, for ever where time stands still meanwhile."""


class Operation(Protocol):
    """Something that waits."""

    def is_over(self) -> bool:
        """Nothing more to do: it was answered, or whoever asked is gone (then it lets go)."""

    def expire(self) -> None:
        """Its time is up."""


_Entry = tuple[float, int, float, Operation]
"""When to look, a number that keeps entries comparable, the deadline, the operation."""


class Deadlines:
    """All waiting operations of a broker, by the time they end."""

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
        """Let go of everything without a word."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _push(self, operation: Operation, now_s: float, deadline_s: float) -> None:
        self._number += 1
        look_s = min(deadline_s, now_s + LOOK_AGAIN_S)
        heappush(self._heap, (look_s, self._number, deadline_s, operation))

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
            # One may end another: a follower's answer moves the high watermark (I-36).
            if not operation.is_over():
                operation.expire()
        if self._heap and self._timer is None:
            self._arm(now_s)
