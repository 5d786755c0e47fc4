"""Deadlines by key. Moving one later, which every heartbeat does, costs one dict assignment."""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

STALE_MIN: Final = 64
"""So many stale entries are always left in the heap."""

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """The heap may hold a time that is too early for its key; that is noticed when it comes up."""

    __slots__ = ("_at_ms", "_heap", "_sequence")

    def __init__(self) -> None:
        self._at_ms: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def set(self, key: K, at_ms: int) -> None:
        """Set the only deadline of `key`."""
        before = self._at_ms.get(key)
        self._at_ms[key] = at_ms
        if before is None or at_ms < before:
            self._push(key, at_ms)

    def set_once(self, key: K, at_ms: int) -> None:
        """Set the deadline of `key` unless it has one."""
        if key not in self._at_ms:
            self.set(key, at_ms)

    def cancel(self, key: K) -> None:
        """Cancel the deadline of `key`, if it has one."""
        self._at_ms.pop(key, None)
        # Timeouts may be hours, and members may rejoin every second.
        if len(self._heap) > 2 * len(self._at_ms) + STALE_MIN:
            self._heap = []
            for one, at_ms in self._at_ms.items():
                self._push(one, at_ms)

    def of(self, key: K) -> int | None:
        """The deadline of `key`, or None."""
        return self._at_ms.get(key)

    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap:
            at_ms, _, key = self._heap[0]
            wanted = self._at_ms.get(key)
            if wanted == at_ms:
                return at_ms
            heapq.heappop(self._heap)
            if wanted is not None and wanted > at_ms:
                self._push(key, wanted)
        return None

    def take_due(self, now_ms: int) -> list[K]:
        """Remove and return the keys whose deadline has passed."""
        due: list[K] = []
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            key = heapq.heappop(self._heap)[2]
            del self._at_ms[key]
            due.append(key)
        return due

    def _push(self, key: K, at_ms: int) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_ms, self._sequence, key))
