"""Deadlines by key: sessions, rebalance and sync timeouts of a group's members.

Every heartbeat moves one deadline to a later time, so that must be cheap: the heap keeps the
earliest time at which a key has to be checked, and the real deadline is looked up only then.
"""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from millstream.model.invariant import invariant

STALE_MIN: Final = 64
"""So many stale entries are always left in the heap."""

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """One deadline for each key; the earliest is found without scanning all."""

    __slots__ = ("_due_ms", "_heap", "_queued_ms", "_sequence")

    def __init__(self) -> None:
        self._due_ms: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._queued_ms: dict[K, int] = {}
        """Time of the valid heap entry of the key; others are skipped."""
        self._sequence = 0

    def set(self, key: K, at_ms: int) -> None:
        """Set or move it. Moving it later does not touch the heap."""
        self._due_ms[key] = at_ms
        queued_ms = self._queued_ms.get(key)
        if queued_ms is None or at_ms < queued_ms:
            self._push(key, at_ms)

    def set_once(self, key: K, at_ms: int) -> None:
        """Set it unless the key has one."""
        if key not in self._due_ms:
            self.set(key, at_ms)

    def cancel(self, key: K) -> None:
        """Remove it, if there is one; its heap entry goes when its time comes, or with others."""
        self._due_ms.pop(key, None)
        # A timeout may be hours, and members may join and leave every second.
        if len(self._heap) > 2 * len(self._due_ms) + STALE_MIN:
            self._heap, self._queued_ms = [], {}
            for one, at_ms in self._due_ms.items():
                self._push(one, at_ms)

    def of(self, key: K) -> int | None:
        """The key's deadline, if it has one."""
        return self._due_ms.get(key)

    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap:
            at_ms, _, key = self._heap[0]
            if self._queued_ms.get(key) != at_ms:
                heapq.heappop(self._heap)
                continue
            due_ms = self._due_ms.get(key)
            if due_ms == at_ms:
                return at_ms
            heapq.heappop(self._heap)
            del self._queued_ms[key]
            if due_ms is not None:
                self._push(key, due_ms)
        return None

    def take_due(self, now_ms: int) -> K | None:
        """Remove and return a key whose deadline has passed."""
        at_ms = self.next_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        due_ms = self._due_ms.pop(key)
        invariant(due_ms <= now_ms, "I-30 a session ends before its time", key=key)
        del self._queued_ms[key]
        return key

    def take_all_due(self, now_ms: int) -> list[K]:
        """Remove and return all keys whose deadlines have passed."""
        due: list[K] = []
        while (key := self.take_due(now_ms)) is not None:
            due.append(key)
        return due

    def _push(self, key: K, at_ms: int) -> None:
        self._sequence += 1
        self._queued_ms[key] = at_ms
        heapq.heappush(self._heap, (at_ms, self._sequence, key))
