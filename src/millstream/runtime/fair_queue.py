"""Who is next: the one that has had least, of those that want something now.

Each key that waits has a *tag*: what it has been charged so far, but never less than the tag of the
one served last. So one that asks rarely is served at once however many others wait, one that asks
for more than its share gets just its share, and none saves up a claim by being idle. (Known from
networks as start-time fair queueing.)

An endless row of newcomers, each with its first wish, would shut the others out by that rule. So
what latecomers are served is added up, divided among all, and from a `credit` on moves the tags of
those that come after them.
"""

from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K")

_CHARGED_MIN: Final = 64
"""Fewer charges are not worth a look for those that mean nothing any more."""

_NEWCOMER: Final = -1.0


class FairQueue(Generic[K]):
    """Each key waits at most once. After each `pop` comes a `charge` for the same key."""

    def __init__(self, *, credit: float = 0.0) -> None:
        """`credit`: what latecomers may have at once beyond their share, for each that waits."""
        self._credit = credit
        self._waiting: set[K] = set()
        self._heap: list[tuple[float, bool, int, K]] = []
        """With tag, whether it is no latecomer, and number; also some that wait no more."""
        self._charged: dict[K, float] = {}
        self._charged_max = _CHARGED_MIN
        self._served = (0.0, True)
        """Tag of the one served last, and whether it was no latecomer."""
        self._late = 0.0
        """Where the tags would be if latecomers had had no more than their share."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, key: K) -> None:
        if key in self._waiting:
            return
        self._waiting.add(key)
        self._number += 1
        tag = self._charged.get(key, _NEWCOMER)
        last = self._served[0]
        if tag >= last:
            heappush(self._heap, (tag, True, self._number, key))
        else:
            late = max(last, self._late - self._credit)
            heappush(self._heap, (late, False, self._number, key))

    def pop(self) -> K:
        """The one that has had least, the longest waiting among equals; there must be one."""
        while True:
            tag, is_regular, _, key = heappop(self._heap)
            if key in self._waiting:
                break
        self._waiting.remove(key)
        self._served = (tag, is_regular)
        if not self._waiting:
            self._heap.clear()
        return key

    def charge(self, key: K, cost: float) -> None:
        """The one served last has taken so much."""
        tag, is_regular = self._served
        self._charged[key] = tag + cost
        if not is_regular:
            self._late = max(self._late, tag) + cost / (len(self._waiting) + 1)
        if len(self._charged) > self._charged_max:
            self._charged = {one: sum_ for one, sum_ in self._charged.items() if sum_ > tag}
            self._charged_max = max(_CHARGED_MIN, 2 * len(self._charged))

    def discard(self, key: K) -> None:
        """It waits no more; what it was charged stays."""
        self._waiting.discard(key)
        if not self._waiting:
            self._heap.clear()

    def forget(self, key: K) -> None:
        """It will not come back."""
        self.discard(key)
        self._charged.pop(key, None)
